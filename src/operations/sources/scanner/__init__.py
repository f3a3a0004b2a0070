"""The scanner: operations in a directory or package of Python modules, each imported in isolation."""

from operations.sources.scanner.files import FileEntry, LocalFS, ScannerFS
from operations.sources.scanner.manifest import ManifestChange, OperationManifest, Skipped
from operations.sources.scanner.scan import Scanner, scan_operations
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
