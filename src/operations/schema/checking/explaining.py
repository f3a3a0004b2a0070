"""Problems of a value: messages from native errors, with secrets redacted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec

from operations.schema.budget import Budget, ExhaustedError
from operations.schema.checking.compiling import Parts, Union
from operations.schema.checking.diagnosing import TOO_MUCH_WORK, Cause, Diagnosis
from operations.schema.checking.messages import expected_type, message_of, secret_message_of, show, union_message
from operations.schema.checking.secrets import REDACTED, Hidden, Path, Secrets
from operations.schema.checking.values import (
    MAX_PARTS,
    Foreign,
    as_json,
    existing_path,
    has_large_object,
    has_more_parts,
    pointer,
    too_deep,
    too_shared,
)
from operations.schema.problems import Found, Problem

_NATIVE_DEPTH = 200
_MAX_COUNTED = 100_000
_TOO_DEEP = "nested deeper than"
_MAX_PROBLEMS = 100
_MAX_SHOWN_PARTS = 1_000
"""Maximum size of a value that is included in its problem, if the number of problems is limited."""
_ONLY_FIRST = Problem("", "", f"more than {MAX_PARTS:,} values: at most one problem is listed")
_MORE = Problem("", "", f"more than {_MAX_PROBLEMS} problems: the others are not listed")
_MAX_NESTED = 100
_LAST = 1 << 62
_Error = jsonschema_rs.ValidationError
_Kind = jsonschema_rs.ValidationErrorKind
Scoring = Callable[[Budget], Callable[[list[Any], Any], list[int]]]
"""Returns a function that scores the branches of a union for a value, within a budget."""


class Strategy(NamedTuple):
    """How problems are found: by the native engine (with the native form of the schema if possible) or step by step."""

    parts: Parts | None = None
    """The parts of the schema, if the native engine uses the schema's native form; otherwise None."""
    diagnosis: Diagnosis | None = None
    refused: bool = False
    """Whether every value is rejected, because every way to check it would be too costly."""
    has_unions: bool = False
    """Whether the schema has unions."""


