"""config_schema: the JSON Schema of the configuration file."""

from __future__ import annotations

from typing import Any


def config_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of `operations.toml`, for editors and for `ops config schema`."""
    raise NotImplementedError
