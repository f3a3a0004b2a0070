"""watch_operations: a scan kept up to date, and a registry with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from operations.catalogue import OperationCatalogue
from operations.sources.scanner.files import ScannerFS
from operations.sources.scanner.manifest import ManifestChange


async def watch_operations(
    path: str | Path,
    on_change: Callable[[ManifestChange], Awaitable[None] | None] | None = None,
    *,
    registry: OperationCatalogue | None = None,
    fs: ScannerFS | None = None,
    interval: float = 0.5,
    timeout: float = 30.0,
) -> None:
    """Scan, then look every `interval` seconds and scan again what changed, until cancelled.

    `on_change` is called with the first scan and after each change; `registry` gets what was added or changed and loses
    what is gone, and nothing else in it is touched.
    """
    raise NotImplementedError