class Explainer:
    """Lists the problems of values by one compiled schema."""

    def __init__(
        self,
        secrets: Secrets,
        validator: Callable[[], jsonschema_rs.Validator | None],
        limit: int | None,
        scoring: Scoring,
        strategy: Callable[[], Strategy],
    ) -> None:
        self._secrets = secrets
        self._compile = validator
        self._limit = limit
        self._scoring = scoring
        self._strategy = strategy

    @property
    def _validator(self) -> jsonschema_rs.Validator | None:
        return self._compile()

    def check_foreign(self, value: Any) -> bool:
        """Check a value that the native engine cannot read: bytes count as strings, other objects are invalid.

        Bytes equal no string of an `enum` or `const`, but a pattern applies to their content.
        """
        copy = as_json(value)
        validator = self._validator
        if copy.foreign or validator is None:
            return not copy.foreign
        try:
            return bool(validator.is_valid(copy.value) and validator.is_valid(as_json(value, content=True).value))
        except ValueError:
            return False

    def hidden(self, value: Any) -> Hidden:
        """Return the paths in `value` whose content must never be printed."""
        return self._secrets.secret_paths(value)

    def listed(self, value: Any) -> list[Problem]:
        """Return at most `_MAX_PROBLEMS` problems of a value known to be invalid.

        Of a value with more than `MAX_PARTS` parts, only one problem is listed. If others are not listed, a further
        entry says so. A problem does not include a value with more than `_MAX_SHOWN_PARTS` parts.
        """
        is_large = has_more_parts(value, MAX_PARTS)
        problems = [_without_large(each) for each in self.problems(value, most=1 if is_large else _MAX_PROBLEMS + 1)]
        if len(problems) > _MAX_PROBLEMS:
            return [*problems[:_MAX_PROBLEMS], _MORE]
        is_refused = problems[0].message == TOO_MUCH_WORK or problems[0].message.startswith(_TOO_DEEP)
        if not is_large or is_refused or self._strategy().diagnosis is not None:
            return problems
        return [*problems, _ONLY_FIRST]

    def problems(
        self, value: Any, *, bounded: bool = False, scoring: Scoring | None = None, most: int = _MAX_COUNTED
    ) -> list[Problem]:
        """Return every problem of a value known to be invalid; at least one.

        `most` is the maximum number of problems; if it is 1, the native engine stops at the first. With `bounded`, the
        value is known not to be `too_deep` or `too_shared`. `scoring` reuses the scores of an earlier cast.
        """
        if not bounded and self._limit is not None and too_deep(value, self._limit):
            return [Problem("", "", f"{_TOO_DEEP} {self._limit} levels")]
        strategy = self._strategy()
        if strategy.refused or (not bounded and too_shared(value)):
            return [Problem("", "", TOO_MUCH_WORK)]
        causes, foreign = self._causes(value, strategy, scoring or self._scoring, most)
        found = [Problem(pointer(item.path), "", f"{item.what} is not JSON") for item in foreign[:most]]
        printer = _Printer(value, self._secrets.secret_paths(value))
        for cause in causes:
            found.append(printer.problem(cause))
            if len(found) >= most:
                break
        return _ordered(found) or [Problem("", "", "does not match the schema")]

    def joined(self, value: Any, problems: list[Problem], found: Sequence[Found]) -> list[Problem]:
        """Return `problems`, with the problems in `found` added.

        A problem in `found` is left out if `problems` has one at the same path or below.
        """
        printer = _Printer(value, self._secrets.secret_paths(value))
        reported = {path[:end] for path in (problem.path for problem in problems) for end in _ends(path)}
        others = []
        for path, message in found:
            existing = existing_path(value, path)
            if pointer(existing) not in reported:
                others.append(printer.found(path, existing, message))
        return _ordered([*problems, *others])

    def _causes(self, value: Any, strategy: Strategy, scoring: Scoring, most: int) -> tuple[list[Cause], list[Foreign]]:
        """Return the causes, and the parts of the value that are not JSON."""
        if strategy.diagnosis is None:
            try:
                return self._found(value, strategy, scoring, most), []
            except ValueError:
                pass
        depth = _NATIVE_DEPTH if strategy.diagnosis is None else None
        copy = as_json(value, depth=depth)
        try:
            causes = self._found(copy.value, strategy, scoring, most)
            if not causes and not copy.foreign:
                causes = self._found(as_json(value, depth=depth, content=True).value, strategy, scoring, most)
        except ValueError:
            return [], copy.foreign
        foreign = {item.path for item in copy.foreign}
        if strategy.diagnosis is None:
            causes = [cause for cause in causes if len(cause.path) < _NATIVE_DEPTH]
        return [cause for cause in causes if cause.path not in foreign], copy.foreign

    def _found(self, value: Any, strategy: Strategy, scoring: Scoring, most: int) -> list[Cause]:
        causes: Iterator[Cause] = iter(())
        if strategy.diagnosis is not None:
            causes = strategy.diagnosis.causes(value)
        elif most == 1:
            causes = self._first(value, strategy)
        elif (validator := self._validator) is not None:
            explain = _explained if strategy.parts is None else _Unions(strategy.parts, scoring, value).explain
            causes = (cause for error in validator.iter_errors(value) for cause in explain(error))
        return [cause for cause, _ in zip(causes, range(most), strict=False)]

    def _first(self, value: Any, strategy: Strategy) -> Iterator[Cause]:
        """Yield the first cause of a large value; none if the native engine would take long to explain the value.

        The engine would explain every branch of a union, and copy an object whose properties are not allowed.
        """
        validator, parts = self._validator, strategy.parts
        if validator is None or (parts is None and strategy.has_unions) or has_large_object(value, MAX_PARTS):
            return
        try:
            validator.validate(value)
        except _Error as error:
            path, union = (error.schema_path, None) if parts is None else parts.locate(tuple(error.schema_path))
            words = None if union is None else union_message(len(union.branches), [])
            yield Cause(tuple(error.instance_path), pointer(path), None if union else error.kind, words=words)


class _Printer:
    """Formats the problems of one value; the text for each path is cached."""

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

    def found(self, path: str, existing: Path, message: str) -> Problem:
        """Return a problem that another check found at `path`; `existing` is the beginning of `path` that exists in the
        value.
        """
        value, _, secret = self._show(existing)
        if secret and _quotes(message, _at(self._root, existing)):
            message = "does not match its type"
        return Problem(path, "", message, value if pointer(existing) == path else msgspec.UNSET)

    def _show(self, path: Path) -> tuple[Any, str, bool]:
        if self._hidden.covers(path):
            return REDACTED, REDACTED, True
        value = _at(self._root, path)
        shown = self._hidden.redacted(value, path)
        return shown, show(shown), shown is not value


