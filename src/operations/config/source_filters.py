"""Filters of a source: which operations are registered, under which names, with which access rules."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from operations.config.settings import AccessRule, Source
from operations.errors import CallError, ErrorCode
from operations.spec import AccessControl, Operation, OperationSpec


class SourceFilter:
    """The `allow`, `deny`, `rename` and access rules of one source; `unused` has the patterns without a match."""

    def __init__(self, source: Source, access: Mapping[str, AccessRule], *, prefix: str | None, namespace: str | None):
        settings = source.settings
        self._prefix = prefix
        self._namespace = namespace
        self._policy = settings.policy
        self._allow = [(pattern, _compile(pattern)) for pattern in settings.allow]
        self._deny = [(pattern, _compile(pattern)) for pattern in settings.deny]
        self._rename = [(old, _compile(old), new) for old, new in settings.rename.items()]
        self._access = [(_compile(pattern), rule) for pattern, rule in access.items()]
        self.unused = {*settings.allow, *settings.deny, *settings.rename}

    def apply(self, operation: Operation[Any]) -> Operation[Any] | None:
        """Return the operation to register; None if it is filtered out. Raise if access rules contradict each other."""
        spec = operation.spec
        names = self._names(spec)
        denied = self._matches(self._deny, names)
        if (self._allow and not self._matches(self._allow, names)) or denied:
            return None
        changes: dict[str, Any] = self._renamed(spec, names)
        if spec.output_policy is None and self._policy is not None:
            changes["output_policy"] = self._policy
        if changes:
            spec = msgspec.structs.replace(spec, **changes)
        required = _require(spec, [rule for pattern, rule in self._access if pattern.fullmatch(spec.id)])
        if required != spec.access_control:
            spec = msgspec.structs.replace(spec, access_control=required)
        return operation if spec is operation.spec else msgspec.structs.replace(operation, spec=spec)

    def _names(self, spec: OperationSpec) -> list[str]:
        """Return the names that a pattern may match: name, id without the source's namespace, id, original name."""
        names = [spec.name]
        if self._namespace is not None:
            names.append(spec.id.removeprefix(f"{self._namespace}."))
        names.append(spec.id)
        original = spec.annotations.get("sourceName")
        return [*names, original] if isinstance(original, str) else names

    def _matches(self, patterns: Sequence[tuple[str, re.Pattern[str]]], names: Sequence[str]) -> bool:
        found = [pattern for pattern, compiled in patterns if any(map(compiled.fullmatch, names))]
        self.unused.difference_update(found)
        return bool(found)

    def _renamed(self, spec: OperationSpec, names: Sequence[str]) -> dict[str, Any]:
        """Return the changes to the spec that `rename` and the prefix require; empty if the id stays the same.

        Only the part of the id that the pattern matches is replaced.
        """
        new_id = spec.id
        for old, compiled, new in self._rename:
            matched = next(((name, found) for name in names if (found := compiled.fullmatch(name))), None)
            if matched is not None:
                self.unused.discard(old)
                name, found = matched
                kept = new_id.removesuffix(name) if new_id.endswith(name) else f"{spec.namespace}."
                new_id = kept + _fill_stars(new, found)
                break
        if self._prefix is not None:
            new_id = f"{self._prefix}.{new_id}"
        namespace, _, name = new_id.rpartition(".")
        if new_id == spec.id:
            return {}
        changes: dict[str, Any] = {"namespace": namespace or spec.namespace, "name": name}
        if name != spec.name and "sourceName" not in spec.annotations:
            changes["annotations"] = {**spec.annotations, "sourceName": spec.name}
        return changes


def unmatched(patterns: Iterable[str], ids: Collection[str]) -> list[str]:
    """Return the patterns that match none of the ids."""
    return [pattern for pattern in patterns if not any(map(_compile(pattern).fullmatch, ids))]


def _compile(pattern: str) -> re.Pattern[str]:
    """Compile a pattern: `*` becomes a group that matches any number of characters; `?` matches one character."""
    parts = (re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
    return re.compile("(.*)".join(parts), re.S)


def _fill_stars(new: str, found: re.Match[str]) -> str:
    parts = iter(found.groups())
    return re.sub(r"\*", lambda _: next(parts, ""), new)


def _require(spec: OperationSpec, rules: Sequence[AccessRule]) -> AccessControl:
    """Return an operation's access control with the rules added; rules never remove a requirement."""
    required = spec.access_control
    scopes = list(required.required_scopes)
    any_of = list(required.required_scopes_any)
    resource = required.resource_type, required.resource_action
    for rule in rules:
        scopes += [scope for scope in rule.scopes if scope not in scopes]
        if rule.any:
            any_of = _narrow(spec.id, any_of, rule.any)
        own = rule.resource_type, rule.resource_action
        if own != (None, None):
            if resource not in ((None, None), own):
                raise _contradiction(spec.id, "two rules require different resources")
            resource = own
    if not rules:
        return required
    return AccessControl(tuple(scopes), tuple(any_of), *resource)


def _narrow(operation_id: str, one: list[str], other: Sequence[str]) -> list[str]:
    common = [scope for scope in one if scope in other] if one else list(other)
    if not common:
        raise _contradiction(operation_id, "their `any` lists have no scope in common")
    return common


def _contradiction(operation_id: str, what: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, f"the access rules for {operation_id} contradict each other: {what}")
