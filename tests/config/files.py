"""Configurations to load."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from operations import CallError, ErrorCode
from operations.config import Config, load_config


def write(folder: Path, text: str, name: str = "operations.toml") -> Path:
    """Write a file below a folder, its text dedented; its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"))
    return path


def load(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> Config:
    return load_config(write(folder, text), environ=environ or {})


def problems(path: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """The lines of the error that a file gives, with the folder taken out."""
    with pytest.raises(CallError) as caught:
        load_config(path, environ=environ or {})
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    lines = caught.value.message.splitlines()
    assert len(lines) == len(caught.value.details["errors"])
    return [line.replace(f"{path.parent}/", "") for line in lines]
