"""Subsets of JSON Schema that model providers accept for the arguments of a tool."""

from __future__ import annotations

import msgspec

_BOUNDS = frozenset(
    "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength minItems maxItems".split()  # noqa: SIM905
)
_SHAPE = frozenset(
    (
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "unevaluatedProperties",
        "unevaluatedItems",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "dependentRequired",
        "dependentSchemas",
        "not",
        "if",
        "then",
        "else",
        "contentSchema",
        "contentEncoding",
        "contentMediaType",
    )
)


class Subset(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's subset of JSON Schema: other keywords are moved into descriptions or left out."""

    name: str
    is_closed: bool = False
    """Whether every object lists its properties and allows no others; free-form values are sent as JSON strings."""
    is_complete: bool = False
    """Whether the provider requires every property; then null or `OMIT` marks an optional property as omitted."""
    moved: frozenset[str] = frozenset()
    """Keywords that are written into the description."""
    dropped: frozenset[str] = frozenset()
    """Keywords that are left out silently."""
    formats: frozenset[str] | None = None
    """The accepted values of `format`; None for any."""
    has_const: bool = True
    has_type_lists: bool = True
    """Whether `type` may be a list; otherwise each type is a branch of a union."""
    max_depth: int | None = None
    """How deep objects and arrays may be nested; deeper values are sent as JSON strings."""
    max_properties: int | None = None
    """Maximum number of properties in the schema; objects beyond it are sent as JSON strings."""
    max_values: int | None = None
    """Maximum number of `enum` values in the schema; an `enum` with more is moved into the description."""
    max_enum_characters: int | None = None
    """Maximum number of characters of an `enum` with more than 250 values; above it, the `enum` becomes part of the
    description.
    """
    max_characters: int | None = None
    """Maximum number of characters of all property names, definition names and `enum` values."""


_OPENAI_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
)
_NOISE = frozenset(("$schema", "$comment", "$id", "deprecated", "readOnly", "writeOnly"))

PLAIN = Subset(name="plain", dropped=_NOISE)
"""JSON Schema 2020-12 with an object at its root: OpenAI without `strict`, Anthropic, MCP."""
# The limits are those of "Supported schemas" on OpenAI's page about structured outputs.
OPENAI_STRICT = Subset(
    name="OpenAI strict",
    is_closed=True,
    is_complete=True,
    moved=_SHAPE | {"minLength", "maxLength", "default"},
    dropped=_NOISE | {"examples"},
    formats=_OPENAI_FORMATS,
    max_depth=10,
    max_properties=5_000,
    max_values=1_000,
    max_enum_characters=15_000,
    max_characters=120_000,
)
ANTHROPIC_STRICT = Subset(
    name="Anthropic strict",
    is_closed=True,
    moved=_SHAPE | _BOUNDS | {"pattern", "default"},
    dropped=_NOISE | {"examples"},
    formats=_OPENAI_FORMATS | {"uri"},
    has_type_lists=False,
    max_depth=10,
)
GEMINI = Subset(
    name="Gemini",
    moved=frozenset(("exclusiveMinimum", "exclusiveMaximum")),
    dropped=_NOISE | {"title", "examples"},
    has_const=False,
)
