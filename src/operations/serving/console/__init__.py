"""The console: a web page of a served registry, and the JSON that it reads. See `docs/console-api.md`."""

from __future__ import annotations

from operations.serving.console.sources import Sources, SourceState

__all__ = ["SourceState", "Sources"]
