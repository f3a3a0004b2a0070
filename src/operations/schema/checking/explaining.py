"""What is wrong with a value, in words: native errors become Problems, with secrets kept out of sight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema_rs

from operations.schema.checking.messages import message_of, show
from operations.schema.checking.secrets import Secrets
from operations.schema.checking.values import Foreign, as_json, pointer, too_deep
from operations.schema.problems import Problem

REDACTED = "[redacted]"
_NATIVE_DEPTH = 200
_MAX_PROBLEMS = 100_000
_LAST = 1 << 62
_Error = jsonschema_rs.ValidationError
_Kind = jsonschema_rs.ValidationErrorKind


class Explainer:
    """Lists the problems of values by one compiled schema."""

    def __init__(
        self, document: dict[str, Any] | bool, validator: jsonschema_rs.Validator | None, limit: int | None
    ) -> None:
        self._validator = validator
        self._limit = limit
        self._secrets = Secrets(document)

    def check_foreign(self, value: Any) -> bool:
        """Check a value the native engine could not read: bytes count as strings, other objects never fit."""
        copy = as_json(value)
        if copy.foreign or self._validator is None:
            return not copy.foreign
        try:
            return bool(self._validator.is_valid(copy.value))
        except ValueError:
            return False

    def secret_paths(self, value: Any) -> set[tuple[str | int, ...]]:
        """The places of `value` that must never be printed."""
        return self._secrets.paths(value)

    def problems(self, value: Any) -> list[Problem]:
        """Every problem of a value known not to fit; at least one."""
        if self._limit is not None and too_deep(value, self._limit):
            return [Problem("", "", f"nested deeper than {self._limit} levels")]
        secret_paths = self._secrets.paths(value)
        errors, foreign = self._native_errors(value)
        found = [Problem(pointer(item.path), "", f"{item.what} is not JSON") for item in foreign[:_MAX_PROBLEMS]]
        for error in errors:
            found.extend(self._explain(error, value, secret_paths))
            if len(found) >= _MAX_PROBLEMS:
                break
        return _ordered(found) or [Problem("", "", "does not fit the schema")]

    def _native_errors(self, value: Any) -> tuple[list[_Error], list[Foreign]]:
        """What the native engine finds, and what it could not read; the latter is looked for only if it says so."""
        if self._validator is None:
            return [], []
        try:
            return _first(self._validator.iter_errors(value)), []
        except ValueError:
            copy = as_json(value, depth=_NATIVE_DEPTH)
        try:
            errors = _first(self._validator.iter_errors(copy.value))
        except ValueError:
            return [], copy.foreign
        foreign = {item.path for item in copy.foreign}
        shallow = (error for error in errors if len(error.instance_path) < _NATIVE_DEPTH)
        return [error for error in shallow if tuple(error.instance_path) not in foreign], copy.foreign

    def _explain(self, error: _Error, root: Any, secrets: set[tuple[str | int, ...]]) -> Iterator[Problem]:
        for cause, note in _causes(error):
            path = tuple(cause.instance_path)
            value, printed = self._shown(root, path, secrets)
            yield Problem(
                pointer(path), pointer(cause.schema_path), message_of(cause.kind, printed, value) + note, value
            )

    def _shown(self, root: Any, path: tuple[str | int, ...], secrets: set[tuple[str | int, ...]]) -> tuple[Any, str]:
        if any(path[: len(secret)] == secret for secret in secrets):
            return REDACTED, REDACTED
        value = _at(root, path)
        inside = [secret[len(path) :] for secret in secrets if secret[: len(path)] == path]
        for place in inside:
            value = _redacted(value, place)
        return value, show(value)


def _ordered(problems: list[Problem]) -> list[Problem]:
    """Problems in the order of the value, those of an object or array after those of what it holds.

    The native order depends on how keywords were compiled together, which is nobody's business.
    """
    ranks: dict[str, int] = {}
    keys = []
    for problem in problems:
        prefix, key = "", []
        for part in problem.path.split("/")[1:]:
            prefix += "/" + part
            key.append(ranks.setdefault(prefix, len(ranks)))
        keys.append(([*key, _LAST], problem.schema_path))
    return [problems[index] for index in sorted(range(len(problems)), key=keys.__getitem__)]


def _first(errors: Iterator[_Error]) -> list[_Error]:
    return [error for error, _ in zip(errors, range(_MAX_PROBLEMS), strict=False)]


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _redacted(value: Any, path: Sequence[str | int]) -> Any:
    """A copy of `value`, changed along `path` only, whose member at `path` is hidden."""
    if not path:
        return REDACTED
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _redacted(copy[path[0]], path[1:])
    return copy


def _causes(error: _Error) -> Iterator[tuple[_Error, str]]:
    """The errors to report for one native error: for a union, those of the variant that fits best."""
    kind = error.kind
    if not isinstance(kind, _Kind.AnyOf | _Kind.OneOfNotValid):
        yield error, ""
        return
    branches = [branch for branch in kind.context if branch]
    best = max(branches, key=lambda branch: _closeness(branch, error), default=[])
    if not best or _same_place_type(best, error):
        yield error, ""
        return
    note = f" (in the closest of {len(kind.context)} forms)" if len(kind.context) > 1 else ""
    for inner in best:
        for cause, inner_note in _causes(inner):
            yield cause, inner_note or note


def _same_place_type(branch: Sequence[_Error], error: _Error) -> bool:
    depth = len(error.instance_path)
    return any(isinstance(e.kind, _Kind.Type) and len(e.instance_path) == depth for e in branch)


def _closeness(branch: Sequence[_Error], error: _Error) -> tuple[bool, bool, int]:
    depth = len(error.instance_path)
    literal = any(isinstance(e.kind, _Kind.Constant | _Kind.Enum) and len(e.instance_path) <= depth + 1 for e in branch)
    return not _same_place_type(branch, error), not literal, -len(branch)
