"""config_schema: the JSON Schema of the configuration file."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from operations.config.interceptor_settings import AnyInterceptor
from operations.config.settings import AnySource, FileSettings, MCPSettings

_PLACEHOLDER = {"type": "string", "pattern": r"\$\{"}


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of `operations.toml`, for editors and `ops config schema`."""
    kinds, interceptors = get_args(AnySource), get_args(AnyInterceptor)
    _, components = msgspec.json.schema_components([FileSettings, *kinds, *interceptors], ref_template="#/$defs/{name}")
    definitions = {name: _adapt(component) for name, component in components.items()}
    definitions[MCPSettings.__name__]["anyOf"] = [{"required": ["command"]}, {"required": ["url"]}]
    whole = definitions.pop(FileSettings.__name__)
    whole["properties"]["sources"]["additionalProperties"] = {
        "anyOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds]
    }
    whole["properties"]["interceptors"]["items"] = {
        "anyOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in interceptors]
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **whole,
        "title": "operations.toml",
        "$defs": dict(sorted(definitions.items())),
    }


def _adapt(schema: Any) -> Any:
    """Return a schema for TOML: without `null`, and with `${…}` as an alternative to numbers and booleans."""
    if isinstance(schema, list):
        return [_adapt(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    adapted = {name: _adapt(value) for name, value in schema.items() if not (name == "default" and value is None)}
    variants = [variant for variant in adapted.get("anyOf", ()) if variant != {"type": "null"}]
    if len(variants) == 1:
        del adapted["anyOf"]
        adapted = {**variants[0], **adapted}
    elif variants:
        adapted["anyOf"] = variants
    if adapted.get("type") in ("number", "integer", "boolean"):
        described = {name: adapted.pop(name) for name in ("title", "description", "default") if name in adapted}
        return {**described, "anyOf": [adapted, dict(_PLACEHOLDER)]}
    if adapted.get("required") == []:
        del adapted["required"]
    return adapted
