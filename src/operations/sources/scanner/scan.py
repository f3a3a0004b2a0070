"""scan_operations: walk, import, collect."""

from __future__ import annotations

from pathlib import Path

from operations.sources.scanner.files import ScannerFS
from operations.sources.scanner.manifest import OperationManifest


def scan_operations(path: str | Path, fs: ScannerFS | None = None, *, timeout: float = 30.0) -> OperationManifest:
    """The operations in a folder, a file or an importable package, with everything that was skipped and why.

    Each module is imported on its own: one that raises, exits, hangs for `timeout` seconds or cannot be read is
    reported in `skipped` and stops nothing. `fs` is where the modules are read from: the machine's files if not given.
    """
    raise NotImplementedError
