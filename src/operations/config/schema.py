"""config_schema: the JSON Schema of the configuration file."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from operations.config.settings import AnySource, FileSettings, MCPSettings

_PLACEHOLDER = {"type": "string", "pattern": r"\$\{"}


def config_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of `operations.toml`, for editors and for `ops config schema`."""
    kinds = get_args(AnySource)
    _, components = msgspec.json.schema_components([FileSettings, *kinds], ref_template="#/$defs/{name}")
    definitions = {name: _tidy(component) for name, component in components.items()}
    definitions[MCPSettings.__name__]["anyOf"] = [{"required": ["command"]}, {"required": ["url"]}]
    whole = definitions.pop(FileSettings.__name__)
    whole["properties"]["sources"]["additionalProperties"] = {
        "anyOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds]
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **whole,
        "title": "operations.toml",
        "$defs": dict(sorted(definitions.items())),
    }


def _tidy(schema: Any) -> Any:
    """A schema without `null`, which TOML has not, and with `${…}` wherever a number or a truth value may stand."""
    if isinstance(schema, list):
        return [_tidy(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidied = {name: _tidy(value) for name, value in schema.items() if not (name == "default" and value is None)}
    variants = [variant for variant in tidied.get("anyOf", ()) if variant != {"type": "null"}]
    if len(variants) == 1:
        del tidied["anyOf"]
        tidied = {**variants[0], **tidied}
    elif variants:
        tidied["anyOf"] = variants
    if tidied.get("type") in ("number", "integer", "boolean"):
        described = {name: tidied.pop(name) for name in ("title", "description", "default") if name in tidied}
        return {**described, "anyOf": [tidied, dict(_PLACEHOLDER)]}
    if tidied.get("required") == []:
        del tidied["required"]
    return tidied
