"""Evaluator for schemas that are too costly for the native engine: each schema is applied to each part of a value once.

The evaluator is much slower than the native engine, but the work of the evaluator is counted: it grows with the size of
schema and value, not with the number of paths through the schema. An explicit stack makes long reference chains and
deep values safe. Plain assertions (types, bounds, patterns) and schemas that are cheap as a whole are left to the
native engine.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import chain
from typing import Any

import jsonschema_rs

from operations.schema.budget import Budget, ExhaustedError
from operations.schema.checking.compiling import Parts, compiled
from operations.schema.checking.costs import Costs
from operations.schema.checking.secrets import target_of
from operations.schema.checking.values import as_json
from operations.schema.dialects.keywords import ASSERTIONS
from operations.schema.dialects.patterns import matcher
from operations.schema.dialects.traversal import UNEVALUATED, definitions_of

_COUNTS = ("minContains", "maxContains")
_Schema = dict[str, Any]
_Question = tuple[bool, _Schema, Any]
"""A question: a schema and a value to evaluate. The answer is the verdict, or the set of evaluated keys.

The first item is True if the question is for the set of evaluated keys.
"""
_Answer = Any
_Steps = Generator[_Question, _Answer, _Answer]
_Stack = list[tuple[tuple[bool, int, int], _Steps]]
_NONE: frozenset[str | int] = frozenset()


class Evaluator:
    """Evaluates values by one converted document."""

    def __init__(self, document: Any, costs: Costs, parts: Parts | None = None) -> None:
        self.document = document
        self._costs = costs
        self._parts = parts or Parts(definitions_of(document))
        self._asserting: dict[int, jsonschema_rs.Validator | None] = {}
        self._cheap: dict[int, jsonschema_rs.Validator | None] = {}

    def check(self, value: Any) -> bool:
        """Whether `value` is valid; false if checking it is too much work."""
        copy = as_json(value)
        try:
            return not copy.foreign and self.evaluation(Budget(value)).is_valid(self.document, copy.value)
        except ExhaustedError:
            return False

    def evaluation(self, budget: Budget) -> Evaluation:
        """Return a new evaluation for one value of plain dicts, lists and scalars."""
        return Evaluation(self, budget)

    def asserting(self, schema: _Schema) -> jsonschema_rs.Validator | None:
        """Return the native validator of a schema's own assertions; None if the schema has no assertions of its own."""
        if id(schema) not in self._asserting:
            own = {key: value for key, value in schema.items() if key in ASSERTIONS and key not in _COUNTS}
            self._asserting[id(schema)] = compiled(own) if own else None
        return self._asserting[id(schema)]

    def cheap(self, schema: _Schema) -> jsonschema_rs.Validator | None:
        """Return the native validator of a schema if the schema is cheap as a whole; otherwise None."""
        if id(schema) not in self._cheap:
            self._cheap[id(schema)] = self._parts.compiled((schema,)) if self._costs.affords(schema) else None
        return self._cheap[id(schema)]


