"""What is wrong with a value, in words: native errors become Problems, with secrets kept out of sight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec

from operations.schema.budget import Budget, ExhaustedError
from operations.schema.checking.diagnosing import TOO_MUCH_WORK, Cause, Diagnosis
from operations.schema.checking.messages import message_of, secret_message_of, show, type_asked, union_message
from operations.schema.checking.outline import Outline, Union
from operations.schema.checking.secrets import REDACTED, Hidden, Path, Secrets
from operations.schema.checking.values import Foreign, as_json, pointer, reached, too_deep, too_shared
from operations.schema.problems import Found, Problem

_NATIVE_DEPTH = 200
_MAX_PROBLEMS = 100_000
_MAX_NESTED = 100
_LAST = 1 << 62
_Error = jsonschema_rs.ValidationError
_Kind = jsonschema_rs.ValidationErrorKind
Scoring = Callable[[Budget], Callable[[list[Any], Any], list[int]]]
"""For a budget, the function that scores the branches of a union by how well a value fits them."""


class Means(NamedTuple):
    """By what the problems of a schema are found: natively, with or without its outline, or step by step."""

    outline: Outline | None = None
    diagnosis: Diagnosis | None = None
    refused: bool = False
    """Whether nothing can be afforded, so that every value is refused."""


class Explainer:
    """Lists the problems of values by one compiled schema."""

    def __init__(
        self,
        document: dict[str, Any] | bool,
        validator: jsonschema_rs.Validator | None,
        limit: int | None,
        scoring: Scoring,
        means: Callable[[], Means],
    ) -> None:
        self._validator = validator
        self._limit = limit
        self._scoring = scoring
        self._means = means
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

    def hidden(self, value: Any) -> Hidden:
        """The places of `value` that must never be printed."""
        return self._secrets.places(value)

    def problems(self, value: Any) -> list[Problem]:
        """Every problem of a value known not to fit; at least one."""
        if self._limit is not None and too_deep(value, self._limit):
            return [Problem("", "", f"nested deeper than {self._limit} levels")]
        means = self._means()
        if means.refused or too_shared(value):
            return [Problem("", "", TOO_MUCH_WORK)]
        causes, foreign = self._causes(value, means)
        found = [Problem(pointer(item.path), "", f"{item.what} is not JSON") for item in foreign[:_MAX_PROBLEMS]]
        printer = _Printer(value, self._secrets.places(value))
        for cause in causes:
            found.append(printer.problem(cause))
            if len(found) >= _MAX_PROBLEMS:
                break
        return _ordered(found) or [Problem("", "", "does not fit the schema")]

    def joined(self, value: Any, problems: list[Problem], found: Sequence[Found]) -> list[Problem]:
        """`problems`, and what else was found at places that none of them speaks of."""
        printer = _Printer(value, self._secrets.places(value))
        told = {path[:end] for path in (problem.path for problem in problems) for end in _ends(path)}
        others = []
        for path, message in found:
            place = reached(value, path)
            if pointer(place) not in told:
                others.append(printer.found(path, place, message))
        return _ordered([*problems, *others])

    def _causes(self, value: Any, means: Means) -> tuple[list[Cause], list[Foreign]]:
        """What was found, and what could not be read; the latter is looked for only if the native engine says so."""
        if means.diagnosis is None:
            try:
                return self._found(value, means), []
            except ValueError:
                pass
        copy = as_json(value, depth=_NATIVE_DEPTH if means.diagnosis is None else None)
        try:
            causes = self._found(copy.value, means)
        except ValueError:
            return [], copy.foreign
        foreign = {item.path for item in copy.foreign}
        if means.diagnosis is None:
            causes = [cause for cause in causes if len(cause.path) < _NATIVE_DEPTH]
        return [cause for cause in causes if cause.path not in foreign], copy.foreign

    def _found(self, value: Any, means: Means) -> list[Cause]:
        causes: Iterator[Cause] = iter(())
        if means.diagnosis is not None:
            causes = means.diagnosis.causes(value)
        elif means.outline is not None:
            unions = _Unions(means.outline, self._scoring, value)
            causes = (cause for error in means.outline.errors(value) for cause in unions.explain(error, ()))
        elif self._validator is not None:
            causes = (cause for error in self._validator.iter_errors(value) for cause in _explained(error))
        return [cause for cause, _ in zip(causes, range(_MAX_PROBLEMS), strict=False)]


class _Printer:
    """Writes the problems of one value, each place of it shown once."""

    def __init__(self, root: Any, hidden: Hidden) -> None:
        self._root = root
        self._hidden = hidden
        self._shown: dict[Path, tuple[Any, str, bool]] = {}

    def problem(self, cause: Cause) -> Problem:
        if cause.path not in self._shown:
            self._shown[cause.path] = self._show(cause.path)
        value, printed, secret = self._shown[cause.path]
        if cause.words is not None:
            message = printed + cause.words if cause.words.startswith(" ") else cause.words
        else:
            message = (secret_message_of if secret else message_of)(cause.kind, printed, value)
        return Problem(pointer(cause.path), cause.schema_path, message + cause.note, value)

    def found(self, path: str, place: Path, message: str) -> Problem:
        """A problem that something else found at `path`; `place` is as much of it as there is in the value."""
        value, _, secret = self._show(place)
        if secret and _quotes(message, _at(self._root, place)):
            message = "does not fit its type"
        return Problem(path, "", message, value if pointer(place) == path else msgspec.UNSET)

    def _show(self, path: Path) -> tuple[Any, str, bool]:
        if self._hidden.covers(path):
            return REDACTED, REDACTED, True
        value = _at(self._root, path)
        shown = self._hidden.redacted(value, path)
        return shown, show(shown), shown is not value


class _Unions:
    """Explains the unions that refuse one value: by the branch that casting would choose, as far as the budget goes."""

    def __init__(self, outline: Outline, scoring: Scoring, root: Any) -> None:
        self._outline = outline
        self._root = root
        self._budget = Budget(root)
        self._scores = scoring(self._budget)
        self._trail: list[tuple[Path, str]] = []

    def explain(self, error: _Error, base: Path) -> Iterator[Cause]:
        """The causes to report for one native error, found below `base`."""
        path = (*base, *error.instance_path)
        schema_path, union = self._outline.locate(error.schema_path)
        if union is None:
            yield from (cause._replace(path=(*base, *cause.path)) for cause in _explained(error, self._outline))
            return
        whole, best = self._summary(union, path)
        if whole is not None:
            yield Cause(path, pointer(schema_path), None, words=whole)
            return
        note = f" (in the closest of {len(union.branches)} forms)"
        self._trail.append((path, union.pointer))
        for inner in best:
            for cause in self.explain(inner, path):
                yield cause if cause.note else cause._replace(note=note)
        self._trail.pop()

    def _summary(self, union: Union, path: Path) -> tuple[str | None, list[_Error]]:
        """What `_context` says; where it is too much work, or explained by itself, that no branch fits."""
        try:
            if len(self._trail) <= _MAX_NESTED and (path, union.pointer) not in self._trail:
                return self._context(union, path)
        except (ExhaustedError, RecursionError):
            pass
        return union_message(len(union.branches), []), []

    def _context(self, union: Union, path: Path) -> tuple[str | None, list[_Error]]:
        """The words for a union as a whole, or else the errors of its best branch."""
        value = _at(self._root, path)
        if union.keyword == "oneOf" and self._fits_one(union, value):
            return " fits more than one form, where exactly one is allowed", []
        scores = self._scores(union.branches, value)
        if max(scores) > 0:
            best = self._errors(union, scores.index(max(scores)), value)
            if best and not _same_place_type(best, 0):
                return None, best
        context = [self._errors(union, index, value) for index in range(len(union.branches))]
        best = max(filter(None, context), key=lambda branch: _closeness(branch, 0), default=[])
        if best and not _same_place_type(best, 0):
            return None, best
        return union_message(len(context), [type_asked(errors) for errors in context]), []

    def _fits_one(self, union: Union, value: Any) -> bool:
        return any(not self._first(union, index, value) for index in range(len(union.branches)))

    def _first(self, union: Union, index: int, value: Any) -> list[_Error]:
        self._budget.spend()
        return [error for error, _ in zip(self._outline.errors(value, f"{union.pointer}/{index}"), (0,), strict=False)]

    def _errors(self, union: Union, index: int, value: Any) -> list[_Error]:
        errors = []
        for error in self._outline.errors(value, f"{union.pointer}/{index}"):
            self._budget.spend()
            errors.append(error)
        return errors


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


def _quotes(message: str, value: Any) -> bool:
    """Whether a message shows anything of a value."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            pending += item.values()
        elif isinstance(item, list | tuple):
            pending += item
        elif str(item) in message:
            return True
    return False


