"""The real servers from npm that the tests run against, installed by `make test` into tests/node."""

from __future__ import annotations

from pathlib import Path

BINARIES = Path(__file__).parent / "node" / "node_modules" / ".bin"


def npm_binary(name: str) -> str:
    """The path of a command that npm installed; a missing one fails the test that needs it."""
    path = BINARIES / name
    if not path.exists():
        raise AssertionError(f"{name} is not installed: `make test` does it, or `npm ci` in tests/node")
    return str(path)
