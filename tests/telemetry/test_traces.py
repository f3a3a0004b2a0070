"""One request is one trace: through a bus, over two workers, local, HTTP and MCP operations included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry import trace

from operations import CallError, OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap, from_call
from operations.sources.mcp import MCPClientConfig, close_mcp_client, create_mcp_client
from operations.sources.openapi import HTTPServiceConfig, from_openapi
from operations.testing import error_of, stub_operation
from tests.asgi_server import serving
from tests.contracts.buses import BUSES
from tests.jobs.places import PLACES, open_place
from tests.ports import free_port
from tests.sources.mcp.modern_server import modern_server
from tests.telemetry.spans import path_of, spans_in_memory
from tests.waiting import until


class Upstream:
    """An API that keeps the trace context of its requests."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        self.seen.append(headers.get(b"traceparent", b"").decode())
        status = 404 if scope["path"] == "/missing" else 200
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        )
        await send({"type": "http.response.body", "body": b"{}"})


DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "t", "version": "1"},
    "paths": {
        "/thing": {"get": {"operationId": "thing", "responses": {"200": {"description": "ok"}}}},
        "/missing": {"get": {"operationId": "missing", "responses": {"200": {"description": "ok"}}}},
    },
}


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
def api(upstream: Upstream) -> Iterator[str]:
    with serving(upstream) as url:
        yield url


@operation("other.answer", type="query")
async def answer(context: OperationContext) -> int:
    return (await context.env.other.local()).data  # type: ignore[no-any-return]


@operation("other.local", type="query")
def local() -> int:
    with trace.get_tracer("user").start_as_current_span("user's own"):
        return 42


@operation("main.enter", type="query")
async def enter(context: OperationContext) -> Any:
    env = context.env
    await env.main.helper()
    await env.api.thing()
    await env.tools.echo(text="x")
    return (await env.other.answer()).data


@pytest.mark.parametrize("name", ["websocket", "redis", "nats"])
async def test_one_request_is_one_trace(name: str, upstream: Upstream, api: str) -> None:
    port = free_port()
    async with BUSES[name]() as bus, modern_server(port):
        tools = await create_mcp_client("tools", MCPClientConfig(url=f"http://127.0.0.1:{port}/mcp"))
        things = from_openapi(DOCUMENT, HTTPServiceConfig(namespace="api", base_url=api))
        helper = stub_operation("main.helper", returns=1)
        first = CallHandler(OperationRegistry([enter, helper, *things, *tools.operations]), await bus.end("worker"))
        second = CallHandler(OperationRegistry([answer, local]), await bus.end("worker"))
        caller = PendingRequestMap(await bus.end())
        watcher = from_call(await bus.end())
        async with asyncio.timeout(30):
            await watcher.ready("main.enter", "other.answer")
        with spans_in_memory() as exporter:
            assert (await caller.call("main.enter")).data == 42
            spans = list(exporter.get_finished_spans())
        await watcher.close()
        await first.close()
        await second.close()
        await close_mcp_client(tools)
    assert len({span.context.trace_id for span in spans}) == 1
    entered = ["main.enter CLIENT", "main.enter SERVER"]
    paths = [path_of(span, spans) for span in spans]
    for expected in (
        [*entered, "main.helper INTERNAL"],
        [*entered, "api.thing INTERNAL", "GET CLIENT"],
        [*entered, "tools.echo INTERNAL", "MCP send tools/call echo CLIENT"],
        [
            *(*entered, "other.answer CLIENT", "other.answer SERVER"),
            *("other.local INTERNAL", "user's own INTERNAL"),
        ],
    ):
        assert expected in paths, "\n".join(map(str, paths))
    sent = next(span for span in spans if span.name == "GET")
    assert [seen[:52] for seen in upstream.seen] == [f"00-{sent.context.trace_id:032x}-{sent.context.span_id:016x}"]
    served = [path for path in paths if path[-1].endswith("SERVER") and "MCP send tools/call echo CLIENT" in path]
    assert served, "the MCP server's own span is a child of the request"


@operation("later.build", durable=True)
async def build() -> str:
    return trace.get_current_span().name  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("kind", PLACES)
async def test_a_job_belongs_to_the_trace_of_its_submitter(kind: str) -> None:
    with spans_in_memory() as exporter:
        async with open_place(kind, [build]) as place, asyncio.timeout(30):
            await place.work()
            jobs = await place.jobs()
            with trace.get_tracer("user").start_as_current_span("submit"):
                job_id = await jobs.submit("later.build")
            assert (await jobs.wait(job_id)).data == "later.build"
            await until(lambda: len(exporter.get_finished_spans()) == 2)
        spans = list(exporter.get_finished_spans())
    assert [path_of(span, spans) for span in spans if span.name == "later.build"] == [
        ["submit INTERNAL", "later.build SERVER"]
    ]