def _ends(path: str) -> list[int]:
    """Where a pointer and those of everything around its place end."""
    return [index for index, character in enumerate(path) if character == "/"] + [len(path)]


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _explained(error: _Error, outline: Outline | None = None) -> Iterator[Cause]:
    """The causes to report for one native error: for a union, those of the variant that seems to fit best."""
    kind = error.kind
    schema_path = error.schema_path if outline is None else outline.locate(error.schema_path)[0]
    whole = Cause(tuple(error.instance_path), pointer(schema_path), kind)
    if not isinstance(kind, _Kind.AnyOf | _Kind.OneOfNotValid):
        yield whole
        return
    depth = len(error.instance_path)
    branches = [branch for branch in kind.context if branch]
    best = max(branches, key=lambda branch: _closeness(branch, depth), default=[])
    if not best or _same_place_type(best, depth):
        yield whole
        return
    note = f" (in the closest of {len(kind.context)} forms)" if len(kind.context) > 1 else ""
    for inner in best:
        for cause in _explained(inner, outline):
            yield cause if cause.note else cause._replace(note=note)


def _same_place_type(branch: Sequence[_Error], depth: int) -> bool:
    return any(isinstance(e.kind, _Kind.Type) and len(e.instance_path) == depth for e in branch)


def _closeness(branch: Sequence[_Error], depth: int) -> tuple[bool, bool, int]:
    literal = any(isinstance(e.kind, _Kind.Constant | _Kind.Enum) and len(e.instance_path) <= depth + 1 for e in branch)
    return not _same_place_type(branch, depth), not literal, -len(branch)
