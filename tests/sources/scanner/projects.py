"""Folders of modules to scan."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files below a folder, each text dedented; the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def greeting(word: str = "hello", name: str = "greet") -> str:
    """The text of a module with one operation."""
    return f"""
from operations import operation

@operation(type="query")
def {name}(who: str) -> str:
    return "{word} " + who
"""
