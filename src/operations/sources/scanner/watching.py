"""watch_operations: repeat a scan and keep a registry up to date."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from operations.catalogue import OperationCatalogue
from operations.sources.scanner.isolation import in_background
from operations.sources.scanner.modules import ScannerFS
from operations.sources.scanner.scan import ManifestChange, OperationManifest, Scanner
from operations.spec import Operation, OperationSpec

_log = logging.getLogger("operations.scanner")


async def watch_operations(
    path: str | Path,
    on_change: Callable[[ManifestChange], Awaitable[None] | None] | None = None,
    *,
    registry: OperationCatalogue | None = None,
    fs: ScannerFS | None = None,
    interval: float = 0.5,
    timeout: float = 30.0,
) -> None:
    """Scan a directory or package, then scan changed modules again every `interval` seconds, until cancelled.

    `on_change` is called after the first scan and after each change. In `registry`, operations are added, replaced and
    removed accordingly; operations of other sources stay unchanged. `timeout` limits the import of each module.
    """
    scanner = await in_background(Scanner, path, fs, timeout=timeout)
    manifest = await in_background(scanner.scan)
    ids = sorted(manifest.origins)
    change: ManifestChange | None = ManifestChange(manifest=manifest, added=ids, skipped=manifest.skipped)
    before = OperationManifest()
    while True:
        if change is not None:
            if registry is not None:
                _apply(registry, before, change.manifest)
            before = change.manifest
            answer = on_change(change) if on_change is not None else None
            if inspect.isawaitable(answer):
                await answer
        await asyncio.sleep(interval)
        change = await in_background(scanner.rescan)


def _apply(registry: OperationCatalogue, before: OperationManifest, after: OperationManifest) -> None:
    """Apply the difference of two manifests to a registry; operations of other sources stay."""
    old, new = before.by_id, after.by_id
    for operation_id, value in old.items():
        if operation_id not in new and _is_ours(registry, operation_id, value):
            registry.unregister(operation_id)
    for operation_id, value in new.items():
        earlier = old.get(operation_id)
        if value is earlier:
            continue
        registered = registry.get_operation(operation_id)
        if registered is not None and not _is_ours(registry, operation_id, earlier):
            _log.warning("skipped %s, which another source has registered", operation_id)
        elif isinstance(value, Operation):
            registry.register(value, replace=True)
        elif registered is None:
            registry.register_spec(value)
        else:
            # The handler of a spec was registered separately, and stays registered.
            registry.register(msgspec.structs.replace(registered, spec=value), replace=True)


def _is_ours(registry: OperationCatalogue, operation_id: str, value: Operation[Any] | OperationSpec | None) -> bool:
    registered = registry.get_operation(operation_id)
    if registered is None or value is None:
        return False
    return registered is value or registered.spec is value
