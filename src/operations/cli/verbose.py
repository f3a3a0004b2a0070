"""`--verbose`: the HTTP requests and responses of a call on stderr, without secrets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from operations.cli import stderr
from operations.cli.terminal import printable

_SECRET_NAMES = ("auth", "cookie", "token", "key", "secret", "password", "credential", "session", "signature")


def show_request(request: Any) -> None:
    """Show the method, URL and headers of a request."""
    _show(">", f"{request.method} {request.url}", request.headers)


def show_response(request: Any, status: int, headers: Sequence[tuple[str, str]]) -> None:
    """Show the status and headers of a response."""
    _show("<", str(status), headers)


def hide_secret(name: str, value: str) -> str:
    """Return the value of a header; `[redacted]` if its name suggests a secret."""
    return "[redacted]" if any(word in name.lower() for word in _SECRET_NAMES) else stderr.redacted(value)


def _show(sign: str, head: str, headers: Iterable[tuple[str, str]]) -> None:
    pairs = [(name, hide_secret(name, value)) for name, value in headers]
    if stderr.is_json():
        about = "request" if sign == ">" else "response"
        stderr.write_record("debug", head, {about: {"head": head, "headers": [list(pair) for pair in pairs]}})
        return
    stderr.write_line(printable(f"{sign} {stderr.redacted(head)}"))
    for name, value in pairs:
        stderr.write_line(printable(f"{sign} {name}: {value}"))
