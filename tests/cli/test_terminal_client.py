"""An operation's question at a terminal: `ops call` shows it and reads the answer."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

MODULE = """
from operations import OperationContext, operation

FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 7}},
    "required": ["name"],
}


@operation(id="ask.who", type="query")
async def who(context: OperationContext) -> dict[str, object]:
    answer = await context.ask("Who are you?\\x1b[31m", FORM)
    return {"action": answer.action, **answer.content}


@operation(id="ask.buy")
async def buy(item: str = "tea") -> str:
    return f"bought {item}"


@operation(id="ask.sure")
async def sure(context: OperationContext) -> str:
    return (await context.ask("Are you sure?")).action
"""


def call(folder: Path, operation: str, typed: str) -> str:
    """What the terminal shows of a call whose questions are answered by typing."""
    (folder / "asks.py").write_text(MODULE)
    (folder / "operations.toml").write_text(
        '[sources.own]\npython = "./asks.py"\n[[interceptors]]\nuse = "approval"\noperations = ["ask.buy"]\n'
    )
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ["OPERATIONS_TRUST"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "operations", "call", operation])
    shown = b""
    sent = False
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
        if not sent and (b": " in shown or b"[y/N]" in shown):
            os.write(terminal, typed.encode())
            sent = True
    os.waitpid(child, 0)
    os.close(terminal)
    return shown.decode(errors="replace")


@pytest.mark.parametrize(
    ("operation", "typed", "wanted"),
    [
        ("ask.who", "Ann\n\n", ('"action": "accept"', '"name": "Ann"', '"age": 7')),
        ("ask.who", "Ann\nold\nAnn\n8\n", ('"age": 8',)),
        ("ask.who", "\x04", ('"action": "cancel"',)),
        ("ask.sure", "y\n", ("accept",)),
        ("ask.sure", "\n", ("decline",)),
        ("ask.buy", "y\n", ("Allow mutation ask.buy with the input {}?", "bought tea")),
        (
            "ask.buy",
            "n\n",
            ("ask.buy was refused and did not run: the user refused it", "hint: the interceptor 'approval'"),
        ),
    ],
)
def test_the_person_at_the_terminal_is_asked(
    tmp_path: Path, operation: str, typed: str, wanted: tuple[str, ...]
) -> None:
    import re

    shown = re.sub(r"\x1b\[[0-9;]*[mK]", "", call(tmp_path, operation, typed))
    for text in wanted:
        assert text.replace('"', "").replace(" ", "") in shown.replace('"', "").replace(" ", ""), shown
    assert "\x1b[31m" not in call(tmp_path, operation, typed).partition("Who are you?")[2][:8]
