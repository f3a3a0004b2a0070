"""Tasks: tool calls that run as jobs, by the MCP extension `io.modelcontextprotocol/tasks` (2026-07-28).

The server decides which calls become tasks, for clients that declare the extension. A task of this process can ask its
client: its questions are part of the task, and the answers come with `tasks/update`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from operations.context import Identity
from operations.errors import CallError
from operations.jobs import JOB_NOT_FOUND, Jobs, JobState, JobStatus
from operations.serving.asking_client import AskingClient
from operations.serving.exposure import Exposure
from operations.serving.mcp.calls import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    MCPCalls,
    ProtocolError,
    RequestInfo,
    make_result,
    read_input,
)
from operations.serving.mcp.results import Result, error_result
from operations.serving.mcp.tools import QUESTIONS_FIRST, REQUIRED, Tool, ToolList
from operations.serving.refusals import public_error
from operations.serving.suspended_calls import MAX_PER_IDENTITY, CallKey, InputRequired
from operations.sources.mcp.own_fields import plain_json

EXTENSION = "io.modelcontextprotocol/tasks"
GET, UPDATE, CANCEL = "tasks/get", "tasks/update", "tasks/cancel"
METHODS = frozenset({GET, UPDATE, CANCEL})
POLL_MS = 1_000
_MAX_CLIENTS = 10_000
_CLIENTS_PER_IDENTITY = 64
_MOST_GIVEN_BYTES = 64 * 1024
"""Largest size of the answers in the request that creates a task. Larger answers are ignored."""
_ASK_WITHIN = 1.0
"""Seconds to wait for the first question of a `questions-first` call. Then the call becomes a task that can ask."""
_ENDED = {JobState.DONE: "completed", JobState.CANCELLED: "cancelled", JobState.DEAD: "failed"}


class TaskCreated(msgspec.Struct, frozen=True):
    """The result of a tool call that became a task."""

    fields: Mapping[str, Any]


class _TaskClient(AskingClient):
    """The client of a task of this process. Only the job of the task refers to this object, until the job ends."""

    def __init__(self, key: CallKey, owner: str, capabilities: Any, has_room: Callable[[], bool]) -> None:
        super().__init__(_NoSlots(), capabilities, None, has_room)
        self.key = key
        self.owner = owner
        """The key (`Caller.key`) of the caller whose limits include this task."""


def declares_tasks(info: RequestInfo) -> bool:
    """Whether the client of a request declares the extension."""
    capabilities = info.capabilities if info.modern else None
    extensions = capabilities.get("extensions") if isinstance(capabilities, Mapping) else None
    return isinstance(extensions, Mapping) and EXTENSION in extensions


def missing_extension() -> ProtocolError:
    """Return the error for a request that needs the extension, which the client does not declare."""
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    return ProtocolError(MISSING_CAPABILITY, f"Missing required client capability: {EXTENSION}", needed)


class Tasks:
    """Creates tasks, and serves requests about tasks.

    `Jobs.of` decides which tasks a caller may use. The caller must also have the right to call the tool.
    """

    def __init__(self, jobs: Jobs, exposure: Exposure, tool_list: ToolList, calls: MCPCalls) -> None:
        self._jobs = jobs
        self._exposure = exposure
        self._tool_list = tool_list
        self._calls = calls
        self._clients: WeakValueDictionary[str, _TaskClient] = WeakValueDictionary()
        """The clients that tasks of this process can ask, by task id. A task without a client cannot ask."""

    def creates(self, tool: Tool, info: RequestInfo) -> bool:
        """Whether a call becomes a task.

        Raise ProtocolError if the tool can only be called as a task, but the client does not support tasks.
        """
        if tool.task_support is None or tool.is_stream or not info.modern or not self._jobs.runs(tool.operation):
            return False
        if declares_tasks(info):
            return True
        if tool.task_support == REQUIRED:
            raise missing_extension()
        return False

    async def create(self, tool: Tool, arguments: Any, info: RequestInfo) -> TaskCreated | InputRequired | Result:
        """Start a tool call as a task, or answer its first questions; return the task, its questions, or an error."""
        try:
            input = read_input(tool, arguments, info.meta)
            if not tool.operation.spec.input_schema.check(input):
                return await self._calls.call_tool(tool, arguments, info)  # an invalid input is refused without a task
            return await self._calls.report(tool.operation, info.caller, self._create(tool, input, info))
        except CallError as error:
            return error_result(error, tool.operation.id)

    async def _create(self, tool: Tool, input: Any, info: RequestInfo) -> TaskCreated | InputRequired:
        identity, jobs = info.identity, self._jobs.of(info.identity, exposure=self._exposure)
        key = CallKey.of(tool.operation.id, plain_json(input)[0], identity.id if identity is not None else None)
        if info.state is not None:
            job_id, client = info.state, self._clients.get(info.state)
            await self._find(job_id, identity)
            if client is None or client.key != key:
                raise ProtocolError(INVALID_PARAMS, "Invalid requestState")
            self._answer(client, info.responses)
        else:
            client = self._make_client(key, info) if tool.can_ask else None
            job_id = await jobs.submit(tool.operation, input, client=client)
            if client is not None:
                self._clients[job_id] = client
                if tool.task_support == QUESTIONS_FIRST:
                    await _until_asked(jobs, job_id, client)
        if tool.task_support == QUESTIONS_FIRST and client is not None and client.open:
            return InputRequired({name: each.question for name, each in client.open.items()}, job_id)
        status = await jobs.status(job_id)
        return TaskCreated({**self._fields(status, None), "resultType": "task"})

    async def serve(self, method: str, task_id: str, responses: Any, info: RequestInfo) -> dict[str, Any]:
        """Return a task, update it with answers, or cancel it, as `method` requests."""
        if not declares_tasks(info):
            raise missing_extension()
        status, tool = await self._find(task_id, info.identity)
        client = self._clients.get(task_id)
        if method == UPDATE:
            if client is not None:
                self._answer(client, responses)
            return {"resultType": "complete"}
        if method == CANCEL:
            await self._jobs.of(info.identity, exposure=self._exposure).cancel(task_id)
            return {"resultType": "complete"}
        if status.is_final:
            return {**await self._ended(status, tool, info), "resultType": "complete"}
        return {**self._fields(status, client), "resultType": "complete"}

    async def _ended(self, status: JobStatus, tool: Tool, info: RequestInfo) -> dict[str, Any]:
        """Return the fields of a task that has ended, with the result of the tool or the error of the call."""
        fields = self._fields(status, None)
        if fields["status"] == "cancelled":
            return fields
        try:
            envelope = await self._jobs.of(info.identity, exposure=self._exposure).result(status.id)
            return {**fields, "status": "completed", "result": make_result(tool, envelope, info).to_dict()}
        except CallError as error:
            shown = public_error(error, tool.operation.id)
            if status.state is JobState.DEAD or shown is not error:
                return {**fields, "status": "failed", "error": {"code": INTERNAL_ERROR, "message": shown.message}}
            return {**fields, "status": "completed", "result": error_result(error, tool.operation.id).to_dict()}

    def _fields(self, status: JobStatus, client: _TaskClient | None) -> dict[str, Any]:
        updated = status.ended_at or status.started_at or status.created_at
        fields: dict[str, Any] = {
            "taskId": status.id,
            "status": _ENDED.get(status.state, "completed") if status.is_final else "working",
            "createdAt": _date(status.created_at),
            "lastUpdatedAt": _date(updated),
            "ttlMs": int(self._jobs.keep_seconds * 1000),
            "pollIntervalMs": POLL_MS,
        }
        if status.progress is not None and status.progress.message:
            fields["statusMessage"] = status.progress.message
        questions = client.open if client is not None else {}
        if questions:
            fields["status"] = "input_required"
            fields["inputRequests"] = {
                name: {"method": each.question.method, "params": each.question.params}
                for name, each in questions.items()
            }
        return fields

    async def _find(self, task_id: str, identity: Identity | None) -> tuple[JobStatus, Tool]:
        try:
            status = await self._jobs.of(identity, exposure=self._exposure).status(task_id)
        except CallError as error:
            if error.code != JOB_NOT_FOUND:
                raise ProtocolError(INTERNAL_ERROR, "the task cannot be read now") from None
            raise _unknown(task_id) from None
        tool = self._tool_list.find_operation(status.operation_id, identity)
        if tool is None:
            raise _unknown(task_id)
        return status, tool

    @staticmethod
    def _answer(client: _TaskClient, responses: Any) -> None:
        for name, result in responses.items() if isinstance(responses, Mapping) else ():
            client.answer(name, result)

    def _make_client(self, key: CallKey, info: RequestInfo) -> _TaskClient | None:
        """Return the client of a new task; None if there are too many clients, so that the task cannot ask."""
        owner = info.caller.key
        own = sum(1 for each in self._clients.values() if each.owner == owner)
        if own >= _CLIENTS_PER_IDENTITY or len(self._clients) >= _MAX_CLIENTS:
            return None
        client = _TaskClient(key, owner, info.capabilities, lambda: self._has_room(owner))
        given = dict(info.responses) if isinstance(info.responses, Mapping) else {}
        if len(msgspec.json.encode(given)) <= _MOST_GIVEN_BYTES:
            client.given = given
        return client

    def _has_room(self, owner: str) -> bool:
        own = sum(1 for each in self._clients.values() if each.owner == owner and each.open)
        return own < MAX_PER_IDENTITY


class _NoSlots:
    """Slots that are never released: a job keeps its slot while it waits for an answer."""

    @contextlib.asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        yield


async def _until_asked(jobs: Jobs, job_id: str, client: AskingClient) -> None:
    """Wait until a job asks a question or ends, at most one second."""
    asked = asyncio.Event()
    client.changed = asked.set
    if client.open:
        return
    ended = asyncio.ensure_future(jobs.wait(job_id))
    asking = asyncio.ensure_future(asked.wait())
    try:
        await asyncio.wait((ended, asking), timeout=_ASK_WITHIN, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (ended, asking):
            each.cancel()
        await asyncio.gather(ended, asking, return_exceptions=True)


def _unknown(task_id: str) -> ProtocolError:
    return ProtocolError(INVALID_PARAMS, f"Unknown task: {task_id[:200]}")


def _date(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
