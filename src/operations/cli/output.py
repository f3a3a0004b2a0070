"""Output of commands: results on stdout, JSON in a pipe and formatted on a terminal; one line of meta on stderr."""

from __future__ import annotations

import base64
import os
import time
from typing import Any

import msgspec

from operations.cli import stderr
from operations.cli.arguments import ParsedArguments
from operations.cli.failures import OPERATION, CommandError
from operations.cli.terminal import (
    is_terminal,
    paint,
    paint_json,
    printable,
    printable_json,
    results,
    styled_only,
    write_text,
)
from operations.content import is_content_block
from operations.envelope import HTTPResponseMeta, MCPResponseMeta, ResponseEnvelope
from operations.errors import CallError
from operations.wire import encode_json


class Output:
    """Writes results to stdout in the form that a command's options select."""

    def __init__(self, args: ParsedArguments) -> None:
        self._stdout = results()
        self._json = bool(args.json)
        self._quiet = bool(args.quiet)
        self._raw = bool(args.raw) and not self._json  # with --json, all of stdout is JSON
        self._part = "envelope" if args.envelope else "meta" if args.meta else "data"
        self._jq: Any = None if args.jq is None else _compile(args.jq)
        self._on_terminal = is_terminal(self._stdout)
        self.pretty = self._on_terminal and not self._json
        self.is_plain = self.pretty and self._part == "data" and self._jq is None
        """Whether the whole `data` is printed for a person: on a terminal, without --json, --envelope, --meta, --jq."""
        self._is_remote = getattr(args, "url", None) is not None

    def text_of(self, envelope: ResponseEnvelope[Any], *, compact: bool = False, to_file: bool = False) -> bytes:
        """Return what to print for a result, with a line end.

        With `compact`, JSON is written on one line, and bytes as JSON. With `to_file`, bytes are returned unchanged,
        even with `--json`; for content blocks with exactly one file, the bytes of this file are returned.
        """
        value = self._selected(envelope)
        if self._jq is not None:
            return b"".join(self.rendered(each, compact=compact) for each in self._run_jq(value))
        if to_file and (file := only_file(value)) is not None:
            return file
        if isinstance(value, bytes) and (to_file or not (self._json or compact)):
            return value
        return self.rendered(value, compact=compact)

    def numbered(self, envelope: ResponseEnvelope[Any], number: int) -> bytes:
        """Return a result on one line, with the number of its input line; with `--jq`, without the number."""
        if self._jq is not None:
            return self.text_of(envelope, compact=True)
        value = self._selected(envelope)
        return self.rendered(
            {"line": number, **(value if self._part == "envelope" else {self._part: value})}, compact=True
        )

    async def result(self, envelope: ResponseEnvelope[Any], started: float, *, to: str | None = None) -> None:
        """Write one result and its line of meta."""
        text = self.text_of(envelope, to_file=to is not None)
        if to is not None:
            with open(to, "wb") as file:  # noqa: ASYNC230  # one small local file, and nothing else runs
                file.write(text)
        elif isinstance(envelope.data, bytes) and self.is_plain:
            self.note(f"{len(envelope.data):,} bytes: write them to a file with -o FILE or to a pipe")
        else:
            await self.write(text)
        seconds = time.perf_counter() - started
        line = meta_line(envelope, seconds, is_remote=self._is_remote)
        self.note(line, source=envelope.meta.source, seconds=round(seconds, 6))

    async def write(self, content: bytes) -> None:
        """Write to stdout; if stdout is not a terminal, write in a thread.

        The reader of a pipe may be slow, which must not block the event loop.
        """
        if self._stdout is None or not content:
            return
        self._stdout.flush()
        if is_terminal(self._stdout):
            _write_all(self._stdout.fileno(), styled_only(content.decode(errors="replace")).encode())
        else:
            from operations.sources.scanner.isolation import in_background

            await in_background(_write_all, self._stdout.fileno(), content)

    def dim(self, text: str) -> bytes:
        """Return dimmed text, to be written beside a result."""
        return paint("dim", text, self._stdout).encode()

    def note(self, line: str, **more: Any) -> None:
        """Print a note on stderr; `more` has the further fields of the note in JSON."""
        if not self._quiet:
            stderr.note(line, **more)

    def _selected(self, envelope: ResponseEnvelope[Any]) -> Any:
        if self._part == "envelope":
            return envelope.to_dict()
        return envelope.meta.to_dict() if self._part == "meta" else envelope.data

    def rendered(self, value: Any, *, compact: bool) -> bytes:
        """Return the text of a value: JSON for a pipe, formatted for a terminal."""
        if isinstance(value, str) and (self._raw or (self.pretty and not compact)):
            return _as_text(value if self._raw and not self.pretty else printable(value))
        if self.pretty and not compact:
            blocks = blocks_text(value)
            if blocks is not None:
                return printable(blocks).encode() + b"\n"
        text = _encoded(value)
        if not self._on_terminal:
            return text + b"\n"
        if self.pretty and not compact:
            text = msgspec.json.format(text, indent=2)
        shown = printable_json(text.decode())
        return (paint_json(shown, self._stdout) if self.pretty else shown).encode() + b"\n"

    def _run_jq(self, value: Any) -> list[Any]:
        try:
            found: list[Any] = self._jq.input_text(_encoded(value).decode()).all()
        except ValueError as error:
            raise CommandError(f"--jq: {error}", exit_code=OPERATION) from None
        return found


