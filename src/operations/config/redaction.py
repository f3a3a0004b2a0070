"""Configurations shown to people: everything but the secrets."""

from __future__ import annotations

from typing import Any

from operations.config.models import Config


def describe_config(config: Config) -> dict[str, Any]:
    """The configuration as plain data to print: variables as `${NAME}`, other secrets as `[redacted]`."""
    raise NotImplementedError
