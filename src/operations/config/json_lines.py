"""Which line each key of a JSON text is on; comments and trailing commas, which editors allow, are taken out first."""

from __future__ import annotations

import json
import re

from operations.config.problems import Key

_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.S)
_COMMA = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])', re.S)
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\],:]|[^\s{}\[\],:"]+|\n', re.S)


def without_comments(text: str) -> str:
    """The text with comments and trailing commas blanked, so that everything else stays where it is."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return _COMMA.sub(blank, _COMMENT.sub(blank, text))


def json_lines(text: str) -> dict[Key, int]:
    """The line of every member and item of a text that is JSON."""
    lines: dict[Key, int] = {}
    stack: list[str | int] = []
    line = 1
    pending: str | None = None
    for token in _TOKEN.findall(text):
        if token == "\n":
            line += 1
        elif token in ("{", "["):
            stack.append(0 if token == "[" else "")
            if token == "[":
                lines.setdefault(tuple(stack), line)
        elif token in ("}", "]"):
            stack.pop()
        elif token == "," and stack and isinstance(stack[-1], int):
            stack[-1] += 1
            lines.setdefault(tuple(stack), line)
        elif token == ":" and pending is not None and stack:
            stack[-1] = str(json.loads(pending))
            lines.setdefault(tuple(stack), line)
        pending = token if token.startswith('"') else pending
    return lines
