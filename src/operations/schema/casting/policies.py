"""Cast policies: casting tries the closed form, then generated code, then repair, and lists the remaining problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from operations.errors import CallError, ErrorCode
from operations.schema.budget import TOO_MUCH_WORK, Budget, ExhaustedError
from operations.schema.cached_attribute import cached_attribute
from operations.schema.casting.closed_form import Closer
from operations.schema.casting.nodes import Node, Nodes
from operations.schema.casting.repair import Repair
from operations.schema.casting.scoring import Scores
from operations.schema.checking.compiling import compiled_form
from operations.schema.checking.costs import Costs
from operations.schema.checking.explaining import Explainer
from operations.schema.checking.messages import show
from operations.schema.checking.secrets import REDACTED
from operations.schema.checking.unrolling import compiled_shallow
from operations.schema.checking.values import count_parts, is_small, pointer, too_deep, too_shared
from operations.schema.dialects.keywords import ANNOTATIONS
from operations.schema.dialects.literals import same
from operations.schema.dialects.traversal import Definition, definitions_of, native_form
from operations.schema.problems import Problem, validation_error

_NORMALISING = ("cast", "total", "strict")
_ROUNDS = 4
_MAX_PROBLEMS = 100_000
_FIRST_PARTS = 1_000
"""Limit of the number of parts of the first values together.

