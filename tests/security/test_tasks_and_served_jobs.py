"""MCP tasks and HTTP jobs under attack: other identities, weaker tokens, guessed ids, floods, odd requests."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from operations import AccessControl, Identity, OperationContext, OperationRegistry, operation
from operations.identity import Principal, StaticTokens
from operations.jobs import Jobs, job_operations
from operations.serving import app
from operations.serving.app import ServedApp
from operations.serving.mcp.tools import NAME, OPTIONAL, TASK
from tests.asgi_server import serving_here
from tests.jobs.places import PLACES, open_place
from tests.serving.asgi_client import post as post_json
from tests.serving.asgi_client import request
from tests.serving.mcp.wire import message, post
from tests.waiting import until

ADA, WEAK = Identity("ada", scopes=("write",)), Identity("ada")
TOKENS = StaticTokens(
    {"ada-token": Principal(ADA), "weak-token": Principal(WEAK), "eve-token": Principal(Identity("eve", ("write",)))}
)
DECLARED: dict[str, Any] = {
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    }
}
METHODS = ("tasks/get", "tasks/update", "tasks/cancel")
OTHERS = ("eve-token", "weak-token", None)
gate = asyncio.Event()


@operation(
    "vault.open",
    durable=True,
    annotations={NAME: "open", TASK: OPTIONAL},
    access_control=AccessControl(required_scopes=("write",)),
)
async def open_vault(text: str = "") -> str:
    await gate.wait()
    return "the secret"


@operation("vault.ask", annotations={NAME: "ask", TASK: OPTIONAL})
async def ask_owner(context: OperationContext) -> str:
    answer = await context.ask("Which number?", {"type": "object", "properties": {"number": {"type": "integer"}}})
    return f"number {answer.content.get('number')}"


OPERATIONS: list[Any] = [open_vault, ask_owner]


class Site:
    """A served application, over HTTP and MCP."""

    def __init__(self, served: ServedApp, url: str, jobs: Jobs) -> None:
        self.served = served
        self.jobs = jobs
        self._url = url + "mcp"

    async def call(self, name: str, token: str | None, **arguments: Any) -> Any:
        return await self.send({"name": name, "arguments": arguments}, token, DECLARED)

    async def send(self, params: Any, token: str | None, meta: Any) -> Any:
        return (await post(self._url, message("tools/call", params, meta=meta), **_bearer(token)))[1]

    async def ask(self, method: str, task_id: Any, token: str | None, **more: Any) -> tuple[int, Any]:
        sent = message(method, {"taskId": task_id, **more}, meta=DECLARED)
        named = (
            {"mcp-name": task_id} if isinstance(task_id, str) and task_id.isascii() and task_id.isprintable() else {}
        )
        return await post(self._url, sent, **named, **_bearer(token))


def _bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


@asynccontextmanager
async def open_site(kind: str = "memory", **limits: Any) -> AsyncIterator[Site]:
    global gate
    gate = asyncio.Event()
    async with asyncio.timeout(60), open_place(kind, OPERATIONS) as place:
        await place.work()
        jobs = await place.jobs(**limits)
        served = app(place.registry, jobs=jobs, authenticator=TOKENS, allow_anonymous=True)
        async with serving_here(served) as url:
            yield Site(served, url.replace("ws://", "http://"), jobs)
            gate.set()


@pytest.mark.parametrize("kind", PLACES)
async def test_other_callers_cannot_read_answer_or_cancel_a_task_or_job(kind: str) -> None:
    async with open_site(kind) as site:
        task = (await site.call("open", "ada-token"))["result"]["taskId"]
        for finished in (False, True):
            if finished:
                gate.set()
                await site.jobs.wait(task, timeout=20)
            for other in OTHERS:
                for method in METHODS:
                    _, refused = await site.ask(method, task, other, inputResponses={"answer": {"action": "accept"}})
                    assert (refused["error"]["code"], refused["error"]["message"]) == (-32602, f"Unknown task: {task}")
                for verb, path in (("GET", ""), ("DELETE", ""), ("GET", "/result")):
                    answer = await request(site.served, verb, f"/~/jobs/{task}{path}", token=other)
                    assert (answer.status, answer.json["code"]) == (404, "JOB_NOT_FOUND")
                    assert b"secret" not in answer.body
        got = (await site.ask("tasks/get", task, "ada-token"))[1]["result"]
        assert (got["status"], got["result"]["content"][0]["text"]) == ("completed", "the secret")


@pytest.mark.parametrize("kind", PLACES)
async def test_guessed_and_odd_ids_are_unknown(kind: str) -> None:
    async with open_site(kind) as site:
        task = (await site.call("open", "ada-token"))["result"]["taskId"]
        namespace, _, key = task.rpartition(".")
        guesses = [
            "",
            ".",
            "*",
            "vault.*",
            "vault.>",
            f"{namespace}.{key[:16]}{os.urandom(16).hex()}",
            f"{namespace}.{key.upper()}x",
            f"other.{key}",
            f"{task}\r\nx",
            f"{task}.{key}",
            "vault." + "é" * 48,
            "x" * 3_000,
            "../" * 20 + task,
            "\x00" * 10,
        ]
        for guess in guesses:
            for method in METHODS:
                status, answer = await site.ask(method, guess, "ada-token", inputResponses={})
                assert status < 500
                assert "error" in answer, guess
            if guess.isascii() and "\x00" not in guess and "\r" not in guess:
                answered = await request(site.served, "GET", f"/~/jobs/{guess}", token="ada-token")
                assert answered.status in (404, 405), guess
        for odd in (None, 7, 1.5, True, [], [task], {"id": task}):
            for method in METHODS:
                status, answer = await site.ask(method, odd, "ada-token", inputResponses={})
                assert (status < 500, "error" in answer) == (True, True), odd
        assert (await site.ask("tasks/get", task, "ada-token"))[1]["result"]["status"] == "working"


async def test_answers_of_any_shape_leave_a_question_open() -> None:
    async with open_site() as site:
        task = (await site.call("ask", "ada-token"))["result"]["taskId"]

        async def state() -> Any:
            return (await site.ask("tasks/get", task, "ada-token"))[1]["result"]

        async with asyncio.timeout(20):
            while (await state())["status"] != "input_required":  # noqa: ASYNC110  # clients poll
                await asyncio.sleep(0.01)
        deep: Any = []
        for _ in range(200):
            deep = [deep]
        many = {f"q{number}": {"action": "accept"} for number in range(20_000)}
        odd: Any
        for odd in (None, 7, "answer", [], {"answer": None}, {"answer": 7}, {"answer": {"action": 7}}, many, deep):
            status, _ = await site.ask("tasks/update", task, "ada-token", inputResponses=odd)
            assert status < 500
        assert (await state())["status"] == "input_required"
        stranger = {"answer": {"action": "accept", "content": {"number": 1}}}
        await site.ask("tasks/update", task, "eve-token", inputResponses=stranger)
        assert (await state())["status"] == "input_required"
        right = {"answer": {"action": "accept", "content": {"number": 7}}}
        await site.ask("tasks/update", task, "ada-token", inputResponses=right)
        assert (await site.jobs.wait(task, timeout=20)).data == "number 7"


async def test_a_flood_of_one_identity_is_refused_and_others_are_served() -> None:
    async with open_site(unfinished=8, jobs=20) as site:
        created = [await site.call("open", "eve-token") for _ in range(30)]
        tasks = [each["result"]["taskId"] for each in created if "taskId" in each["result"]]
        assert len(tasks) == 8
        refused = [each["result"] for each in created if "taskId" not in each["result"]]
        assert all(each["isError"] and "too many jobs" in each["content"][0]["text"] for each in refused)
        flooded = await post_json(
            site.served, "/vault/open", {}, headers={"prefer": "respond-async"}, token="eve-token"
        )
        assert (flooded.status, flooded.json["code"]) == (429, "UNAVAILABLE")
        assert "taskId" in (await site.call("open", "ada-token"))["result"]


async def test_unanswered_questions_are_bounded_and_cleaned_up() -> None:
    async with open_site() as site:
        created = [(await site.call("ask", "eve-token"))["result"]["taskId"] for _ in range(100)]
        tasks = site.served._mcp._endpoint.mcp_server.tasks  # type: ignore[union-attr]
        assert 0 < len(tasks._clients) <= 64
        for task in created:
            await site.ask("tasks/cancel", task, "eve-token")

        def is_empty() -> bool:
            gc.collect()
            return len(tasks._clients) == 0

        await until(is_empty)
        assert "taskId" in (await site.call("ask", "ada-token"))["result"]


async def test_what_a_client_states_in_advance_takes_little_memory() -> None:
    """Previously, each of 64 tasks of a caller could keep a request of 4 MiB."""
    async with open_site() as site:
        answer = {"action": "accept", "content": {"number": 7}}
        capabilities = {"elicitation": {"more": "x" * 1_000_000}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
        meta = {"io.modelcontextprotocol/clientCapabilities": capabilities}
        large = {"answer": {**answer, "more": "x" * 1_000_000}}
        created = await site.send({"name": "ask", "arguments": {}, "inputResponses": large}, "ada-token", meta)
        tasks = site.served._mcp._endpoint.mcp_server.tasks  # type: ignore[union-attr]
        client = tasks._clients[created["result"]["taskId"]]
        assert "xxx" not in repr({name: getattr(client, name) for name in vars(client)})
        small = {"name": "ask", "arguments": {}, "inputResponses": {"answer": answer}}
        task = (await site.send(small, "ada-token", meta))["result"]["taskId"]
        assert (await site.jobs.wait(task, timeout=20)).data == "number 7"


async def test_inputs_are_bounded_before_they_are_kept() -> None:
    async with open_site(input_bytes=10_000) as site:
        refused = (await site.call("open", "ada-token", text="x" * 20_000))["result"]
        assert (refused["isError"], "20,0" in refused["content"][0]["text"]) == (True, True)
        answer = await post_json(
            site.served, "/vault/open", {"text": "x" * 20_000}, headers={"prefer": "respond-async"}, token="ada-token"
        )
        assert answer.status == 422
        large = await request(
            site.served,
            "POST",
            "/mcp",
            body=[b" " * (1 << 20)] * 40,
            headers={"content-type": "application/json"},
            token="ada-token",
        )
        assert large.status == 413
        assert await site.jobs.list() == []


async def test_a_job_that_submits_a_job_reaches_only_served_operations() -> None:
    ran = 0

    @operation("hidden.stop", type="mutation")
    async def stop() -> None:
        nonlocal ran
        ran += 1

    registry = OperationRegistry([stop])
    async with Jobs(registry) as jobs:
        for each in job_operations(jobs):
            registry.register(each)
        served = app(registry, authenticator=TOKENS, jobs=jobs, deny=["hidden.*"])
        wanted = {"operation_id": "hidden.stop"}
        waits = {"prefer": "respond-async, wait=5"}
        for data, headers in (
            (wanted, {}),
            (wanted, waits),
            ({"operation_id": "jobs.submit", "input": wanted}, waits),
            ({"operation_id": "jobs.submit", "input": {"operation_id": "jobs.submit", "input": wanted}}, {}),
        ):
            await post_json(served, "/jobs/submit", data, headers=headers, token="weak-token")
        await asyncio.sleep(0.1)
        assert {status.operation_id for status in await jobs.list()} == {"jobs.submit"}
    assert ran == 0
