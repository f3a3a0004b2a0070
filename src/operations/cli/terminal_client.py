"""Questions of an operation to the person at the terminal: one line for each property of the form."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from operations.cli import stderr
from operations.cli.terminal import indented, printable, printable_line
from operations.context import ELICIT, Question
from operations.errors import CallError, ErrorCode
from operations.schema import from_schema

_YES = ("y", "yes")
_NO = ("", "n", "no")
_TRIES = 3


class TerminalClient:
    """Asks on stderr and reads the answers from stdin. End of input cancels the question."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    def supports(self, method: str) -> bool:
        """Whether this client answers a method: only questions to a person (`elicitation/create`)."""
        return method == ELICIT

    async def ask(self, questions: Mapping[str, Question], timeout: float) -> Mapping[str, Any]:
        """Ask one question after the other; return the answers by the keys of the questions."""
        limit = asyncio.timeout(timeout)
        try:
            async with self._turn, limit:
                return {key: await self._ask(question) for key, question in questions.items()}
        except TimeoutError:
            if not limit.expired():
                raise
            raise CallError(ErrorCode.TIMEOUT, f"no answer within {timeout:g} s", {"reason": "NO_ANSWER"}) from None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Show a log message; ignore other notifications."""
        if method == "notifications/message":
            stderr.write_line(printable_line(str(params.get("data"))))

    async def elicit(self, server: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the person a question that the MCP server `server` sent; the question shows the server's name."""
        async with self._turn:
            return await self._ask(Question(ELICIT, {**params, "message": f"{server}: {params.get('message', '')}"}))

    async def _ask(self, question: Question) -> dict[str, Any]:
        with stderr.status_paused():
            return await self._show_and_read(question)

    async def _show_and_read(self, question: Question) -> dict[str, Any]:
        # Further lines are indented: they must not look like a message of this program.
        stderr.write_line(printable(indented(str(question.params.get("message", "")))))
        if isinstance(question.params.get("url"), str):
            stderr.write_line(f"  {printable_line(question.params['url'])}")
        schema = question.params.get("requestedSchema")
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        try:
            if not isinstance(properties, Mapping) or not properties:
                return {"action": "accept" if await self._confirm() else "decline", "content": {}}
            assert isinstance(schema, Mapping)
            for _ in range(_TRIES):
                content = await self._fill_in(properties, schema.get("required", ()))
                problems = from_schema(schema).errors(content)
                if not problems:
                    return {"action": "accept", "content": content}
                stderr.write_line("; ".join(printable_line(f"{each.path}: {each.message}") for each in problems[:5]))
            return {"action": "decline"}
        except EOFError:
            return {"action": "cancel"}

    async def _confirm(self) -> bool:
        for _ in range(_TRIES):
            answer = (await _read_line("Yes? [y/N] ")).lower()
            if answer in _YES or answer in _NO:
                return answer in _YES
        return False

    async def _fill_in(self, properties: Mapping[str, Any], required: Any) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for name, schema in properties.items():
            about = schema if isinstance(schema, Mapping) else {}
            text = await _read_line(_prompt(name, about, is_required=name in required))
            if text:
                content[name] = _value(text, about)
            elif "default" in about:
                content[name] = about["default"]
        return content


def _prompt(name: str, schema: Mapping[str, Any], *, is_required: bool) -> str:
    shown = str(schema.get("title") or name)
    notes = [str(schema["description"])] if "description" in schema else []
    choices = schema.get("enum")
    if isinstance(choices, list):
        notes.append(" | ".join(map(str, choices)))
    if "default" in schema:
        notes.append(f"default: {schema['default']}")
    elif not is_required:
        notes.append("optional")
    return printable_line(f"  {shown} ({'; '.join(notes)}): " if notes else f"  {shown}: ")


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    if schema.get("type") == "string":
        return text
    if schema.get("type") == "boolean" and text.lower() in (*_YES, "n", "no"):
        return text.lower() in _YES
    if schema.get("type") == "array" and not text.startswith("["):
        return [each.strip() for each in text.split(",")]
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


async def _read_line(prompt: str) -> str:
    """Wait for a line that the person types, while the event loop runs; raise EOFError at the end of input."""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()

    def take() -> None:
        if not typed.done():
            typed.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin.fileno(), take)
    try:
        text = await typed
    finally:
        loop.remove_reader(sys.stdin.fileno())
    if not text:
        raise EOFError
    return text.strip()