The first values are repaired without closed forms, because compiling these forms would take longer.
"""
_PARTS_PER_VALUE = 100
"""Number that is added to the parts of each of the first values, so that at most ten values are treated as first."""
_PARTS_PER_NODE = 15
"""Number of parts that can be repaired in about the time it takes to generate the code for one node."""
_MISSING = object()
_REJECTING = definitions_of(False)
_ITEMS_ONLY = ANNOTATIONS | {"type", "items", "$ref", "$defs"}
Path = tuple[str | int, ...]
Normalised = tuple[Any, Sequence[Problem]]
Normaliser = Callable[[Any], Any]


class Caster:
    """Casts values to one schema, whose document is already converted."""

    def __init__(
        self,
        nodes: Nodes,
        check: Callable[[Any], bool],
        explainer: Explainer,
        limit: int | None,
        definitions: Mapping[str, Definition],
    ) -> None:
        self._nodes = nodes
        self._definitions = definitions
        self._lock = nodes.lock
        self._check = check
        self._explainer = explainer
        self._limit = limit
        self._last_changed = False
        self._first_parts = _FIRST_PARTS
        self._writes_closed = False
        """Whether closed forms (see `closed_form`) may be generated; false while the first values are cast."""
        self._slow_parts = 0
        """Number of parts of the values that were repaired before generated code was written."""
        self._generated_helps = True
        """Whether generated code is tried; false after a value that neither generated code nor repair changed."""
        self._parts: dict[int, Callable[[Any], bool]] = {}

    def first_entry_points(
        self, usual: Callable[[], tuple[Callable[..., Normalised], Callable[..., Any]]]
    ) -> tuple[Callable[..., Normalised], Callable[..., Any]]:
        """Return the functions behind `Schema.normalise` and `Schema.cast` for the first values.

        These functions generate and compile no closed form. `usual` returns the functions for all other values.
        """

        def normalise(value: Any, policy: str = "cast") -> Normalised:
            return self._normalise_first(value, policy) or usual()[0](value, policy)

        def cast(value: Any, policy: str = "cast") -> Any:
            result = self._normalise_first(value, policy)
            return usual()[1](value, policy) if result is None else _accepted(result, policy)

        return normalise, cast

    def entry_points(self) -> tuple[Callable[..., Normalised], Callable[..., Any]]:
        """Return the functions behind `Schema.normalise` and `Schema.cast`, with the fast paths first.

        A normal value needs only the closed form. If the last value needed normalisation, the generated code runs
        first, until a value needs no normalisation.
        """
        self._writes_closed = True
        is_normal, slow, needs_change = self._is_normal_any_depth, self._normalise, False

        def normalise(value: Any, policy: str = "cast", checked: bool = False) -> Normalised:
            nonlocal needs_change
            try:
                if needs_change:
                    normalised_value = self._quick(value)
                    needs_change = normalised_value is not value
                    if policy in _NORMALISING and is_normal(normalised_value):
                        return normalised_value, ()
                elif not checked and is_normal(value):
                    return value, ()
            except (ValueError, RecursionError):
                pass
            result = slow(value, policy)
            needs_change = self._last_changed
            return result

        def cast(value: Any, policy: str = "cast") -> Any:
            try:
                if not needs_change and is_normal(value):
                    return value
            except ValueError:
                pass
            return _accepted(normalise(value, policy, True), policy)

        return normalise, cast

    def _normalise_first(self, value: Any, policy: str) -> Normalised | None:
        """Normalise a value if it and the values before it have few parts; otherwise return None."""
        if self._writes_closed:
            return None
        if _is_off(policy):
            return value, ()
        self._first_parts -= _PARTS_PER_VALUE + count_parts(value, self._first_parts)
        if self._first_parts < 0 or (self._limit is not None and too_deep(value)):
            return None
        try:
            return self._cast_slowly(value, policy)
        except RecursionError:
            return None
        finally:
            self._generated_helps = True

    def _normalise(self, value: Any, policy: str) -> Normalised:
        if _is_off(policy):
            return value, ()
        if self._limit is None and type(value) is list and self._plain_items is not None:
            return self._normalise_items(value, policy, self._plain_items)
        return self._normalise_whole(value, policy)

    def _normalise_items(self, value: list[Any], policy: str, is_normal: Callable[[Any], bool]) -> Normalised:
        """Normalise the items that are not normal yet as a separate array, and put them back at their indexes."""
        self._last_changed = False
        try:
            places = [place for place, item in enumerate(value) if not is_normal(item)]
        except ValueError:
            places = []  # an item that is not JSON
        if not places or len(places) > len(value) // 2:
            return self._normalise_whole(value, policy)
        items, problems = self._normalise_whole([value[place] for place in places], policy)
        changed = [(place, item) for place, item in zip(places, items, strict=True) if item is not value[place]]
        if changed:
            value = value.copy()
            for place, item in changed:
                value[place] = item
        return value, [replace(problem, path=_moved(problem.path, places)) for problem in problems]

    @cached_attribute
    def _plain_items(self) -> Callable[[Any], bool] | None:
        """A check whether an item is normal; None unless the schema is of arrays and constrains only their items."""
        root = self._nodes.root
        child = root.item(0)
        plain = all(part.keys() <= _ITEMS_ONLY for part in root.parts) and root.types == ("array",)
        check = self._normal_check(child) if plain and child is not None else _never
        return None if check is _never else check

    def _normalise_whole(self, value: Any, policy: str) -> Normalised:
        if not is_small(value):
            if self._limit is not None and too_deep(value):
                return value, self._explainer.problems(value)
            if too_shared(value):
                return value, () if self._check(value) else [Problem("", "", TOO_MUCH_WORK)]
        try:
            if self._limit is not None and self._is_normal_foreign(value):
                return value, ()
            return self._normalised_fast(value) or self._cast_slowly(value, policy)
        except RecursionError:
            return value, [Problem("", "", "nested too deeply to cast")]

    def _normalised_fast(self, value: Any) -> Normalised | None:
        """Return the result of the generated code; None if the result is not normal, or if there is no such code."""
        self._last_changed = False
        if not self._writes_code(value) or not self._generated_helps:
            return None
        for normalise_fast in self._generated or ():
            try:
                result = normalise_fast(value)
                if result is not value and self._is_normal(result):
                    self._last_changed = True
                    return result, ()
            except ValueError:
                continue
        return None

    def _writes_code(self, value: Any) -> bool:
        """Whether the values so far, this one included, have so many parts that code for them is worth writing."""
        limit = _PARTS_PER_NODE * len(self._nodes)
        if self._slow_parts <= limit:
            self._slow_parts += count_parts(value, limit)
        return self._slow_parts > limit

    def _cast_slowly(self, value: Any, policy: str) -> Normalised:
        budget = Budget(value)
        scores = Scores(self._nodes, budget)
        try:
            cast, is_valid = self._repaired(value, budget, scores, total=False)
        except ExhaustedError:
            return value, () if self._check(value) else [Problem("", "", TOO_MUCH_WORK)]
        self._generated_helps = cast is not value
        if policy != "total":
            return cast, () if is_valid else self._explainer.problems(cast, bounded=True, scoring=scores.rescoring)
        try:
            budget = Budget(value)
            result, is_valid = self._repaired(cast, budget, scores.with_budget(budget), total=True)
        except ExhaustedError:
            return cast, () if is_valid else [*self._explainer.problems(cast), Problem("", "", TOO_MUCH_WORK)]
        problems = replacements(cast, result, self._explainer)
        return result, (problems or ()) if is_valid else [*problems, *self._explainer.problems(result)]

    @cached_attribute
    def _closer(self) -> Closer:
        return Closer(self._nodes, self._definitions)

    @cached_attribute
    def _closed(self) -> Mapping[str, Definition]:
        """The closed form; if it would cost more than the later stages, a form that rejects every value."""
        try:
            closed = self._closer.form()
            return closed if Costs(closed).affordable else _REJECTING
        except RecursionError:
            return _REJECTING

    def _normal_check(self, node: Node) -> Callable[[Any], bool]:
        """Return a check whether a value of `node` is already normal, so that repair can skip the value."""
        check = self._parts.get(id(node))
        if check is not None:
            return check
        if not self._writes_closed or node is self._nodes.root or node.source is None or self._closed is _REJECTING:
            return _never
        with self._lock:
            native = compiled_form(native_form(self._closer.form(node.source)))
            check = self._parts[id(node)] = native.is_valid if native is not None else _never
        return check

    @cached_attribute
    def _is_normal(self) -> Callable[[Any], bool]:
        """A check whether a value of bounded depth is valid and already normal."""
        closed = compiled_form(native_form(self._closed))
        return closed.is_valid if closed is not None else _never

    @cached_attribute
    def _is_normal_any_depth(self) -> Callable[[Any], bool]:
        """A check whether a value of any depth is normal; for a recursive schema, it may reject deep values."""
        if self._limit is None:
            return self._is_normal
        shallow = compiled_shallow(self._closed)
        return shallow.is_valid if shallow is not None else lambda value: not too_deep(value) and self._is_normal(value)

    def _is_normal_foreign(self, value: Any) -> bool:
        try:
            return self._is_normal(value)
        except ValueError:
            return False

    @cached_attribute
    def _generated(self) -> tuple[Normaliser, Normaliser] | None:
        from operations.schema.casting.generated import generate

        return generate(self._nodes)

    @cached_attribute
    def _quick(self) -> Normaliser:
        assert self._generated is not None
        return self._generated[0]

    def _repaired(self, value: Any, budget: Budget, scores: Scores, *, total: bool) -> tuple[Any, bool]:
        """Return the cast value, and whether it is valid."""
        result = self._until_stable(value, budget, scores, total=total, careful=False)
        is_valid = self._check(result)
        if is_valid or (result is value and not total):
            return result, is_valid
        if total or self._check(value):
            careful = self._until_stable(value, budget, scores, total=total, careful=True)
            if self._check(careful):
                return careful, True
            if self._check(value):
                return value, True
        return result, False

    def _until_stable(self, value: Any, budget: Budget, scores: Scores, *, total: bool, careful: bool) -> Any:
        """Cast again until nothing changes, at most `_ROUNDS` times, so that casting is idempotent."""
        for _ in range(_ROUNDS):
            repair = Repair(
                self._nodes,
                total=total,
                valid=not self._writes_closed and self._check(value),
                careful=careful,
                normal_check=self._normal_check,
                budget=budget,
                scores=scores,
            )
            result = repair.cast_to(self._nodes.root, value)
            if result is value:
                break
            value = result
        return value


def _moved(path: str, places: Sequence[int]) -> str:
    """Convert the path of a problem in a list of selected items; `places` are their indexes in the whole array."""
    if not path:
        return path
    place, slash, rest = path[1:].partition("/")
    return f"/{places[int(place)]}{slash}{rest}"


def check_only(
    check: Callable[[Any], bool], explainer: Explainer
) -> tuple[Callable[..., Normalised], Callable[..., Any]]:
    """Return the functions of `Caster.entry_points` for a schema whose values are only checked, never cast."""

    def normalise(value: Any, policy: str = "cast") -> Normalised:
        if _is_off(policy) or check(value):
            return value, ()
        return value, [*explainer.problems(value), Problem("", "", TOO_MUCH_WORK)]

    def cast(value: Any, policy: str = "cast") -> Any:
        return _accepted(normalise(value, policy), policy)

    return normalise, cast


def _is_off(policy: str) -> bool:
    """Whether a policy changes no value; raise `VALIDATION_ERROR` for an unknown policy.

    Normal values, which every policy returns unchanged, do not get here.
    """
    if policy not in _NORMALISING and policy != "off":
        message = f"invalid policy {policy!r}: expected one of {', '.join(_NORMALISING)}, off"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return policy == "off"


def _accepted(result: Normalised, policy: str) -> Any:
    """Return a normalised value; under `strict`, raise an error with every problem if there are any."""
    value, problems = result
    if problems and policy == "strict":
        raise validation_error(problems, "the value does not match its schema")
    return value


def _never(value: Any) -> bool:
    return False


def replacements(before: Any, after: Any, explainer: Explainer) -> list[Problem]:
    """Return a Problem for each value that `total` replaced, with the old value and the new value."""
    if before is after:
        return []
    secrets = (explainer.hidden(before), explainer.hidden(after))
    found = []
    for path, old, new in _differences(before, after, ()):
        hidden = any(secret_paths.touches(path) for secret_paths in secrets)
        found.append(_problem(path, old, new, hidden=hidden))
        if len(found) == _MAX_PROBLEMS:
            break
    return found


def _problem(path: Path, old: Any, new: Any, *, hidden: bool) -> Problem:
    shown = REDACTED if hidden else show(new)
    if old is _MISSING:
        return Problem(pointer(path), "", f"was missing and is now {shown}")
    if new is _MISSING:
        return Problem(
            pointer(path), "", f"{REDACTED if hidden else show(old)} was removed", REDACTED if hidden else old
        )
    before = REDACTED if hidden else show(old)
    return Problem(pointer(path), "", f"{before} was replaced by {shown}", REDACTED if hidden else old)


def _differences(before: Any, after: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    if before is after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            yield from _pair(before.get(name, _MISSING), after.get(name, _MISSING), (*path, name))
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        for index in range(max(len(before), len(after))):
            old = before[index] if index < len(before) else _MISSING
            yield from _pair(old, after[index] if index < len(after) else _MISSING, (*path, index))
    elif not same(before, after):
        yield path, before, after


def _pair(old: Any, new: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    if old is _MISSING or new is _MISSING:
        yield path, old, new
    else:
        yield from _differences(old, new, path)
