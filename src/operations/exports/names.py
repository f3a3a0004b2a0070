"""Tool and property names that every model provider accepts. Each name identifies one operation or property."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from hashlib import blake2b

TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""Names that OpenAI, Anthropic, Gemini and MCP all accept."""
PROPERTY_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LONGEST = 64
_NOT_TOOL = re.compile(r"[^A-Za-z0-9_-]")
_NOT_PROPERTY = re.compile(r"[^A-Za-z0-9_.-]")


def tool_names(operation_ids: Iterable[str]) -> dict[str, str]:
    """Return a tool name for each id, all different: `github.repos/get` becomes `github_repos_get`.

    A name that is too long, or that two ids would share, ends in a hash of its id. Names do not depend on the order of
    the ids.
    """
    plain: defaultdict[str, list[str]] = defaultdict(list)
    for operation_id in operation_ids:
        plain[_plain_name(operation_id)].append(operation_id)
    names: dict[str, str] = {}
    used = set(plain)
    for name, ids in plain.items():
        if len(ids) == 1 and TOOL_NAME.fullmatch(name):
            names[ids[0]] = name
            continue
        for operation_id in ids:
            names[operation_id] = _hashed_name(name, operation_id, used)
            used.add(names[operation_id])
    return names


def property_name(name: str) -> str:
    """Return the name under which a property is exported: unchanged if every provider accepts it, else with a hash."""
    if PROPERTY_NAME.fullmatch(name):
        return name
    return f"{_NOT_PROPERTY.sub('_', name)[: _LONGEST - 9]}_{_digest(name, 8)}"


def _plain_name(operation_id: str) -> str:
    name = _NOT_TOOL.sub("_", operation_id)
    return f"_{name}" if name[:1].isdigit() or name[:1] == "-" else name


def _hashed_name(name: str, operation_id: str, used: set[str]) -> str:
    for length in range(8, 33, 4):
        hashed = f"{name[: _LONGEST - 1 - length]}_{_digest(operation_id, length)}"
        if hashed not in used:
            return hashed
    raise ValueError(f"no free tool name for {operation_id}")


def _digest(text: str, length: int) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()[:length]
