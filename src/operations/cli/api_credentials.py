"""Hints for missing credentials of an API, according to the security schemes that its document declares."""

from __future__ import annotations

import re
from collections.abc import Sequence

from operations.config.file_writer import write_value
from operations.config.openapi_source import credential_types
from operations.config.settings import OpenAPISettings, Source
from operations.config.sources import OpenedSource

_FIELDS = {"basic": ("username", "password"), "oauth2": ("client_id", "client_secret")}
"""The settings of each type of credential; other types have only `token`."""


def missing_credentials(source: Source, needed: Sequence[Sequence[str]], opened: OpenedSource | None) -> str:
    """Return a hint about missing credentials for an operation; an empty string if the source has credentials for it.

    `needed` has the alternatives that the operation accepts. Each alternative lists security schemes of the API's
    document, by name, that are needed together.
    """
    settings = source.settings
    assert isinstance(settings, OpenAPISettings)
    if settings.auth is not None or settings.headers or any(set(each) <= set(settings.security) for each in needed):
        return ""
    named = f" ({', or '.join(' and '.join(each) for each in needed if each)})" if any(needed) else ""
    problem = f"source {source.name} has no credentials for this operation{named}"
    types = {} if opened is None else credential_types(opened.operations)
    usable = [each for each in needed if each and all(types.get(name) for name in each)]
    if usable and len(types) == 1:
        return f"{problem}: set its auth, for example auth = {write_value(_example(types[usable[0][0]], source.name))}"
    if usable:
        examples = {name: _example(types[name], f"{source.name}_{name}") for name in usable[0]}
        return f"{problem}: set its security, for example security = {write_value(examples)}"
    example = f"auth = {write_value(_example('bearer', source.name))}"
    return f'{problem}: set its auth, for example {example}, or type = "api_key" for an API key'


def _example(kind: str, name: str) -> dict[str, str]:
    """Return example settings of a credential; the values are variables whose names begin with `name`."""
    prefix = re.sub(r"\W", "_", name).upper()
    fields = _FIELDS.get(kind, ("token",))
    return {"type": kind, **{field: f"${{{prefix}_{field.upper()}}}" for field in fields}}
