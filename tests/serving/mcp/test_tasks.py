"""MCP tasks: which calls become tasks, their states and questions, and who may use them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from operations import OperationRegistry
from operations.jobs import Jobs
from operations.serving.audit import AuditRecord, AuditWriter
from tests.serving.mcp.served_endpoint import serve_endpoint
from tests.serving.mcp.task_fixture import TASK_OPERATIONS
from tests.serving.mcp.wire import headers, message, post

TASKS: dict[str, Any] = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
DECLARED = {"io.modelcontextprotocol/clientCapabilities": TASKS}


@asynccontextmanager
async def serving_tasks(**options: Any) -> AsyncIterator[str]:
    registry = OperationRegistry(TASK_OPERATIONS)
    async with Jobs(registry) as jobs, serve_endpoint(registry, jobs=jobs, **options) as (url, _):
        yield url


async def call(url: str, name: str, arguments: Any = None, *, meta: Any = DECLARED, **more: Any) -> Any:
    caller = {"x-caller": more.pop("caller")} if "caller" in more else {}
    params = {"name": name, "arguments": arguments or {}, **more}
    return (await post(url, message("tools/call", params, meta=meta), **caller))[1]


async def ask(url: str, method: str, task_id: str, *, meta: Any = DECLARED, caller: str = "", **more: Any) -> Any:
    sent = message(method, {"taskId": task_id, **more}, meta=meta)
    who = {"x-caller": caller} if caller else {}
    return (await post(url, sent, **{"mcp-name": task_id}, **who))[1]


async def until(url: str, task_id: str, *states: str) -> Any:
    async with asyncio.timeout(10):
        while True:
            task = (await ask(url, "tasks/get", task_id))["result"]
            if task["status"] in states:
                return task
            await asyncio.sleep(0.01)


async def test_a_task_is_created_read_and_completed() -> None:
    async with serving_tasks() as url:
        created = (await call(url, "slow_compute", {"seconds": 0.05, "label": "x"}))["result"]
        assert (created["resultType"], created["status"]) == ("task", "working")
        assert created["ttlMs"] == 86_400_000
        done = await until(url, created["taskId"], "completed")
        assert done["resultType"] == "complete"
        assert done["result"]["content"][0]["text"] == "computed x"


async def test_only_clients_that_declare_the_extension_get_tasks() -> None:
    async with serving_tasks() as url:
        sync = (await call(url, "slow_compute", {"seconds": 0}, meta=None))["result"]
        assert (sync["resultType"], sync["content"][0]["text"]) == ("complete", "computed ")
        for refused in (await call(url, "failing_job", meta=None), await ask(url, "tasks/get", "x", meta=None)):
            assert refused["error"]["code"] == -32021
            assert refused["error"]["data"]["requiredCapabilities"] == {"extensions": TASKS["extensions"]}
        discovered = (await post(url, message("server/discover")))[1]["result"]
        assert discovered["capabilities"]["extensions"] == {"io.modelcontextprotocol/tasks": {}}
    async with serve_endpoint(OperationRegistry(TASK_OPERATIONS)) as (url, _):  # without jobs
        assert (await call(url, "slow_compute", {"seconds": 0}))["result"]["resultType"] == "complete"
        assert (await ask(url, "tasks/get", "x"))["error"]["code"] == -32601


async def test_errors_of_tools_and_of_programs_differ() -> None:
    async with serving_tasks() as url:
        failed = await until(url, (await call(url, "failing_job"))["result"]["taskId"], "completed", "failed")
        assert (failed["status"], failed["result"]["isError"]) == ("completed", True)
        broken = await until(url, (await call(url, "protocol_error_job"))["result"]["taskId"], "completed", "failed")
        assert (broken["status"], broken["error"]["code"], "result" in broken) == ("failed", -32603, False)
        assert "hunter2" not in json.dumps(broken)
        invalid = (await call(url, "confirm_delete", {}))["result"]
        assert (invalid["resultType"], invalid["isError"]) == ("complete", True)


async def test_a_task_is_cancelled_more_than_once() -> None:
    async with serving_tasks() as url:
        task_id = (await call(url, "slow_compute", {"seconds": 60}))["result"]["taskId"]
        for _ in range(2):
            assert (await ask(url, "tasks/cancel", task_id))["result"].keys() == {"resultType", "_meta"}
        assert (await until(url, task_id, "cancelled"))["status"] == "cancelled"


async def test_questions_of_a_task_are_answered_one_by_one() -> None:
    async with serving_tasks() as url:
        task_id = (await call(url, "multi_input"))["result"]["taskId"]
        waiting = await until(url, task_id, "input_required")
        assert waiting["inputRequests"].keys() == {"first", "second"}
        await ask(
            url, "tasks/update", task_id, inputResponses={"first": {"action": "accept", "content": {"name": "A"}}}
        )
        waiting = await until(url, task_id, "input_required")
        assert waiting["inputRequests"].keys() == {"second"}
        await ask(url, "tasks/update", task_id, inputResponses={"other": {}, "second": {"action": "nonsense"}})
        assert (await until(url, task_id, "input_required"))["inputRequests"].keys() == {"second"}
        await ask(
            url, "tasks/update", task_id, inputResponses={"second": {"action": "accept", "content": {"name": "B"}}}
        )
        done = await until(url, task_id, "completed")
        assert done["result"]["content"][0]["text"] == "A and B"


async def test_questions_come_before_the_task_if_the_operation_declares_it() -> None:
    async with serving_tasks() as url:
        first = (await call(url, "test_tool_with_task"))["result"]
        assert (first["resultType"], "taskId" in first) == ("input_required", False)
        answers = {"user_name": {"action": "accept", "content": {"name": "Alice"}}}
        stolen = await call(
            url, "test_tool_with_task", inputResponses=answers, requestState=first["requestState"], caller="eve"
        )
        assert stolen["error"]["code"] == -32602
        second = await call(url, "test_tool_with_task", inputResponses=answers, requestState=first["requestState"])
        assert (second["result"]["resultType"], "requestState" in second["result"]) == ("task", False)
        done = await until(url, second["result"]["taskId"], "completed")
        assert done["result"]["content"][0]["text"] == "Hello, Alice!"


async def test_a_task_belongs_to_its_caller() -> None:
    async with serving_tasks() as url:
        task_id = (await call(url, "slow_compute", {"seconds": 60}, caller="ann"))["result"]["taskId"]
        for caller in ("", "eve"):
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                refused = await ask(url, method, task_id, caller=caller, inputResponses={})
                assert refused["error"]["code"] == -32602
                assert refused["error"]["message"] == f"Unknown task: {task_id}"
        assert (await ask(url, "tasks/get", task_id, caller="ann"))["result"]["status"] == "working"


async def test_headers_that_contradict_the_body_are_refused() -> None:
    async with serving_tasks() as url:
        task_id = (await call(url, "slow_compute", {"seconds": 60}))["result"]["taskId"]
        sent = message("tasks/get", {"taskId": task_id}, meta=DECLARED)
        status, answer = await post(url, sent, **{"mcp-name": "other"})
        assert (status, answer["error"]["code"]) == (400, -32020)
        status, answer = await post(url, sent)
        assert (status, answer["error"]["code"]) == (400, -32020)
        assert headers(sent)["mcp-method"] == "tasks/get"


async def test_the_creation_of_a_task_is_audited() -> None:
    records: list[AuditRecord] = []
    async with serving_tasks(audit=AuditWriter(records.append)) as url:
        await call(url, "slow_compute", {"seconds": 60}, caller="ann")
        assert [(each.operation_id, each.caller, each.code) for each in records] == [
            ("tasks.slow_compute", "ann", "OK")
        ]


async def test_a_task_through_search_mode() -> None:
    async with serving_tasks(search=True) as url:
        arguments = {"id": "tasks.slow_compute", "input": {"seconds": 0, "label": "found"}}
        created = (await call(url, "call_operation", arguments))["result"]
        assert created["resultType"] == "task"
        done = await until(url, created["taskId"], "completed")
        assert done["result"]["content"][0]["text"] == "computed found"
