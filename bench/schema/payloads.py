"""The schemas and values that are measured, made by code: nothing is copied from anywhere."""

from __future__ import annotations

from typing import Any, NamedTuple

_USER_URLS = ("url", "html_url", "followers_url", "gists_url", "starred_url", "orgs_url", "repos_url", "events_url")


class Case(NamedTuple):
    """One shape of data: its schema, a value that is clean, and how often to repeat one measurement."""

    name: str
    schema: dict[str, Any]
    value: Any
    repeat: int


def _object(properties: dict[str, Any], *, optional: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_URL = {"type": "string", "format": "uri"}
_TIME = {"type": "string", "format": "date-time"}
_USER = _object(
    {
        "login": _TEXT,
        "id": _NUMBER,
        "node_id": _TEXT,
        "avatar_url": {"type": ["string", "null"]},
        **dict.fromkeys(_USER_URLS, _URL),
        "type": {"enum": ["User", "Bot", "Organization"]},
        "site_admin": _FLAG,
    }
)
_LABEL = _object(
    {"id": _NUMBER, "name": _TEXT, "color": _TEXT, "default": _FLAG, "description": {"type": ["string", "null"]}}
)
_MILESTONE = _object(
    {"id": _NUMBER, "title": _TEXT, "state": {"enum": ["open", "closed"]}, "creator": {"$ref": "#/$defs/user"}}
)
_REACTIONS = _object(dict.fromkeys(("total", "plus", "minus", "laugh", "hooray", "heart", "rocket", "eyes"), _NUMBER))
_ISSUE = _object(
    {
        "id": _NUMBER,
        "node_id": _TEXT,
        **dict.fromkeys(("url", "repository_url", "labels_url", "comments_url", "events_url", "html_url"), _TEXT),
        "number": {"type": "integer", "minimum": 1},
        "title": _TEXT,
        "state": {"enum": ["open", "closed"]},
        "locked": _FLAG,
        "comments": _NUMBER,
        "user": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/user"}]},
        "assignee": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/user"}]},
        "assignees": {"type": "array", "items": {"$ref": "#/$defs/user"}},
        "labels": {"type": "array", "items": {"$ref": "#/$defs/label"}},
        "milestone": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/milestone"}]},
        "reactions": {"$ref": "#/$defs/reactions"},
        "body": {"type": ["string", "null"]},
        "created_at": _TIME,
        "updated_at": _TIME,
        "closed_at": {"type": ["string", "null"], "format": "date-time"},
        "author_association": {"enum": ["OWNER", "MEMBER", "CONTRIBUTOR", "NONE"]},
        "draft": _FLAG,
    },
    optional=("draft", "reactions", "assignees", "body"),
)
_DEFINITIONS = {"user": _USER, "label": _LABEL, "milestone": _MILESTONE, "reactions": _REACTIONS}


def _user(number: int) -> dict[str, Any]:
    login = f"user{number}"
    urls = {name: f"https://api.example.com/users/{login}/{name}" for name in _USER_URLS}
    return {
        "login": login,
        "id": number,
        "node_id": f"U_{number:08}",
        "avatar_url": f"https://example.com/{number}.png",
        **urls,
        "type": "User",
        "site_admin": False,
    }


def issue(number: int) -> dict[str, Any]:
    """One issue, its content following from its number."""
    base = f"https://api.example.com/repos/o/r/issues/{number}"
    return {
        "id": number * 1000,
        "node_id": f"I_{number:08}",
        "url": base,
        "repository_url": "https://api.example.com/repos/o/r",
        "labels_url": f"{base}/labels",
        "comments_url": f"{base}/comments",
        "events_url": f"{base}/events",
        "html_url": f"https://example.com/o/r/issues/{number}",
        "number": number,
        "title": f"Something is wrong ({number})",
        "state": "open" if number % 3 else "closed",
        "locked": False,
        "comments": number % 7,
        "user": _user(number % 50),
        "assignee": _user(1) if number % 2 else None,
        "assignees": [_user(k) for k in range(number % 3)],
        "labels": [
            {"id": k, "name": f"label{k}", "color": "ff0000", "default": False, "description": None}
            for k in range(number % 4)
        ],
        "milestone": {"id": 1, "title": "v1", "state": "open", "creator": _user(2)} if number % 2 else None,
        "reactions": dict.fromkeys(_REACTIONS["properties"], number % 5),
        "body": "It does not do what it says. " * (number % 9),
        "created_at": "2024-01-01T00:00:00Z",
        "updated_at": "2024-01-02T00:00:00Z",
        "closed_at": None,
        "author_association": "MEMBER",
        "draft": False,
    }


def _tree(levels: int) -> dict[str, Any]:
    return {"id": levels, "name": "node", "children": [_tree(levels - 1) for _ in range(3)] if levels else []}


def _shape(number: int) -> dict[str, Any]:
    point = {"x": 1.5, "y": number}
    return (
        {"kind": "circle", "centre": point, "radius": 2.5},
        {"kind": "box", "corner": point, "width": 3, "height": 4},
        {"kind": "label", "at": point, "text": f"label {number}", "bold": True},
    )[number % 3]


_POINT = _object({"x": {"type": "number"}, "y": {"type": "number"}})
_SIZE = {"type": "number"}
_SHAPES = {
    "type": "array",
    "items": {
        "anyOf": [
            _object({"kind": {"const": "circle"}, "centre": _POINT, "radius": _SIZE}),
            _object({"kind": {"const": "box"}, "corner": _POINT, "width": _SIZE, "height": _SIZE}),
            _object({"kind": {"const": "label"}, "at": _POINT, "text": _TEXT, "bold": _FLAG}, optional=("bold",)),
        ]
    },
}
_FIVE = _object({"id": _NUMBER, "name": _TEXT, "email": _TEXT, "active": _FLAG, "score": {"type": "number"}})
_TREE_SCHEMA = _object({"id": _NUMBER, "name": _TEXT, "children": {"type": "array", "items": {"$ref": "#"}}})


def cases() -> list[Case]:
    """Every shape that is measured."""
    five = {"id": 1, "name": "Ada", "email": "ada@example.com", "active": True, "score": 4.5}
    return [
        Case("5 fields", _FIVE, five, 2000),
        Case("issue", {**_ISSUE, "$defs": _DEFINITIONS}, issue(7), 200),
        Case(
            "1,000 issues",
            {"type": "array", "items": _ISSUE, "$defs": _DEFINITIONS},
            [issue(n + 1) for n in range(1000)],
            1,
        ),
        Case("unions", _SHAPES, [_shape(n) for n in range(150)], 10),
        Case("tree", _TREE_SCHEMA, _tree(6), 5),
    ]


def with_excess(value: Any) -> Any:
    """A copy in which every object has one member more than its schema knows."""
    if isinstance(value, dict):
        return {**{name: with_excess(item) for name, item in value.items()}, "unexpected": 1}
    return [with_excess(item) for item in value] if isinstance(value, list) else value


def with_bad_leaf(value: Any) -> Any:
    """A copy in which one leaf, the last, has the wrong type."""
    if isinstance(value, list):
        return [*value[:-1], with_bad_leaf(value[-1])]
    name = next(key for key in ("id", "radius", "width", "text") if key in value)
    return {**value, name: ["wrong"]}