def _without_large(problem: Problem) -> Problem:
    """Return the problem, without its value if the value has more than `_MAX_SHOWN_PARTS` parts."""
    is_large = has_more_parts(problem.value, _MAX_SHOWN_PARTS)
    return msgspec.structs.replace(problem, value=msgspec.UNSET) if is_large else problem


class _Unions:
    """Explains why the unions of a schema reject a value, by the problems of the branch that casting would choose.

    When the budget of work is spent, the explanation says only that no branch matches.
    """

    def __init__(self, parts: Parts, scoring: Scoring, root: Any) -> None:
        self._parts = parts
        self._root = root
        self._budget = Budget(root)
        self._scores = scoring(self._budget)
        self._trail: list[tuple[Path, int]] = []

    def explain(self, error: _Error, base: Path = ()) -> Iterator[Cause]:
        """Yield the causes of one native error; `base` is the path of the value that the native engine has checked."""
        path = (*base, *error.instance_path)
        schema_path, union = self._parts.locate(tuple(error.schema_path))
        if union is None:
            yield from (cause._replace(path=(*base, *cause.path)) for cause in _explained(error, self._parts))
            return
        whole, best = self._summary(union, path)
        if whole is not None:
            yield Cause(path, pointer(schema_path), None, words=whole)
            return
        note = f" (in the closest of {len(union.branches)} forms)"
        self._trail.append((path, id(union.branches)))
        for inner in best:
            for cause in self.explain(inner, path):
                yield cause if cause.note else cause._replace(note=note)
        self._trail.pop()

    def _summary(self, union: Union, path: Path) -> tuple[str | None, list[_Error]]:
        """Explain a union with `_context`; if that is too much work, return only that no branch matches."""
        try:
            if len(self._trail) <= _MAX_NESTED and (path, id(union.branches)) not in self._trail:
                return self._context(union, path)
        except (ExhaustedError, RecursionError):
            pass
        return union_message(len(union.branches), []), []

    def _context(self, union: Union, path: Path) -> tuple[str | None, list[_Error]]:
        """Return the message for a union as a whole, or the errors of its best branch."""
        value = _at(self._root, path)
        if union.keyword == "oneOf" and any(self._is_valid(branch, value) for branch in union.branches):
            return " matches more than one form: exactly one is allowed", []
        scores = self._scores(union.branches, value)
        if max(scores) > 0:
            best = self._errors(union.branches[scores.index(max(scores))], value)
            if best and not _same_place_type(best, 0):
                return None, best
        context = [self._errors(branch, value) for branch in union.branches]
        best = max(filter(None, context), key=lambda branch: _closeness(branch, 0), default=[])
        if best and not _same_place_type(best, 0):
            return None, best
        return union_message(len(context), [expected_type(errors) for errors in context]), []

    def _is_valid(self, branch: Any, value: Any) -> bool:
        self._budget.spend()
        validator = None if isinstance(branch, bool) else self._parts.compiled((branch,))
        return branch is not False if validator is None else validator.is_valid(value)

    def _errors(self, branch: Any, value: Any) -> list[_Error]:
        errors = []
        validator = None if isinstance(branch, bool) else self._parts.compiled((branch,))
        for error in () if validator is None else validator.iter_errors(value):
            self._budget.spend()
            errors.append(error)
        return errors


def _ordered(problems: list[Problem]) -> list[Problem]:
    """Sort problems in the order of the value; problems of an object or array come after the problems of its contents.

    The native order depends on how keywords were compiled.
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
    """Whether a message shows any part of a value."""
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
    """Return the length of each parent of a pointer, and the length of the pointer itself."""
    return [index for index, character in enumerate(path) if character == "/"] + [len(path)]


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _explained(error: _Error, parts: Parts | None = None) -> Iterator[Cause]:
    """Yield the causes of one native error; for a union, the causes in the closest branch."""
    kind = error.kind
    schema_path = error.schema_path if parts is None else parts.locate(tuple(error.schema_path))[0]
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
        for cause in _explained(inner, parts):
            yield cause if cause.note else cause._replace(note=note)


def _same_place_type(branch: Sequence[_Error], depth: int) -> bool:
    return any(isinstance(e.kind, _Kind.Type) and len(e.instance_path) == depth for e in branch)


def _closeness(branch: Sequence[_Error], depth: int) -> tuple[bool, bool, int]:
    literal = any(isinstance(e.kind, _Kind.Constant | _Kind.Enum) and len(e.instance_path) <= depth + 1 for e in branch)
    return not _same_place_type(branch, depth), not literal, -len(branch)
