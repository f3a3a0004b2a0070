"""The configuration file, and the workspace that opens its sources into one registry.

Names are imported on first use, so that shell completion can use `operations.config.cache` without importing the
modules of every kind of source.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from operations.config.cache import Catalogue, CatalogueEntry, load_catalogue
    from operations.config.cache_writer import store_catalogue
    from operations.config.file_writer import add_source, initialise, remove_source
    from operations.config.loading import load_config
    from operations.config.redaction import describe_config
    from operations.config.schema import config_schema
    from operations.config.settings import Config, Source
    from operations.config.trust import find_config
    from operations.config.workspace import SourceReport, Workspace, open_workspace

__all__ = [
    "Catalogue",
    "CatalogueEntry",
    "Config",
    "Source",
    "SourceReport",
    "Workspace",
    "add_source",
    "config_schema",
    "describe_config",
    "find_config",
    "initialise",
    "load_catalogue",
    "load_config",
    "open_workspace",
    "remove_source",
    "store_catalogue",
]

_HOMES = {
    "cache": ("Catalogue", "CatalogueEntry", "load_catalogue"),
    "cache_writer": ("store_catalogue",),
    "file_writer": ("add_source", "initialise", "remove_source"),
    "loading": ("load_config",),
    "redaction": ("describe_config",),
    "schema": ("config_schema",),
    "settings": ("Config", "Source"),
    "trust": ("find_config",),
    "workspace": ("SourceReport", "Workspace", "open_workspace"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"operations.config.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