class Evaluation:
    """Cached verdicts of schemas on the parts of one value."""

    def __init__(self, evaluator: Evaluator, budget: Budget) -> None:
        self._evaluator = evaluator
        self._budget = budget
        self._known: dict[tuple[bool, int, int], _Answer] = {}

    def is_valid(self, schema: Any, value: Any) -> bool:
        """Whether `value` is valid by a schema of the document; raise ExhaustedError if the budget is used up."""
        return schema if isinstance(schema, bool) else bool(self._run((False, schema, value)))

    def unevaluated(self, schema: _Schema, value: Any) -> list[str | int]:
        """Return the properties or items of `value` to which a schema's `unevaluated…` keyword applies."""
        seen = self._drive([((True, 0, 0), self._collect_except(schema, value))])
        return [key for key in (value if isinstance(value, dict) else range(len(value))) if key not in seen]

    def _run(self, question: _Question) -> _Answer:
        stack: _Stack = []
        answer = self._cached_result(question, stack)
        return self._drive(stack) if stack else answer

    def _drive(self, stack: _Stack) -> _Answer:
        """Return the answer to the first `_Question` on a stack; first answer all questions on which this answer
        depends.
        """
        answer = None
        while stack:
            key, steps = stack[-1]
            try:
                asked = steps.send(answer)
            except StopIteration as done:
                stack.pop()
                answer = self._known[key] = done.value
            else:
                answer = self._cached_result(asked, stack)
        return answer

    def _cached_result(self, question: _Question, stack: _Stack) -> _Answer:
        """Return a result that is cached or cheap; otherwise push an entry that computes it, and return None."""
        collects, schema, value = question
        key = (collects, id(schema), id(value))
        if key in self._known:
            return self._known[key]
        self._budget.spend()
        native = None if collects else self._evaluator.cheap(schema)
        if native is not None:
            answer = self._known[key] = _verdict(native, value)
            return answer
        # A schema that refers to itself at the same path counts as valid, as in the native engine.
        self._known[key] = _NONE if collects else True
        stack.append((key, (self._collect if collects else self._check)(schema, value)))
        return None

    # Verdicts

    def _check(self, schema: _Schema, value: Any) -> _Steps:
        native = self._evaluator.asserting(schema)
        if native is not None and not _verdict(native, value):
            return False
        if not (yield from self._check_in_place(schema, value)):
            return False
        for child, part in parts(schema, value):
            if not (yield from _evaluate(child, part)):
                return False
        if "contains" in schema and isinstance(value, list) and not (yield from self._check_contains(schema, value)):
            return False
        return (yield from self._check_unevaluated(schema, value))

    def _check_in_place(self, schema: _Schema, value: Any) -> _Steps:
        for child in self._conjuncts(schema, value):
            if not (yield from _evaluate(child, value)):
                return False
        if "anyOf" in schema and not (yield from self._count(schema["anyOf"], value, 1)):
            return False
        if "oneOf" in schema and (yield from self._count(schema["oneOf"], value, 2)) != 1:
            return False
        if "not" in schema and (yield from _evaluate(schema["not"], value)):
            return False
        if "if" in schema:
            branch = "then" if (yield from _evaluate(schema["if"], value)) else "else"
            return (yield from _evaluate(schema.get(branch, True), value))
        return True

    def _conjuncts(self, schema: _Schema, value: Any) -> Iterator[Any]:
        if "$ref" in schema:
            yield target_of(schema["$ref"], self._evaluator.document)
        yield from schema.get("allOf", ())
        if isinstance(value, dict):
            yield from (child for name, child in schema.get("dependentSchemas", {}).items() if name in value)

    @staticmethod
    def _count(branches: list[Any], value: Any, enough: int) -> _Steps:
        count = 0
        for branch in branches:
            count += bool((yield from _evaluate(branch, value)))
            if count >= enough:
                break
        return count

    @staticmethod
    def _check_contains(schema: _Schema, value: list[Any]) -> _Steps:
        count = 0
        for item in value:
            count += bool((yield from _evaluate(schema["contains"], item)))
        return schema.get("minContains", 1) <= count <= schema.get("maxContains", len(value))

    def _check_unevaluated(self, schema: _Schema, value: Any) -> _Steps:
        keyword = UNEVALUATED[isinstance(value, list)]
        if keyword not in schema or not isinstance(value, dict | list):
            return True
        seen = yield from self._collect_except(schema, value)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in seen and not (yield from _evaluate(schema[keyword], item)):
                return False
        return True

    # Evaluated paths

    def _collect(self, schema: _Schema, value: Any) -> _Steps:
        """Collect the properties or items that a schema evaluates; the value is known to be valid."""
        if not isinstance(value, dict | list):
            return _NONE
        if UNEVALUATED[isinstance(value, list)] in schema:
            return frozenset(value if isinstance(value, dict) else range(len(value)))
        return (yield from self._collect_except(schema, value))

    def _collect_except(self, schema: _Schema, value: Any) -> _Steps:
        """Collect the properties or items that keywords other than `unevaluated…` evaluate."""
        seen: set[str | int] = set(described_keys(schema, value))
        if "contains" in schema and isinstance(value, list):
            for index, item in enumerate(value):
                if (yield from _evaluate(schema["contains"], item)):
                    seen.add(index)
        for child in chain(self._conjuncts(schema, value), schema.get("anyOf", ()), schema.get("oneOf", ())):
            seen |= yield from self._collect_if(child, value)
        if "if" in schema:
            is_valid = yield from _evaluate(schema["if"], value)
            seen |= yield from self._collect_if(schema["if"], value)
            seen |= yield from self._collect_if(schema.get("then" if is_valid else "else", True), value)
        return frozenset(seen)

    @staticmethod
    def _collect_if(schema: Any, value: Any) -> _Steps:
        if isinstance(schema, bool) or not (yield (False, schema, value)):
            return _NONE
        return (yield (True, schema, value))


def _evaluate(schema: Any, value: Any) -> _Steps:
    return schema if isinstance(schema, bool) else (yield (False, schema, value))


def _verdict(native: jsonschema_rs.Validator, value: Any) -> bool:
    try:
        return native.is_valid(value)
    except ValueError:  # a number or string that JSON cannot represent
        return False


def parts(schema: _Schema, value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each sub-schema for a property, item or property name of `value`, with that property, item or name."""
    for child, key, _ in located_parts(schema, value):
        yield child, value[key]
    if "propertyNames" in schema and isinstance(value, dict):
        for name in value:
            yield schema["propertyNames"], name


def described_keys(schema: _Schema, value: Any) -> Iterator[str | int]:
    """Yield the properties and items for which a schema has a sub-schema."""
    for _, key, _ in located_parts(schema, value):
        yield key


def located_parts(schema: _Schema, value: Any) -> Iterator[tuple[Any, Any, tuple[str | int, ...]]]:
    """Yield the schema of each property or item of `value`, its key or index, and the path to that schema."""
    if isinstance(value, dict):
        for name in value:
            yield from _for_member(schema, name)
    elif isinstance(value, list):
        prefix = schema.get("prefixItems", ())
        for index in range(min(len(prefix), len(value))):
            yield prefix[index], index, ("prefixItems", index)
        if "items" in schema:
            for index in range(len(prefix), len(value)):
                yield schema["items"], index, ("items",)


def _for_member(schema: _Schema, name: str) -> Iterator[tuple[Any, Any, tuple[str | int, ...]]]:
    named = False
    if name in schema.get("properties", ()):
        named = True
        yield schema["properties"][name], name, ("properties", name)
    for pattern, child in schema.get("patternProperties", {}).items():
        if matcher(pattern)(name):
            named = True
            yield child, name, ("patternProperties", pattern)
    if not named and "additionalProperties" in schema:
        yield schema["additionalProperties"], name, ("additionalProperties",)
