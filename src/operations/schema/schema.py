"""Schema: a JSON Schema document with the methods check, errors and cast; independent of operations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jsonschema_rs

from operations.schema.budget import Budget
from operations.schema.cached_attribute import LazyLock, cached_attribute, shared_attribute
from operations.schema.checking.values import MAX_DEPTH, too_deep, too_shared
from operations.schema.dialects.keywords import ANNOTATIONS, ASSERTING
from operations.schema.dialects.literals import escaped
from operations.schema.dialects.plain import Conversion, closed_plain, convert_plain
from operations.schema.problems import Found, Problem

if TYPE_CHECKING:
    from operations.schema.casting.nodes import Nodes
    from operations.schema.casting.policies import Caster
    from operations.schema.checking.compiling import Parts
    from operations.schema.checking.costs import Costs
    from operations.schema.checking.evaluating import Evaluator
    from operations.schema.checking.explaining import Explainer, Strategy
    from operations.schema.dialects.definitions import Definitions
    from operations.schema.dialects.traversal import Definition

Policy = Literal["cast", "total", "strict", "off"]
"""Policy for results: `cast` normalises, `total` also replaces invalid values, `strict` normalises and raises an error
if values are still invalid, `off` does nothing.
"""
Loader = Callable[[str], Any]
Write = Callable[[], Mapping[str, Any] | bool]

logger = logging.getLogger("operations.schema")
DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"


class Schema:
    """A JSON Schema document, converted to 2020-12 and compiled on first use."""

    _source: Mapping[str, Any] | bool
    _lock = LazyLock()

    def __init__(
        self, document: Mapping[str, Any] | bool, *, dialect: str | None = None, loader: Loader | None = None
    ) -> None:
        self._source = document
        self._dialect = dialect
        self._loader = loader

    @cached_attribute
    def document(self) -> dict[str, Any] | bool:
        """The schema in draft 2020-12, self-contained: referenced schemas are in its `$defs`."""
        return self._conversion.document

    @property
    def original(self) -> Mapping[str, Any] | None:
        """The original document, if it declares draft 2020-12 and was passed without a loader; otherwise None."""
        source = self._source
        declared = source.get("$schema") if isinstance(source, Mapping) and self._loader is None else None
        stated = isinstance(declared, str) and declared.rstrip("#") == DRAFT_2020_12
        return source if stated and isinstance(source, Mapping) else None

    @cached_attribute
    def is_unknown(self) -> bool:
        """Whether the schema accepts anything, so that checking and casting do nothing."""
        if isinstance(self._source, Mapping) and not self._source.keys() - ANNOTATIONS:
            return True
        document = self.document
        return document if isinstance(document, bool) else not document.keys() & ASSERTING

    @property
    def _twin(self) -> Schema:
        """The first schema with the same document, whose validators this schema uses; this schema if there is no such
        schema.
        """
        return self

    def check(self, value: Any) -> bool:
        """Whether `value` is valid."""
        return self._check(value)

    def errors(self, value: Any, found: Sequence[Found] = (), *, bounded: bool = False) -> list[Problem]:
        """Return every problem of `value`; empty if valid.

        `found` has problems from another check, such as conversion to a Python type; they are added at paths where the
        schema finds no problem. With `bounded`, at most 100 problems are listed; of a large value, only the first
        problem, because finding all problems takes long.
        """
        if self.check(value):
            problems = []
        else:
            problems = self._explainer.listed(value) if bounded else self._explainer.problems(value)
        return self._explainer.joined(value, problems, found) if found else problems

    def redact(self, value: Any) -> Any:
        """Return `value` with `"[redacted]"` in place of values that the schema marks as secret."""
        return self._explainer.hidden(value).redacted(value, ())

    def cast(self, value: Any, policy: Policy = "cast") -> Any:
        """Return `value` normalised by `policy`; `strict` raises a `VALIDATION_ERROR` with every problem.

        A value that every policy returns unchanged is returned without a check of `policy`.
        """
        return self._casts[1](value, policy)

    def normalise(self, value: Any, policy: Policy = "cast") -> tuple[Any, Sequence[Problem]]:
        """Return `value` normalised by `policy`, and the remaining problems; `total` adds one for each replaced value.

        No value causes an exception, not even under `strict`. The input is never changed; normal parts are shared.
        """
        result: tuple[Any, Sequence[Problem]] = self._casts[0](value, policy)
        return result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        same_source = self._source is other._source and self._dialect == other._dialect
        return (same_source and self._loader is other._loader) or self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        if isinstance(self._source, bool):
            return f"Schema({self._source})"
        if not isinstance(self._source, Mapping):
            return f"Schema(<{type(self._source).__name__}>)"
        named = next((self._source[key] for key in ("title", "$ref", "type") if key in self._source), "...")
        return f"Schema({named!r:.60})"

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source, "_dialect": self._dialect, "_loader": self._loader}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @cached_attribute
    def _key(self) -> str:
        """The document as text in a stable order, for comparing schemas."""
        return _text(self.document)

    @cached_attribute
    def _conversion(self) -> Conversion:
        conversion = self._convert()
        if conversion.complaints:
            shown = escaped("; ".join(conversion.complaints[:5]))
            logger.warning("unsupported parts of a schema accept any value: %s", shown)
        return conversion

    def _convert(self) -> Conversion:
        if self._dialect is None and (plain := convert_plain(self._source)) is not None:
            return plain
        from operations.schema.dialects.conversion import convert

        return convert(self._source, self._dialect, self._loader)

    @shared_attribute
    def _definitions_used(self) -> Mapping[str, Definition]:
        """The document and its definitions, by pointer."""
        from operations.schema.dialects.traversal import definitions_of

        return definitions_of(self._conversion.document, self._conversion.shared)

    @shared_attribute
    def _parts(self) -> Parts:
        from operations.schema.checking.compiling import Parts

        return Parts(self._definitions_used)

    @shared_attribute
    def _validator(self) -> jsonschema_rs.Validator | None:
        from operations.schema.checking.compiling import compiled_form, compiled_original

        conversion = self._conversion
        if not self._affordable:
            return None
        native = None
        if not conversion.exact:
            from operations.schema.dialects.conversion import draft_number

            native = compiled_original(self._source, draft_number(self._dialect) or 2020, self._loader)
        native = native or compiled_form(self._parts.form)
        if native is None:
            logger.warning("a schema could not be compiled and accepts any value: %r", self)
            self.__dict__.update(document=True, is_unknown=True)
        return native

    @shared_attribute
    def _costs(self) -> Costs:
        from operations.schema.checking.costs import Costs

        return Costs(self._definitions_used)

    @property
    def _affordable(self) -> bool:
        """Whether the document is cheap enough for the native engine, whatever the value."""
        return self._conversion.plain or self._costs.affordable

    @shared_attribute
    def _evaluator(self) -> Evaluator:
        from operations.schema.checking.evaluating import Evaluator

        return Evaluator(self._conversion.document, self._costs, self._parts)

    @cached_attribute
    def _limit(self) -> int | None:
        """Maximum depth of values if the schema may be recursive; otherwise None."""
        return MAX_DEPTH if self._conversion.recursive or not self._conversion.exact else None

    @shared_attribute
    def _explainer(self) -> Explainer:
        from operations.schema.checking.explaining import Explainer
        from operations.schema.checking.secrets import Secrets

        secrets = Secrets(self._definitions_used)
        return Explainer(secrets, lambda: self._validator, self._limit, self._scoring, lambda: self._strategy)

    @shared_attribute
    def _strategy(self) -> Strategy:
        """How problems are found, decided at the first invalid value."""
        from operations.schema.checking.costs import Costs
        from operations.schema.checking.diagnosing import Diagnosis
        from operations.schema.checking.explaining import Strategy
        from operations.schema.dialects.traversal import schemas_in, unions_of

        exact, affordable = self._conversion.exact, self._affordable
        if affordable and Costs(self._definitions_used, explained=True, outlined=exact).explainable:
            if exact or not isinstance(self.document, dict):
                return Strategy(self._parts)
            return Strategy(has_unions=any(map(unions_of, schemas_in(self.document))))
        return Strategy(diagnosis=Diagnosis(self._evaluator), refused=not (exact or affordable))

    def _scoring(self, budget: Budget) -> Callable[[list[Any], Any], list[int]]:
        from operations.schema.casting.scoring import Scores

        return Scores(self._nodes, budget).of_branches

    @shared_attribute
    def _nodes(self) -> Nodes:
        from operations.schema.casting.nodes import Nodes

        return Nodes(self.document, self._lock, self._parts)

    @shared_attribute
    def _caster(self) -> Caster:
        from operations.schema.casting.policies import Caster

        definitions = self._definitions_used
        return Caster(self._nodes, lambda value: self._native_check(value), self._explainer, self._limit, definitions)

    # The compiled functions are stored as instance attributes, which take precedence over the methods and save a call.

    @cached_attribute
    def _casts(self) -> tuple[Callable[..., tuple[Any, Sequence[Problem]]], Callable[..., Any]]:
        casts: tuple[Any, Any] = (_unchanged, _itself)
        if not self.is_unknown and not self._affordable:
            casts = self._uncasts
        elif not self.is_unknown and (plain := self._plain_casts()) is not None:
            casts = plain
        elif not self.is_unknown and self._validator is not None:
            casts = self._caster.first_entry_points(lambda: self._usual_casts)
        self.__dict__.update(normalise=casts[0], cast=casts[1])
        return casts

    @cached_attribute
    def _usual_casts(self) -> tuple[Callable[..., tuple[Any, Sequence[Problem]]], Callable[..., Any]]:
        """The functions of `_casts` after the first values."""
        casts: tuple[Any, Any] = self._caster.entry_points()
        if self._compares_items:
            casts = _unless_shared(casts[0], self._uncasts[0]), _unless_shared(casts[1], self._uncasts[1])
        self.__dict__.update(normalise=casts[0], cast=casts[1])
        return casts

    def _plain_casts(self) -> tuple[Any, Any] | None:
        """Return the functions of `_casts` that try the closed form of a plain schema first; None for other schemas."""
        closed = closed_plain(self.document) if self._conversion.plain else None
        if closed is None:
            return None
        from operations.schema.checking.compiling import compiled

        native = compiled(closed)
        return None if native is None else (self._unless_normal(native, 0), self._unless_normal(native, 1))

    def _unless_normal(self, native: jsonschema_rs.Validator, which: int) -> Callable[..., Any]:
        is_normal = native.is_valid

        def cast(value: Any, policy: Policy = "cast") -> Any:
            try:
                if is_normal(value):
                    return value if which else (value, ())
            except ValueError:
                pass
            casts = self._caster.first_entry_points(lambda: self._usual_casts)
            self.__dict__.update(normalise=casts[0], cast=casts[1])
            return casts[which](value, policy)

        return cast

    @cached_attribute
    def _check(self) -> Callable[[Any], bool]:
        self.__dict__["check"] = check = self._make_check()
        return check

    @cached_attribute
    def _uncasts(self) -> tuple[Any, Any]:
        """The pair of functions of `_casts`, for values that are only checked."""
        from operations.schema.casting.policies import check_only

        return check_only(self._check, self._explainer)

    @property
    def _compares_items(self) -> bool:
        """Whether items are compared with each other, which is too slow for values that repeat the same parts often."""
        return self._parts.form.compares_items

    def _make_check(self) -> Callable[[Any], bool]:
        check = self._make_plain_check()
        return _unless_shared(check, _refuse) if self._compares_items else check

    def _make_plain_check(self) -> Callable[[Any], bool]:
        check = self._native_check
        if self._limit is None or check is _accept:
            return check
        return _bounded(check, self._shallow() if self._affordable else None)

    @shared_attribute
    def _native_check(self) -> Callable[[Any], bool]:
        """The check for values whose depth is known to be bounded."""
        if self.is_unknown and self._conversion.exact:
            return _accept  # also of values that are not JSON, which the native engine refuses
        if not self._affordable:
            # Only the converted document can be evaluated; if it is not exact, no value is accepted.
            return self._evaluator.check if self._conversion.exact else _refuse
        validator = self._validator
        if validator is None:
            return _accept
        is_valid = validator.is_valid

        def check(value: Any) -> bool:
            try:
                return is_valid(value)
            except ValueError:
                return self._explainer.check_foreign(value)

        return check

    def _shallow(self) -> Callable[[Any], bool] | None:
        """Return a check by the first levels of a recursive schema, which is safe at any depth; None if impossible."""
        from operations.schema.checking.unrolling import compiled_shallow

        native = compiled_shallow(self._definitions_used) if self._conversion.exact else None
        return native.is_valid if native is not None else None


def _bounded(check: Callable[[Any], bool], shallow: Callable[[Any], bool] | None) -> Callable[[Any], bool]:
    """Return `check` with a depth check before it; a value that `shallow` accepts needs neither."""
    if shallow is None:
        return lambda value: not too_deep(value) and check(value)

    def check_bounded(value: Any) -> bool:
        try:
            if shallow(value):
                return True
        except ValueError:
            pass
        return not too_deep(value) and check(value)

    return check_bounded


def _unless_shared(usual: Callable[..., Any], shared: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `shared` for values that repeat the same parts too often, else `usual`."""
    return lambda value, *options, **named: (shared if too_shared(value) else usual)(value, *options, **named)


