"""The rules of model providers for tool definitions, written from their documentation; not from the exporter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs

STRICT_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
STRICT_FORBIDDEN = {
    *("default", "oneOf", "allOf", "not", "if", "then", "else", "patternProperties", "propertyNames", "minProperties"),
    *("maxProperties", "unevaluatedProperties", "unevaluatedItems", "contains", "minContains", "maxContains"),
    *("uniqueItems", "dependentRequired", "dependentSchemas"),
}
ANTHROPIC_STRICT_FORBIDDEN = {
    *("oneOf", "not", "if", "then", "else", "patternProperties", "propertyNames", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "maxItems", "uniqueItems"),
}
GEMINI_FORBIDDEN = {"const", "exclusiveMinimum", "exclusiveMaximum", "$schema", "title", "examples"}
ROOT_FORBIDDEN = {"anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref"}
DIALECT = "https://json-schema.org/draft/2020-12/schema"
LOOK_AROUND = re.compile(r"\(\?(?:[=!]|<[=!])")


def problems_of_name(provider: str, name: str) -> list[str]:
    patterns = {
        "openai": r"[a-zA-Z0-9_-]{1,64}",
        "anthropic": r"[a-zA-Z0-9_-]{1,128}",
        "gemini": r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}",
        "mcp": r"[A-Za-z0-9._-]{1,128}",
    }
    return [] if re.fullmatch(patterns[provider], name) else [f"name {name}"]


def problems_of_schema(provider: str, schema: Mapping[str, Any], *, strict: bool = False) -> list[str]:
    """Return every rule that the parameters of a tool break."""
    found = [f"root has {keyword}" for keyword in sorted(ROOT_FORBIDDEN & schema.keys())]
    if schema.get("type") != "object":
        found.append("root is not an object")
    if not jsonschema_rs.meta.is_valid({"$schema": DIALECT, **schema}):
        found.append("not JSON Schema 2020-12")
    for path, node in walk(schema):
        found += [f"{path}: {problem}" for problem in _common(node, schema, provider)]
        if strict and provider == "openai":
            found += [f"{path}: {problem}" for problem in _openai_strict(node)]
        elif strict:
            found += [f"{path}: {problem}" for problem in _anthropic_strict(node)]
        elif provider == "gemini":
            found += [f"{path}: {keyword}" for keyword in sorted(GEMINI_FORBIDDEN & node.keys())]
    if strict and provider == "openai":
        found += _sizes(schema)
    return found


def walk(schema: Any, path: str = "#") -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(schema, Mapping):
        return
    yield path, schema
    for keyword in ("properties", "$defs", "patternProperties", "dependentSchemas"):
        for name, child in schema.get(keyword, {}).items():
            yield from walk(child, f"{path}/{keyword}/{name}")
    for keyword in ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"):
        yield from walk(schema.get(keyword), f"{path}/{keyword}")
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for index, child in enumerate(schema.get(keyword, ())):
            yield from walk(child, f"{path}/{keyword}/{index}")


def _common(node: Mapping[str, Any], root: Mapping[str, Any], provider: str) -> Iterator[str]:
    reference = node.get("$ref")
    if reference is not None and reference != "#":
        name = reference.removeprefix("#/$defs/")
        if not reference.startswith("#/$defs/") or name not in root.get("$defs", {}):
            yield f"reference {reference}"
    for name in node.get("properties", {}):
        if len(name) > 64 or (provider == "anthropic" and not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name)):
            yield f"property {name}"
    for name in node.get("required", ()):
        if "properties" in node and name not in node["properties"] and node.get("additionalProperties") is False:
            yield f"required {name} is not a property"


def _openai_strict(node: Mapping[str, Any]) -> Iterator[str]:
    yield from sorted(STRICT_FORBIDDEN & node.keys())
    if "$ref" in node and len(node) > 1:
        yield "reference with siblings"
    if "$ref" not in node and "anyOf" not in node and "type" not in node:
        yield "no type"
    kinds = node.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds or []
    if "object" in kinds:
        if node.get("additionalProperties") is not False:
            yield "open object"
        if set(node.get("required", ())) != set(node.get("properties", {})):
            yield "optional property"
    if "array" in kinds and not isinstance(node.get("items"), Mapping):
        yield "array without items"
    if "format" in node and node["format"] not in STRICT_FORMATS:
        yield f"format {node['format']}"
    if LOOK_AROUND.search(node.get("pattern", "")):
        yield "look-around"


def _anthropic_strict(node: Mapping[str, Any]) -> Iterator[str]:
    yield from sorted(ANTHROPIC_STRICT_FORBIDDEN & node.keys())
    if node.get("type") == "object" and node.get("additionalProperties") is not False:
        yield "open object"
    if node.get("minItems", 0) not in (0, 1):
        yield "minItems"
    if isinstance(node.get("type"), list):
        yield "a list of types"
    if "pattern" in node:
        yield "pattern"


def _sizes(schema: Mapping[str, Any]) -> Iterator[str]:
    nodes = list(walk(schema))
    if sum(len(node.get("properties", {})) for _, node in nodes) > 5_000:
        yield "more than 5,000 properties"
    enums = [node["enum"] for _, node in nodes if "enum" in node]
    if sum(map(len, enums)) > 1_000:
        yield "more than 1,000 values of enum"
    if any(len(values) > 250 and sum(len(str(each)) for each in values) > 15_000 for values in enums):
        yield "an enum of more than 15,000 characters"
    names = [name for _, node in nodes for keyword in ("properties", "$defs") for name in node.get(keyword, ())]
    constants = [node["const"] for _, node in nodes if "const" in node]
    if sum(len(str(each)) for each in [*names, *constants, *(each for values in enums for each in values)]) > 120_000:
        yield "names and values of more than 120,000 characters"
    for part in (schema, *schema.get("$defs", {}).values()):
        if _depth({key: value for key, value in part.items() if key != "$defs"}) > 10:
            yield "deeper than 10"


def _depth(schema: Any) -> int:
    if not isinstance(schema, Mapping):
        return 0
    below = [*schema.get("properties", {}).values(), schema.get("items")]
    beside = [_depth(each) for each in schema.get("anyOf", ())]
    own = 1 if "properties" in schema or "items" in schema else 0
    return max([own + max(map(_depth, below), default=0), *beside])
