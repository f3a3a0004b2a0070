"""The short way to an address: for plain numbers and words in plain places, which most calls have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from operations.sources.openapi.parameters import Parameter
from operations.sources.openapi.template import Template

_PLACE = re.compile(r"\{([^{}]+)\}")
_LITERAL = re.compile(r"[A-Za-z0-9_.~/:@!$'()*,;=-]*")
_NAME = re.compile(r"[A-Za-z0-9_.~-]+")


class Shortcut:
    """Fills a path and a query whose parameters are all written the default way."""

    __slots__ = ("_path", "_query", "_start")

    def __init__(self, start: str, path: list[tuple[str, str]], query: list[tuple[str, str]]) -> None:
        self._start = start
        self._path = path
        """The key of each place, and the text after it."""
        self._query = query

    @classmethod
    def of(cls, template: Template) -> Shortcut | None:
        """The shortcut for a template; None where something in it needs the long way."""
        keys: dict[str, str] = {}
        query: list[tuple[str, str]] = []
        for key, parameter in template.plan.parameters.items():
            if parameter.location == "path":
                keys[parameter.name] = key
            elif parameter.location == "query":
                query.append((key, f"{parameter.name}="))
            if parameter.location in ("path", "query", "querystring") and not _is_plain(parameter):
                return None
        pieces = _PLACE.split(template.path)
        if not all(_LITERAL.fullmatch(piece) for piece in pieces[::2]) or not keys.keys() >= set(pieces[1::2]):
            return None
        places = [(keys[name], text) for name, text in zip(pieces[1::2], pieces[2::2], strict=True)]
        return cls(pieces[0], places, query)

    def fill(self, input: Mapping[str, Any]) -> tuple[str, str] | None:
        """Path and query; None where a value needs the long way."""
        path = self._start
        for key, text in self._path:
            value = input.get(key)
            if not (type(value) is int or (type(value) is str and value.isalnum() and value.isascii())):
                return None
            path = f"{path}{value}{text}"
        query = ""
        for key, name in self._query:
            if key in input:
                value = input[key]
                if not (type(value) is int or (type(value) is str and value.isalnum() and value.isascii())):
                    return None
                query = f"{query}&{name}{value}" if query else f"{name}{value}"
        return path, query


def _is_plain(parameter: Parameter) -> bool:
    return (
        parameter.style in (None, "simple", "form")
        and parameter.media_type is None
        and parameter.location != "querystring"
        and _NAME.fullmatch(parameter.name) is not None
    )