def _accept(value: Any) -> bool:
    return True


def _refuse(value: Any) -> bool:
    return False


def _itself(value: Any, policy: Policy = "cast") -> Any:
    return value


def _unchanged(value: Any, policy: Policy = "cast") -> tuple[Any, Sequence[Problem]]:
    return value, ()


def _text(document: Any) -> str:
    import msgspec

    return msgspec.json.encode(document, order="deterministic").decode()


UNKNOWN = Schema(True)
"""Schema that accepts every value: the output schema of operations that declare none."""


def from_schema(
    json_schema: Mapping[str, Any] | bool, *, dialect: str | None = None, loader: Loader | None = None
) -> Schema:
    """Return a Schema for any JSON Schema document; unsupported parts accept any value, with one warning.

    `dialect` is the default draft (`draft4`, `draft6`, `draft7`, `2019-09`, `2020-12`, `openapi-3.0` or a metaschema's
    URL). `loader` returns the document at a URL; without it, nothing outside the document is read.
    """
    return Schema(json_schema, dialect=dialect, loader=loader)


class _RecordSchema(Schema):
    """A Schema of the JSON form of Python objects, which also validates the objects themselves."""

    def __init__(self, json_schema: Mapping[str, Any], to_json: Callable[[Any], Any]) -> None:
        super().__init__(json_schema)
        self._to_json = to_json

    def errors(self, value: Any, found: Sequence[Found] = (), *, bounded: bool = False) -> list[Problem]:
        return super().errors(self._to_json(value), found, bounded=bounded)

    def _make_check(self) -> Callable[[Any], bool]:
        check, to_json = super()._make_check(), self._to_json
        return lambda value: check(to_json(value))

    def __reduce__(self) -> Any:
        return Schema, (self.document,)


