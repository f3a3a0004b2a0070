"""Problems of a configuration, each with its file and line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode

Key = tuple[str | int, ...]

DIRECT_FILE = "command-line"
"""The name of the file that stands for the sources of `--mcp` and `--openapi`; this file does not exist."""


class ConfigProblem(msgspec.Struct, frozen=True):
    """A problem and its location."""

    file: Path
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        if self.file.name == DIRECT_FILE:
            return f"{self._option()}: {self.message}"
        subject = f"{self.key}: " if self.key else ""
        return f"{self.file}:{self.line}: {subject}{self.message}"

    def _option(self) -> str:
        """Return the command-line option that has the problem, such as `--mcp` for the key `sources.mcp.url`."""
        source, setting, name = (*self.key.split(".", 3)[1:], "")[:3]
        return f"--header {name}" if setting == "headers" else "--mcp" if source == "mcp" else "--openapi"


def problems_error(problems: Sequence[ConfigProblem]) -> CallError:
    """Return the error for an invalid configuration: one line per problem, and the problems as data in its details."""
    files = list(dict.fromkeys(problem.file for problem in problems))
    problems = sorted(problems, key=lambda problem: (files.index(problem.file), problem.line))
    details: list[dict[str, Any]] = [
        {"file": str(problem.file), "line": problem.line, "key": problem.key, "message": problem.message}
        for problem in problems
    ]
    return CallError(ErrorCode.VALIDATION_ERROR, "\n".join(map(str, problems)), {"errors": details})


def write_key(key: Iterable[str | int]) -> str:
    """Return a key as text, such as `sources.github.args[0]`."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f"{'.' if text else ''}{part}"
    return text


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean x?` if a known name is similar, else `; expected one of …`."""
    import difflib  # imported only after an error: it is slow to import

    names = sorted(known)
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else f"; expected one of {', '.join(names)}"
