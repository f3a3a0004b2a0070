"""Code that calls an operation: a shell command, Python, curl. Texts only; nothing is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from operations.wire import encode_json

_SECRET_HEADERS = ("authorization", "cookie", "proxy-authorization", "token", "key", "secret", "password", "credential")


def shell_command(operation_id: str, example: Any, *, streams: bool) -> str:
    """What to type to call an operation with an example input."""
    words = ["ops", "sub" if streams else "call", operation_id]
    if isinstance(example, Mapping):
        words += [_word(name, value) for name, value in example.items()]
    return " ".join(words)


def python_code(operation_id: str, example: Any, *, streams: bool) -> str:
    """A program that opens the configuration and calls an operation."""
    given = f"{operation_id!r}, {_python(example)}"
    if streams:
        use = f"        async for event in workspace.registry.subscribe({given}):\n            print(event.data)"
    else:
        use = f"        envelope = await workspace.registry.execute({given})\n        print(envelope.data)"
    return (
        "import asyncio\n\n"
        "from operations.config import load_config, open_workspace\n\n\n"
        "async def main() -> None:\n"
        "    async with open_workspace(load_config()) as workspace:\n"
        f"{use}\n\n\n"
        "asyncio.run(main())\n"
    )


def without_secrets(request: Mapping[str, Any], redact: Callable[[str], str]) -> dict[str, Any]:
    """The request that a dry run gave, with its credentials left out: by the names of headers, and by `redact`."""
    headers = [[name, _shown(name, redact(value))] for name, value in request["headers"]]
    body = request.get("body")
    if isinstance(body, bytes):
        body = redact(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return {**request, "url": redact(request["url"]), "headers": headers, "body": body}


def curl_command(request: Mapping[str, Any]) -> str:
    """The request that a dry run gave, as curl sends it."""
    lines = [f"curl -X {request['method']} {_quoted(request['url'])}"]
    lines += [f"  -H {_quoted(f'{name}: {value}')}" for name, value in request["headers"]]
    body = request.get("body")
    if body:
        text = body.decode("utf-8", "backslashreplace") if isinstance(body, bytes) else str(body)
        lines.append(f"  --data-raw {_quoted(text)}")
    return " \\\n".join(lines)


def _shown(name: str, value: str) -> str:
    return "[redacted]" if any(word in name.lower() for word in _SECRET_HEADERS) else value


def _word(name: str, value: Any) -> str:
    plain = _plain(value)
    if plain is not None:
        return f"{name}={plain}"
    if isinstance(value, list) and value and all(_plain(item) is not None for item in value):
        return " ".join(f"{name}={_plain(item)}" for item in value)
    return f"{name}:={_quoted(encode_json(value).decode())}"


def _plain(value: Any) -> str | None:
    """A value that the schema can read from its text alone, as a shell wants it; None for any other."""
    if isinstance(value, str):
        return _quoted(value) if value else None
    return encode_json(value).decode() if isinstance(value, (bool, int, float)) else None


def _quoted(text: str) -> str:
    from shlex import quote

    return quote(text)


def _python(value: Any) -> str:
    from pprint import pformat

    return pformat(value, width=100, sort_dicts=False)
