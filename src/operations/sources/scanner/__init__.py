"""The scanner: finds the operations in a directory or package, and imports each module in isolation."""

from typing import TYPE_CHECKING, Any

from operations.sources.scanner.modules import FileEntry, LocalFS, ScannerFS, Skipped
from operations.sources.scanner.scan import ManifestChange, OperationManifest, Scanner, scan_operations

if TYPE_CHECKING:
    from operations.sources.scanner.watching import watch_operations

__all__ = [
    "FileEntry",
    "LocalFS",
    "ManifestChange",
    "OperationManifest",
    "Scanner",
    "ScannerFS",
    "Skipped",
    "scan_operations",
    "watch_operations",
]


def __getattr__(name: str) -> Any:
    if name != "watch_operations":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from operations.sources.scanner.watching import watch_operations  # on first use: most programs scan only once

    return watch_operations
