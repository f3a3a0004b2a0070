"""Step-by-step diagnosis of invalid values, for schemas whose errors the native engine would take too long to list.

Each schema is applied to each path once. A failed union is reported as such; its branches are not explained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jsonschema_rs

from operations.schema.budget import Budget, ExhaustedError
from operations.schema.checking.evaluating import Evaluation, Evaluator, located_parts
from operations.schema.checking.messages import names, union_message
from operations.schema.checking.secrets import Path, target_of
from operations.schema.checking.values import pointer, pointer_segment

TOO_MUCH_WORK = "too much work to check"
_FORBIDDEN = " is not allowed here"


class Cause(NamedTuple):
    """A violated rule at one path."""

    path: Path
    schema_path: str
    """JSON pointer to the rule."""
    kind: Any
    note: str = ""
    words: str | None = None
    """The message, if it is not derived from `kind`.

    If the message starts with a space, the printed value is put before it.
    """


class _Task(NamedTuple):
    """A schema to explain at one path of the value."""

    schema: Any
    value: Any
    path: Path
    pointer: str
    """JSON pointer of the schema, used if the schema is not an object."""


class Diagnosis:
    """Explains why values are invalid, by one converted schema document."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._pointers = dict(_pointers(evaluator.document))

    def causes(self, value: Any) -> Iterator[Cause]:
        """Yield the violated rules of a plain value; if the budget is used up, the last item reports this."""
        budget = Budget(value)
        explaining = _Explaining(self._evaluator, self._pointers, budget)
        pending = [_Task(self._evaluator.document, value, (), "")]
        seen: set[tuple[int, Path]] = set()
        try:
            while pending:
                task = pending.pop()
                if (id(task.schema), task.path) in seen or explaining.is_valid(task):
                    continue
                seen.add((id(task.schema), task.path))
                budget.spend(1 + len(task.path))
                yield from explaining.causes(task, pending)
        except ExhaustedError:
            yield Cause((), "", None, words=TOO_MUCH_WORK)


def _pointers(document: Any) -> Iterator[tuple[int, str]]:
    """Yield the id() and the JSON pointer of every object in a document."""
    pending = [(document, "")]
    while pending:
        node, written = pending.pop()
        if isinstance(node, dict):
            yield id(node), written
        elif not isinstance(node, list):
            continue
        members: Iterable[tuple[Any, Any]] = node.items() if isinstance(node, dict) else enumerate(node)
        pending += [(item, f"{written}/{pointer_segment(str(key))}") for key, item in members]


class _Explaining:
    """Finds the rules that one value violates, one schema at a time."""

    def __init__(self, evaluator: Evaluator, pointers: dict[int, str], budget: Budget) -> None:
        self._evaluator = evaluator
        self._pointers = pointers
        self._evaluation: Evaluation = evaluator.evaluation(budget)

    def is_valid(self, task: _Task) -> bool:
        return self._evaluation.is_valid(task.schema, task.value)

    def causes(self, task: _Task, pending: list[_Task]) -> Iterator[Cause]:
        """Yield the rules of the task's own schema that the value violates; add the sub-schemas to `pending`."""
        if not isinstance(task.schema, dict):
            yield Cause(task.path, task.pointer, None, words=_FORBIDDEN)
            return
        task = task._replace(pointer=self._pointers[id(task.schema)])
        pending += self._following(task)
        yield from self._asserted(task)
        yield from self._decided(task)
        if isinstance(task.value, dict):
            yield from self._of_object(task)
        elif isinstance(task.value, list):
            yield from self._of_array(task)

    def _following(self, task: _Task) -> Iterator[_Task]:
        schema, value, path, at = task
        if "$ref" in schema:
            yield _Task(target_of(schema["$ref"], self._evaluator.document), value, path, f"{at}/$ref")
        for index, child in enumerate(schema.get("allOf", ())):
            yield _Task(child, value, path, f"{at}/allOf/{index}")
        if "if" in schema:
            branch = "then" if self._evaluation.is_valid(schema["if"], value) else "else"
            yield _Task(schema.get(branch, True), value, path, f"{at}/{branch}")
        if isinstance(value, dict):
            for name, child in schema.get("dependentSchemas", {}).items():
                if name in value:
                    yield _Task(child, value, path, f"{at}/dependentSchemas/{pointer_segment(name)}")
        for child, key, where in located_parts(schema, value):
            if where != ("additionalProperties",) or child is not False:
                yield _Task(child, value[key], (*path, key), at + pointer(where))

    def _asserted(self, task: _Task) -> Iterator[Cause]:
        native = self._evaluator.asserting(task.schema)
        if native is None:
            return
        try:
            errors: list[jsonschema_rs.ValidationError] = list(native.iter_errors(task.value))
        except ValueError:
            yield Cause(task.path, task.pointer, None, words=" is not JSON")
            return
        for error in errors:
            yield Cause(task.path, f"{task.pointer}/{error.schema_path[0]}", error.kind)

    def _decided(self, task: _Task) -> Iterator[Cause]:
        """Yield the unions and negations that reject the value."""
        schema, value, path, pointer = task
        is_valid = self._evaluation.is_valid
        if "anyOf" in schema and not any(is_valid(branch, value) for branch in schema["anyOf"]):
            yield Cause(path, f"{pointer}/anyOf", None, words=union_message(len(schema["anyOf"]), []))
        if "oneOf" in schema:
            count = sum(is_valid(branch, value) for branch in schema["oneOf"])
            words = " matches more than one form: exactly one is allowed"
            if count == 0:
                words = union_message(len(schema["oneOf"]), [])
            if count != 1:
                yield Cause(path, f"{pointer}/oneOf", None, words=words)
        if "not" in schema and is_valid(schema["not"], value):
            yield Cause(path, f"{pointer}/not", None, words=" matches a form that is not allowed")

    def _of_object(self, task: _Task) -> Iterator[Cause]:
        schema, value, path, pointer = task
        extra: dict[str, list[Any]] = {}
        if schema.get("additionalProperties") is False:
            located = located_parts(schema, value)
            extra["additionalProperties"] = [key for _, key, at in located if at == ("additionalProperties",)]
        if "unevaluatedProperties" in schema:
            extra["unevaluatedProperties"] = self._unevaluated(task, "unevaluatedProperties")
        for keyword, found in extra.items():
            if found:
                words = f"has properties that are not allowed: {names(found)}"
                yield Cause(path, f"{pointer}/{keyword}", None, words=words)
        inner = schema.get("propertyNames", True)
        if not all(self._evaluation.is_valid(inner, name) for name in value):
            yield Cause(path, f"{pointer}/propertyNames", None, words="has a property whose name is not allowed")

    def _of_array(self, task: _Task) -> Iterator[Cause]:
        schema, value, path, pointer = task
        if "contains" in schema:
            count = sum(self._evaluation.is_valid(schema["contains"], item) for item in value)
            if not schema.get("minContains", 1) <= count <= schema.get("maxContains", count):
                words = "has too few or too many items that match `contains`"
                yield Cause(path, f"{pointer}/contains", None, words=words)
        if "unevaluatedItems" in schema and self._unevaluated(task, "unevaluatedItems"):
            yield Cause(path, f"{pointer}/unevaluatedItems", None, words="has items that are not allowed")

    def _unevaluated(self, task: _Task, keyword: str) -> list[str | int]:
        """Return the properties or items that are rejected because no other rule covers them."""
        child = task.schema[keyword]
        keys = self._evaluation.unevaluated(task.schema, task.value)
        return [place for place in keys if not self._evaluation.is_valid(child, task.value[place])]