def write_json(value: Any, *, compact: bool = False) -> None:
    """Write a value as JSON: on one line in a pipe or with `compact`, else indented and coloured."""
    text = encode_json(value)
    if not is_terminal(results()):
        write_text(text.decode() + "\n")
    elif compact:
        write_text(printable_json(text.decode()) + "\n")
    else:
        write_text(paint_json(printable_json(msgspec.json.format(text, indent=2).decode())) + "\n")


def write_either(args: ParsedArguments, data: Any, text: str) -> None:
    """Write `data` with `--json`, else `text`."""
    if args.json:
        write_json(data)
    else:
        write_text(text)


def meta_line(envelope: ResponseEnvelope[Any], seconds: float, *, is_remote: bool = False) -> str:
    """Summarise an envelope's meta in one line."""
    meta = envelope.meta
    if isinstance(meta, HTTPResponseMeta):
        parts = ["http", str(meta.status_code), meta.content_type.partition(";")[0]]
        if meta.event is not None:
            parts.append(f"event {meta.event.type}" + (f" id {meta.event.id}" if meta.event.id else ""))
    elif isinstance(meta, MCPResponseMeta):
        kinds = ", ".join(dict.fromkeys(block.type for block in meta.content)) or "no content"
        parts = ["mcp", "error" if meta.is_error else "ok", kinds]
    else:
        parts = ["remote" if is_remote else "local", meta.operation_id]
    return " · ".join([*filter(None, parts), duration(seconds)])


def counted(number: int, noun: str) -> str:
    """Return a number with a noun in the singular or plural: `1 source`, `2 sources`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format a duration, with a unit that suits its size: `350 ms`, `2.5 s`, `3 min 10 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def require_writable(path: str) -> None:
    """Raise if a path cannot be written to; checked before the call, because the call may not be repeatable."""
    directory = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.path.isdir(directory):
        reason = f"{path} is a directory" if os.path.isdir(path) else f"directory {directory} does not exist"
        raise CommandError(f"--output: {reason}", "the operation was not called")
    if not os.access(path if os.path.exists(path) else directory, os.W_OK):
        raise CommandError(f"--output: {path} cannot be written", "the operation was not called")


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _encoded(value: Any) -> bytes:
    """Encode a result as JSON; a result that JSON cannot represent is an error of the operation."""
    try:
        return encode_json(value)
    except CallError as error:
        message = f"the result cannot be encoded as JSON: {error.message.removeprefix('(value): ')}"
        raise CommandError(message, "the operation was called", exit_code=OPERATION) from None


def _as_text(text: str) -> bytes:
    """Encode text as one line."""
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        message = "the result cannot be encoded as UTF-8: it has a lone surrogate"
        raise CommandError(message, "the operation was called", exit_code=OPERATION) from None


def blocks_text(value: Any) -> str | None:
    """Return content blocks of MCP as text, with one line for each image and file; None for any other value."""
    if not isinstance(value, list) or not value or not all(map(is_content_block, value)):
        return None
    return "\n".join(map(_block_text, value))


def _block_text(block: dict[str, Any]) -> str:
    kind, resource = block["type"], block.get("resource", block)
    if isinstance(resource.get("text"), str):
        return str(resource["text"])
    if kind == "resource_link":
        return f"{block['name']}: {block['uri']}"
    encoded = resource.get("blob", resource.get("data"))
    if not isinstance(encoded, str):
        return encode_json(block).decode()
    size = len(encoded) * 3 // 4 - encoded[-2:].count("=")
    return f"[{resource.get('mimeType') or kind}, {size:,} bytes: write it to a file with -o FILE]"


def only_file(value: Any) -> bytes | None:
    """Return the content of the only image, audio or file among content blocks; None if there is not exactly one."""
    if blocks_text(value) is None:
        return None
    resources = [block.get("resource", block) for block in value]
    encoded = [each.get("blob", each.get("data")) for each in resources if not isinstance(each.get("text"), str)]
    if len(encoded) != 1 or not isinstance(encoded[0], str):
        return None
    try:
        return base64.b64decode(encoded[0], validate=True)
    except ValueError:
        return None


def _compile(program: str) -> Any:
    try:
        import jq
    except ImportError:
        raise ImportError("jq is not installed: pip install 'operations[cli]'") from None
    try:
        return jq.compile(program)
    except ValueError as error:
        raise CommandError(f"--jq: {error}") from None