@operation("ticks.count")
async def ticks() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("name", ["websocket", "redis", "nats"])
async def test_a_stream_over_a_bus_belongs_to_the_trace_of_its_reader(name: str) -> None:
    with spans_in_memory() as exporter:
        async with BUSES[name]() as bus, asyncio.timeout(30):
            worker = CallHandler(OperationRegistry([ticks]), await bus.end("worker"))
            watcher = from_call(await bus.end())
            await watcher.ready("ticks.count")
            caller = PendingRequestMap(await bus.end())
            with trace.get_tracer("user").start_as_current_span("read"):
                assert [each.data async for each in caller.subscribe("ticks.count")] == [1]
            await until(lambda: len(exporter.get_finished_spans()) == 2)
            await watcher.close()
            await worker.close()
        spans = list(exporter.get_finished_spans())
    assert [path_of(span, spans) for span in spans if span.name == "ticks.count"] == [
        ["read INTERNAL", "ticks.count SERVER"]
    ]


async def test_attributes_follow_the_conventions(api: str) -> None:
    registry = OperationRegistry(from_openapi(DOCUMENT, HTTPServiceConfig(namespace="api", base_url=api)))
    with spans_in_memory() as exporter:
        await registry.execute("api.thing")
        await error_of(registry.execute("api.missing"))
        spans: Any = exporter.get_finished_spans()
    good, _, bad, called = spans
    assert good.attributes["http.request.method"] == "GET"
    assert good.attributes["http.response.status_code"] == 200
    assert good.attributes["url.full"].endswith("/thing")
    assert good.attributes["server.address"] == "127.0.0.1"
    assert bad.attributes["error.type"] == "404"
    assert called.attributes["error.type"] == "EXECUTION_ERROR"
    assert called.status.status_code.name == "ERROR"


async def test_messages_of_errors_are_not_exported() -> None:
    registry = OperationRegistry([stub_operation("a.b", raises=ValueError("hunter2"))])
    with spans_in_memory() as exporter:
        await error_of(registry.execute("a.b"))
        (span,) = exporter.get_finished_spans()
    assert "hunter2" not in span.to_json()


async def test_a_stream_is_one_span_for_any_reader() -> None:
    @operation("a.count")
    async def count(context: OperationContext) -> AsyncIterator[str]:
        for _ in range(2):
            yield trace.get_current_span().name  # type: ignore[attr-defined]

    registry = OperationRegistry([count])
    with spans_in_memory() as exporter:
        stream = registry.subscribe("a.count")
        seen = [(await asyncio.create_task(_next(stream))).data for _ in range(2)]  # each item in another task
        assert trace.get_current_span() is trace.INVALID_SPAN
        await stream.aclose()
        (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert seen == ["a.count", "a.count"]
    assert span.attributes["operations.stream.items"] == 2


async def _next(stream: Any) -> Any:
    return await anext(stream)


async def test_a_program_can_pass_its_trace_in_the_metadata() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    registry = OperationRegistry([stub_operation("a.b")])
    with spans_in_memory() as exporter:
        await registry.execute("a.b", None, OperationContext(metadata={"traceparent": parent}))
        await registry.execute("a.b", None, OperationContext(metadata={"traceparent": "garbage\n"}))
        first, second = exporter.get_finished_spans()
    assert format(first.context.trace_id, "032x") == parent[3:35]
    assert second.parent is None


async def test_durations_are_recorded_as_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from operations.pubsub.memory import MemoryTransport
    from operations.telemetry import otel

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    histogram = provider.get_meter("operations").create_histogram("rpc.server.call.duration", unit="s")
    monkeypatch.setattr(otel, "_duration", lambda name: histogram)
    bus = MemoryTransport(direct=False)
    failing = stub_operation("a.b", raises=CallError("EMPTY"))
    with spans_in_memory():
        handler = CallHandler(OperationRegistry([failing]), bus.join())
        await error_of(PendingRequestMap(bus.join()).call("a.b"))
        await handler.close()
    data: Any = reader.get_metrics_data()
    provider.shutdown()
    (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    assert dict(point.attributes) == {"rpc.system.name": "operations", "rpc.method": "a.b", "error.type": "EMPTY"}
    assert point.count == 1
