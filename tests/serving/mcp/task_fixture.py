"""The operations that the tasks scenarios of the MCP conformance suite ask of a server."""

from __future__ import annotations

import asyncio
from typing import Any

from operations import Operation, OperationContext, operation
from operations.context import Question
from operations.errors import CallError
from operations.serving.mcp.tools import NAME, OPTIONAL, QUESTIONS_FIRST, REQUIRED, TASK

_CONFIRM = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
_NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@operation("tasks.greet", annotations={NAME: "greet"})
async def greet(name: str) -> str:
    """Never a task."""
    return f"Hello, {name}!"


@operation("tasks.slow_compute", annotations={NAME: "slow_compute", TASK: OPTIONAL})
async def slow_compute(seconds: float = 1, label: str = "") -> str:
    """Take some time."""
    await asyncio.sleep(seconds)
    return f"computed {label}"


@operation("tasks.failing_job", annotations={NAME: "failing_job", TASK: REQUIRED})
async def failing_job() -> str:
    """Fail as a tool fails."""
    await asyncio.sleep(0.2)
    raise CallError("FAILED", "the job failed")


@operation("tasks.protocol_error_job", annotations={NAME: "protocol_error_job", TASK: OPTIONAL})
async def protocol_error_job() -> str:
    """Fail as a program fails."""
    raise RuntimeError("the password is hunter2")


@operation("tasks.confirm_delete", annotations={NAME: "confirm_delete", TASK: OPTIONAL})
async def confirm_delete(context: OperationContext, filename: str) -> str:
    """Ask within the task."""
    answer = await context.ask(f"Delete {filename}?", _CONFIRM)
    return f"deleted {filename}" if answer.is_accepted and answer.content.get("confirm") else "kept"


@operation("tasks.multi_input", annotations={NAME: "multi_input", TASK: OPTIONAL})
async def multi_input(context: OperationContext) -> str:
    """Ask two questions at the same time."""
    answers = await context.ask_all(
        {"first": Question.form("First name?", _NAME), "second": Question.form("Second name?", _NAME)}
    )
    return " and ".join(str(each.content.get("name")) for each in answers.values())


@operation("tasks.test_tool_with_task", annotations={NAME: "test_tool_with_task", TASK: QUESTIONS_FIRST})
async def test_tool_with_task(context: OperationContext) -> str:
    """Ask first, then take some time."""
    answers = await context.ask_all({"user_name": Question.form("What is your name?", _NAME)})
    await asyncio.sleep(0.2)
    return f"Hello, {answers['user_name'].content['name']}!"


TASK_OPERATIONS: list[Operation[Any]] = [
    greet,
    slow_compute,
    failing_job,
    protocol_error_job,
    confirm_delete,
    multi_input,
    test_tool_with_task,
]