def record_schema(json_schema: Mapping[str, Any], to_json: Callable[[Any], Any]) -> Schema:
    """Return a Schema whose `check` and `errors` pass a value through `to_json` first."""
    return _RecordSchema(json_schema, to_json)


class _DeferredSchema(Schema):
    """A Schema whose document is generated on first use."""

    def __init__(self, write: Write, definitions: Definitions | None) -> None:
        self._write = write
        self._definitions = definitions
        self._dialect = None if definitions is None else definitions.dialect
        self._loader = None if definitions is None else definitions.loader

    @cached_attribute
    def _source(self) -> Mapping[str, Any] | bool:
        written = self._write()
        return written if self._definitions is None else self._definitions.complete(written)

    def _convert(self) -> Conversion:
        return super()._convert() if self._definitions is None else self._definitions.convert(self._source)

    @cached_attribute
    def _twin(self) -> Schema:
        conversion, document = self._conversion, self._conversion.document
        if self._definitions is None or not conversion.exact or not isinstance(document, dict):
            return self
        if "$defs" in document and not conversion.shared:
            return self
        # The names of shared definitions are unique in a source, so the definitions need no comparison.
        text = _text({key: value for key, value in document.items() if key != "$defs"})
        twin: Schema = self._definitions.twins.setdefault(text, self)
        return twin

    def __reduce__(self) -> Any:
        return Schema, (self.document,)


def deferred_schema(write: Write, definitions: Definitions | None = None) -> Schema:
    """Return a Schema whose document `write` returns on first use; otherwise like `from_schema`.

    For sources with many operations, few of which a program calls. `definitions` are shared with the other schemas of
    the same source.
    """
    return _DeferredSchema(write, definitions)
