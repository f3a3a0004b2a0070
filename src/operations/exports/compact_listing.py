"""compact_listing: an overview of many operations in few tokens."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

_CHARACTERS_PER_TOKEN = 3
"""A cautious value: on average, a token has more characters of an id."""
_GROUP = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def compact_listing(operation_ids: Iterable[str], *, tokens: int = 2_000) -> str:
    """Return the ids by group: all ids if they fit into `tokens`, otherwise some ids and the size of each group.

    `github.repos/get` is in the group `github.repos`; for a name without a slash, its first word is the group.
    """
    ids = sorted(operation_ids)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for operation_id in ids:
        group, name = _split(operation_id)
        groups[group].append(name)
    room = tokens * _CHARACTERS_PER_TOKEN
    head = f"{len(ids)} operations. group (number): names"
    for most in (10_000, 50, 20, 10, 6, 4, 3, 2, 1, 0):
        text = "\n".join([head, *(_line(group, names, most) for group, names in groups.items())])
        if len(text) <= room:
            return text
    return _largest_groups(head, groups, room)


def _split(operation_id: str) -> tuple[str, str]:
    namespace, _, name = operation_id.rpartition(".")
    group, slash, rest = name.partition("/")
    if slash:
        return f"{namespace}.{group}", rest
    words = _GROUP.findall(name)
    return (f"{namespace}.{words[0]}*", name) if len(words) > 1 else (namespace, name)


def _line(group: str, names: Sequence[str], most: int) -> str:
    shown = " ".join(names[:most])
    more = " …" if len(names) > most else ""
    return f"{group} ({len(names)}): {shown}{more}" if most else f"{group} ({len(names)})"


def _largest_groups(head: str, groups: dict[str, list[str]], room: int) -> str:
    """Return the groups with the most operations, for a registry with too many groups."""
    lines, used = [head], len(head)
    for group, names in sorted(groups.items(), key=lambda each: -len(each[1])):
        line = f"{group} ({len(names)})"
        if used + len(line) + 30 > room:
            lines.append(f"and {len(groups) - len(lines) + 1} more groups")
            break
        lines.append(line)
        used += len(line) + 1
    return "\n".join(lines)
