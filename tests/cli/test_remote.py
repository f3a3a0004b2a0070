"""Operations that a hub does not list to the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from operations import CallError, ErrorCode, Identity, OperationRegistry, operation
from operations.calls import CallHandler
from operations.calls.hub import Hub
from operations.calls.hub.route_observer import RouteObserver
from operations.calls.hub.session import HubSession
from operations.calls.hub.spoke import Spoke
from operations.cli.remote import unlisted_operation
from operations.identity import Principal, StaticTokens
from operations.testing import error_of
from tests.cli.driving import Project
from tests.cli.test_processes import running

MISSING = CallError(ErrorCode.UNAVAILABLE, "no worker serves late.double", {"hint": "wait"})


@operation(id="late.double", type="query")
async def double(value: int) -> int:
    return value * 2


@operation(id="late.count")
async def count(start: int) -> AsyncIterator[int]:
    yield start
    yield start + 1


class Refusals(RouteObserver):
    """Notes the first request that a hub refused."""

    def __init__(self) -> None:
        self.came = asyncio.Event()

    def refused(self, session: HubSession, request_id: str, operation_id: str, code: str) -> None:
        self.came.set()


async def test_a_call_waits_for_a_worker_that_connects_later_and_types_its_input() -> None:
    async with Hub(StaticTokens({"ada": Principal(Identity("ada"))})) as hub, Spoke(hub.url, token="ada") as caller:
        ids = ["late.double", "late.count"]
        registry = OperationRegistry([unlisted_operation(caller, each, MISSING, 60.0) for each in ids])

        async def stream() -> list[int]:
            return [envelope.data async for envelope in registry.subscribe("late.count", {"start": "7"})]

        first = Refusals()
        hub.router.observers += (first,)
        called = asyncio.create_task(registry.execute("late.double", {"value": "4"}))
        await first.came.wait()
        second = Refusals()
        hub.router.observers += (second,)
        streamed = asyncio.create_task(stream())
        await second.came.wait()
        worker = CallHandler(OperationRegistry([double, count]), hub.transport())
        assert (await called).data == 8
        assert await streamed == [7, 8]
        await worker.close()


@pytest.mark.parametrize(("operation_id", "waiting"), [("late.double", 0.0), ("late.double", 0.05), ("here.no", 60.0)])
async def test_a_call_that_no_worker_serves_gets_the_given_error(operation_id: str, waiting: float) -> None:
    tokens = StaticTokens({"ada": Principal(Identity("ada"))})

    @operation(id="here.yes")
    async def yes() -> None: ...

    async with Hub(tokens) as hub, Spoke(hub.url, token="ada") as caller:
        worker = CallHandler(OperationRegistry([yes]), hub.transport())
        registry = OperationRegistry([unlisted_operation(caller, operation_id, MISSING, waiting)])
        error = await error_of(registry.execute(operation_id, {}))
        assert (error.code, error.message) == (MISSING.code, MISSING.message)
        await worker.close()


CODE = """from operations import AccessControl, operation
@operation(type="query", access_control=AccessControl(required_scopes=("t:write",)))
async def denied(text: str) -> str: return text
"""


def test_a_caller_without_rights_is_refused_without_waiting_for_workers(tmp_path: Path) -> None:
    server = Project(tmp_path)
    server.write("operations.toml", '[sources.t]\npython = "./code"\n')
    server.write("code/t.py", CODE)
    # The time limit of the command is also the longest time that it waits for workers.
    patience = ["--timeout", "600"]
    with running(server, "serve", "--http", "0", said="serving", env={}) as (_, line):
        url = f"ws://{line.split(' at http://')[1].split(';')[0]}/ws"
        denied = server.run("call", "t.denied", "text=x", "--url", url, *patience)
        assert denied.code == 4
        assert "error: an anonymous caller may not call t.denied: missing scope t:write" in denied.err
        assert "hint: pass a token that has the rights: set OPERATIONS_TOKEN or --token-file" in denied.err
        missing = server.run("call", "t.nothing", "--url", url, *patience)
        assert missing.code == 6
        assert f"no operations that this caller may call at {url}: no worker serves t.nothing" in missing.err
        listed = server.run("ls", "--url", url)
        assert listed.code == 6
        assert "hint: pass a token that has the rights: set OPERATIONS_TOKEN" in listed.err


def test_the_hint_about_a_lost_worker_names_the_address(tmp_path: Path) -> None:
    server = Project(tmp_path)
    server.write("operations.toml", '[sources.t]\npython = "./code"\n')
    server.write(
        "code/t.py",
        "from operations import CallError, operation\n"
        "@operation\nasync def away() -> None: raise CallError('UNAVAILABLE', 'the store is away', {'a': 1})\n",
    )
    with running(server, "serve", "--http", "0", said="serving", env={}) as (_, line):
        url = f"ws://{line.split(' at http://')[1].split(';')[0]}/ws"
        gone = server.run("call", "t.away", "--url", url)
    assert gone.code == 6
    assert f"hint: check the worker; 'ops ls --url {url}' lists what is served" in gone.err
    assert "doctor" not in gone.err
