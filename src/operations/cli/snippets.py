"""Examples for an operation: an input, and the call as shell, Python and curl; nothing is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from operations.cli.arguments import is_assignment
from operations.cli.stderr import hide_secret
from operations.config.trust import shell_quoted
from operations.errors import CallError
from operations.schema import Schema
from operations.schema.parts import Fields
from operations.wire import decode_json, encode_json

_MAX_FIELDS = 12
_MAX_LENGTH = 1_000
_FORMATS = {
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "ada@example.com",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "9f1c2a34-5b6d-4e7f-8a90-b1c2d3e4f506",
    "ipv4": "192.0.2.1",
    "hostname": "example.com",
}


def example_input(schema: Schema, *, optional: bool = False) -> Any:
    """Return an example input: its required fields, or one field if none is required; with `optional`, also others.

    Values come from the schema's examples and types. If the schema rejects this input, invalid parts are replaced.
    """
    if schema.is_unknown:
        return {}
    fields = Fields(schema.document)
    guessed = _guess(fields, [], optional=optional, depth=0)
    if schema.check(guessed):
        return guessed
    return schema.cast(guessed, "total")


def _guess(fields: Fields, path: list[str | int], *, optional: bool, depth: int) -> Any:
    nodes = fields.at(path)
    offered = _offered(nodes)
    if offered:
        return offered[0]
    types = fields.types(path)
    if ("object" in types and not fields.is_binary(path)) or (not path and fields.names()):
        return _guess_object(fields, path, nodes, optional=optional, depth=depth)
    if "array" in types:
        return [] if depth > 4 else [_guess(fields, [*path, 0], optional=False, depth=depth + 1)]
    return _guess_scalar(types, nodes)


def _guess_object(
    fields: Fields, path: list[str | int], nodes: list[dict[str, Any]], *, optional: bool, depth: int
) -> dict[str, Any]:
    required = [name for node in nodes[:1] for name in node.get("required", [])]
    names = fields.names(path)
    included = [name for name in names if name in required or (optional and not path)]
    if not included and not path:
        included = names[:1]
    if depth > 4:
        return {}
    maximum = max(_MAX_FIELDS, len(required))
    return {name: _guess(fields, [*path, name], optional=False, depth=depth + 1) for name in included[:maximum]}


def _offered(nodes: list[dict[str, Any]]) -> list[Any]:
    """Return the example, constant, default and first enumerated values in schemas; a default of null is skipped."""
    listed: list[Any] = []
    for node in nodes:
        listed += node.get("examples", ())
        listed += [node[key] for key in ("example", "const") if key in node]
    for node in nodes:
        listed += [node["default"]] if node.get("default") is not None else []
        listed += node.get("enum", ())[:1]
    return listed


def _guess_scalar(types: set[str], nodes: list[dict[str, Any]]) -> Any:
    node: dict[str, Any] = {}
    for each in nodes:
        node.update(each)
    if "string" in types:
        text = _FORMATS.get(node.get("format", ""), "text")
        return text.ljust(min(int(node.get("minLength", 0)), _MAX_LENGTH), "x")
    if types & {"integer", "number"}:
        low = node.get("minimum", node.get("exclusiveMinimum", 0))
        return max(1, int(low) + 1) if "maximum" not in node else min(max(1, int(low)), int(node["maximum"]))
    return True if "boolean" in types else None


def shell_command(operation_id: str, example: Any, fields: Fields, *, streams: bool) -> str:
    """Return the shell command that calls an operation with an example input; for bytes, the command names a file."""
    words = ["ops", "sub" if streams else "call", operation_id]
    if isinstance(example, Mapping) and all(is_assignment(name, "") for name in example):
        for name, value in example.items():
            words.append(f"{shell_quoted(name)}@FILE" if fields.is_binary([name]) else _word(name, value))
    elif isinstance(example, Mapping):
        words.append(shell_quoted(encode_json(example).decode()))
    return " ".join(words)


def python_code(operation_id: str, example: Any, *, streams: bool) -> str:
    """Return a Python program that opens the configuration and calls an operation."""
    args = f"{operation_id!r}, {_python(example)}"
    if streams:
        use = f"        async for event in workspace.registry.subscribe({args}):\n            print(event.data)"
    else:
        use = f"        envelope = await workspace.registry.execute({args})\n        print(envelope.data)"
    return (
        "import asyncio\n\n"
        "from operations.config import load_config, open_workspace\n\n\n"
        "async def main() -> None:\n"
        "    async with open_workspace(load_config()) as workspace:\n"
        f"{use}\n\n\n"
        "asyncio.run(main())\n"
    )


def without_secrets(request: Mapping[str, Any], redact: Callable[[str], str]) -> dict[str, Any]:
    """Return a dry run's request without credentials, which are recognised by header names and by `redact`."""
    headers = [[name, hide_secret(name, redact(value))] for name, value in request["headers"]]
    body = request.get("body")
    body = [_redacted(part, redact) for part in body] if isinstance(body, list) else _redacted(body, redact)
    return {**request, "url": redact(request["url"]), "headers": headers, "body": body}


