"""Redactor: replaces secrets, recognised by field name, by known value and by format."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

REDACTED = "[redacted]"
_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NAME = re.compile(
    r"(?:^|[-_. ])(?:tokens?|secrets?|passwords?|passwd|passphrase|pwd|api[-_ ]?keys?|apikeys?|credentials?|"
    r"authori[sz]ation|cookies?|bearer|private[-_ ]?keys?|access[-_ ]?keys?|signing[-_ ]?keys?|"
    r"session[-_ ]?(?:id|key)s?|signatures?|sig|jwt|otp|cvc|cvv|"
    r"[a-z]*(?:passwords?|passwd|secrets?|secretkeys?|(?:access|refresh|auth|id|api|session)tokens?))(?:$|[-_. ])",
    re.I,
)
_SHAPES = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), REDACTED),
    # A JWT. The lookbehind and the lookahead make the search take linear time: each word is examined once.
    (
        re.compile(
            r"(?<![\w-])(?=[\w-]++\.[\w-]{8})([\w-]*?)\beyJ[\w-]{8,}+\.[\w-]++(?:\.[\w-]*+)*+",
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"\b(?:gh[opsur]|github_pat|glpat|xox[abeprs]|sk|rk|pk|whsec)[-_][\w-]{16,}"), REDACTED),
    (re.compile(r"\bAKIA[0-9A-Z]{16}\b"), REDACTED),
    (re.compile(r"\b(Bearer|Basic|Token)\s+[\w.~+/=-]{8,}", re.I), rf"\1 {REDACTED}"),
    (re.compile(r"(?<=://)[^/?#\s@]+(?=@)"), REDACTED),
    (
        re.compile(r"([?&](?:[\w.-]*(?:token|secret|password|key|sig|signature|code)))=[^&#\s\"']+", re.I),
        rf"\1={REDACTED}",
    ),
)
_SECRET_VARIABLE = re.compile(r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|KEY|CREDENTIALS?)$", re.I)
_SHORTEST_SECRET = 4
_SHORTEST_VARIABLE = 8
"""Values of environment variables are replaced from this length on: shorter values may be ordinary words."""
_LONGEST_NAME = 1_000
"""Maximum length of field names that are searched for words such as `token`; a longer name counts as secret."""
_LONGEST_JSON = 1024 * 1024
"""Maximum length of strings that are read as JSON documents."""
_SPACE = " \t\n\r"
"""The characters that may precede a JSON document."""


class Redactor:
    """Replaces secrets in JSON-shaped data. Booleans are not replaced, nor are numbers outside secret fields.

    `secrets` are values to replace in strings and bytes, also where JSON or a URL escapes them. `replace` is a function
    that is applied to every string afterwards.
    """

    def __init__(self, secrets: Iterable[str] = (), *, replace: Callable[[str], str] | None = None) -> None:
        forms = {form for each in secrets if len(each) >= _SHORTEST_SECRET for form in _written_forms(each)}
        known = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None
        self._replace = replace

    def data(self, value: Any) -> Any:
        """Return data without secrets; `value` is not changed."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self._key(key): self._field(key, each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(each) for each in value]
        return self._bytes(value) if isinstance(value, bytes) else value

    def beginning(self, value: Any, most: int) -> Beginning:
        """Return the beginning of `value` without secrets; no field or item is added after `most` characters."""
        return Beginning(value, most, text=self.text, is_secret=is_secret_name, hide=_hidden)

    def schema(self, value: Any) -> Any:
        """Return a JSON Schema, or a part of one, without secrets in its strings; names and patterns are kept."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            kept = {"pattern": value["pattern"]} if isinstance(value.get("pattern"), str) else {}
            return {key: self.schema(each) for key, each in value.items()} | kept
        return [self.schema(each) for each in value] if isinstance(value, (list, tuple)) else value

    def text(self, text: str) -> str:
        """Return a string without known secrets and credential-like parts.

        If the string is a JSON document, its secret fields are replaced too.
        """
        text = self._without_secrets(self._without_fields(text))
        return text if self._replace is None else self._replace(text)

    def _without_fields(self, text: str) -> str:
        document = json_document(text)
        if document is None:
            return text
        try:
            cleaned = self.data(document)
            return text if cleaned == document else msgspec.json.encode(cleaned).decode()
        except RecursionError:
            return REDACTED

    def _without_secrets(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        for shape, put in _SHAPES:
            text = shape.sub(put, text)
        return text

    def _bytes(self, value: bytes) -> bytes:
        """Return bytes without the secrets that their UTF-8 text contains."""
        text = value.decode("utf-8", "surrogateescape")
        clean = self._without_secrets(text)
        return value if clean == text else clean.encode("utf-8", "surrogateescape")

    def _key(self, key: Any) -> Any:
        return self.text(key) if isinstance(key, str) else key

    def _field(self, key: Any, value: Any) -> Any:
        if isinstance(key, str) and is_secret_name(key):
            return _hidden(value)
        return self.data(value)


def _written_forms(secret: str) -> set[str]:
    """Return the forms in which a secret is written in plain text, in JSON and in URLs."""
    in_json = {json.dumps(secret, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
    return {secret, *in_json, quote(secret, safe=""), quote_plus(secret)}


def environment_secrets() -> list[str]:
    """Return the values of environment variables whose names suggest a secret, such as `GITHUB_TOKEN`."""
    return [
        value
        for name, value in os.environ.items()
        if _SECRET_VARIABLE.search(name) and len(value) >= _SHORTEST_VARIABLE
    ]


def json_document(text: str) -> Any:
    """Return the object or list that a string contains as JSON text; None for any other string."""
    if len(text) > _LONGEST_JSON or text.lstrip(_SPACE)[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def is_secret_name(name: str) -> bool:
    """Whether the name of a field suggests a secret, such as `accessToken`, or is too long to be searched."""
    return len(name) > _LONGEST_NAME or _NAME.search(_BOUNDARY.sub("_", name)) is not None


def _hidden(value: Any) -> Any:
    """Return a secret value with the placeholder in place of each string, number and bytes value."""
    if isinstance(value, dict):
        return {key: _hidden(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hidden(each) for each in value]
    return value if value is None or isinstance(value, bool) else REDACTED


class Beginning:
    """The beginning of JSON-shaped data without secrets. The rest is not examined, so that large data costs little.

    `most` is the number of characters after which no further field or item is added. `text` returns a string without
    its secrets. `hide` replaces the value of a field if `is_secret` is true for its name.
    """

    def __init__(
        self,
        value: Any,
        most: int,
        *,
        text: Callable[[str], str],
        is_secret: Callable[[str], bool],
        hide: Callable[[Any], Any],
    ) -> None:
        self.is_whole = True
        """Whether the data was not truncated."""
        self._text = text
        self._is_secret = is_secret
        self._hide = hide
        self._longest = 2 * most
        self._left = most
        self.data = self._first(value)

    def _first(self, value: Any) -> Any:
        """Return a value, or its beginning."""
        if isinstance(value, str):
            return self._first_text(value)
        self._left -= 1
        if isinstance(value, dict):
            kept = {}
            for name, each in value.items():
                if self._ends():
                    break
                hidden = isinstance(name, str) and self._is_secret(name)
                key = self._first_text(name) if isinstance(name, str) else name
                kept[key] = self._first(self._hide(each) if hidden else each)
            return kept
        if isinstance(value, (list, tuple)):
            items = []
            for each in value:
                if self._ends():
                    break
                items.append(self._first(each))
            return items
        if isinstance(value, (bytes, bytearray, memoryview)) and len(value) > self._longest:
            self.is_whole = False
            return bytes(value[: self._longest])
        return value

    def _ends(self) -> bool:
        """Return whether no further field or item is to be added; if so, `is_whole` becomes False."""
        if self._left <= 0:
            self.is_whole = False
        return self._left <= 0

    def _first_text(self, text: str) -> str:
        if len(text) > self._longest:
            # A truncated JSON document would not be recognised as one, and would show its secret fields.
            document = json_document(text)
            if document is not None:
                return msgspec.json.encode(self._first(document)).decode()
            self.is_whole = False
            text = text[: self._longest]
        text = self._text(text)
        self._left -= len(text)
        return text