def _redacted(part: Any, redact: Callable[[str], str]) -> Any:
    if not isinstance(part, bytes):
        return part
    return redact(part.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def curl_command(request: Mapping[str, Any]) -> str:
    """Return a dry run's request as a curl command; a body that is not all printable comes from `printf` and `cat`."""
    lines = [f"curl -X {shell_quoted(request['method'])} {shell_quoted(request['url'])}"]
    lines += [f"  -H {shell_quoted(f'{name}: {value}')}" for name, value in request["headers"]]
    body = request.get("body") or b""
    text = _printable_text(body) if isinstance(body, bytes) else None
    if text is None:
        parts = body if isinstance(body, list) else [body]
        lines[0] = f"{{ {'; '.join(map(_write_command, parts))}; }} | {lines[0]}"
        lines.append("  --data-binary @-")
    elif text:
        lines.append(f"  --data-raw {shell_quoted(text)}")
    return " \\\n".join(lines)


def _printable_text(body: bytes) -> str | None:
    """Return a body as text; None if it has control characters, except line feeds, or is not UTF-8."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if text.replace("\n", "").isprintable() else None


def _write_command(part: Any) -> str:
    """Return the shell command that writes one part of a body; `FILE` stands for content without a path."""
    if isinstance(part, bytes):
        text = "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\0{byte:03o}" for byte in part)
        return f"printf %b {shell_quoted(text)}"
    return f"cat {shell_quoted(part['path'] or 'FILE')}"


def readable_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dry run's request. A body of JSON or text is decoded; of a streamed body, the parts that are text."""
    body = request.get("body")
    if isinstance(body, list):
        return {**request, "body": [_text_part(part) for part in body]}
    if not isinstance(body, bytes):
        return dict(request)
    kind = next((value for name, value in request["headers"] if name.lower() == "content-type"), "")
    try:
        text = body.decode()
        return {**request, "body": decode_json(body) if "json" in kind else text}
    except (UnicodeDecodeError, CallError):
        return dict(request)


def _text_part(part: Any) -> Any:
    try:
        return part.decode() if isinstance(part, bytes) else part
    except UnicodeDecodeError:
        return part


def request_text(request: Mapping[str, Any]) -> str:
    """Return a dry run's request as an HTTP message for people."""
    lines = [f"{request['method']} {request['url']}", *(f"{name}: {value}" for name, value in request["headers"])]
    body = readable_request(request)["body"]
    if body is None:
        return "\n".join(lines) + "\n"
    if isinstance(request["body"], list):
        body = "".join(map(_part_text, body)).replace("\r\n", "\n").rstrip("\n")
    elif isinstance(body, bytes):
        body = f"({len(body):,} bytes)"
    elif not isinstance(body, str):
        body = msgspec.json.format(encode_json(body), indent=2).decode()
    return "\n".join([*lines, "", body]) + "\n"


def _part_text(part: Any) -> str:
    """Return a part of a streamed body: text, or a line about a file or bytes."""
    if isinstance(part, str):
        return part
    if isinstance(part, bytes):
        return f"({len(part):,} bytes)"
    size = "unknown size" if part["size"] is None else f"{part['size']:,} bytes"
    return f"({part['path'] or 'stream'}, {size})"


def _word(name: str, value: Any) -> str:
    plain = _plain(value)
    if plain is not None:
        return f"{shell_quoted(name)}={plain}"
    if isinstance(value, list) and value and all(_plain(item) is not None for item in value):
        return " ".join(f"{shell_quoted(name)}={_plain(item)}" for item in value)
    return f"{shell_quoted(name)}:={shell_quoted(encode_json(value).decode())}"


def _plain(value: Any) -> str | None:
    """Return a value as shell text for `key=value`; None if the value can only be written as JSON, with `key:=`."""
    if isinstance(value, str):
        return shell_quoted(value) if value and not value.startswith("@") else None  # `name=@…` would read a file
    return encode_json(value).decode() if isinstance(value, (bool, int, float)) else None


def _python(value: Any) -> str:
    from pprint import pformat

    return pformat(value, width=100, sort_dicts=False)
