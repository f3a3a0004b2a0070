"""Structured logs and the audit log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations import AccessControl, CallError, ErrorCode, Identity, OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.interceptors.redaction import FieldRedactor
from operations.pubsub.memory import MemoryTransport
from operations.telemetry import AuditLog, JSONFormatter, LogContext
from operations.testing import error_of, stub_operation
from tests.telemetry.spans import spans_in_memory
from tests.waiting import until

LOG = logging.getLogger("tests.structured")


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JSONFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    handler = Lines()
    monkeypatch.setattr(logging.getLogger("operations"), "propagate", True)  # commands run by other tests set it
    root = logging.getLogger()
    root.addHandler(handler)
    LOG.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)


async def test_a_record_has_the_request_and_operation_of_its_call(lines: Lines) -> None:
    @operation("a.inner", type="query")
    def inner() -> None:
        LOG.info("in a %s", "thread")

    @operation("a.outer", type="query")
    async def outer(context: OperationContext) -> None:
        LOG.info("before")
        await context.env.a.inner()
        LOG.info("after")

    registry = OperationRegistry([inner, outer], observers=[LogContext()])
    await registry.execute("a.outer", None, OperationContext(request_id="r1"))
    LOG.info("outside")
    before, threaded, after, outside = lines.objects
    assert (before["request_id"], before["operation"], before["message"]) == ("r1", "a.outer", "before")
    assert (threaded["operation"], threaded["message"]) == ("a.inner", "in a thread")
    assert threaded["request_id"] != "r1"
    assert after["operation"] == "a.outer"
    assert "request_id" not in outside
    assert before["level"] == "INFO"
    assert before["logger"] == "tests.structured"
    assert before["time"].endswith("Z")


async def test_a_failing_handlers_traceback_is_one_line_with_its_request(lines: Lines) -> None:
    bus = MemoryTransport(direct=False)
    registry = OperationRegistry([stub_operation("a.b", raises=ValueError("boom"))], observers=[LogContext()])
    handler = CallHandler(registry, bus.join())
    await error_of(PendingRequestMap(bus.join()).call("a.b"))
    await handler.close()
    (found,) = [line for line in lines.objects if "traceback" in line]
    assert "ValueError: boom" in found["traceback"]
    assert found["operation"] == "a.b"
    assert found["request_id"]


async def test_a_handler_that_outlives_its_call_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()

    @operation("a.stubborn", type="query")
    async def stubborn() -> None:
        end = time.monotonic() + 0.4  # longer than it is given to clean up
        while time.monotonic() < end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)
        ended.set()

    registry = OperationRegistry([stubborn], observers=[LogContext()])
    error = await error_of(
        registry.execute("a.stubborn", None, OperationContext(deadline=int(time.time() * 1000) + 20))
    )
    assert error.code is ErrorCode.TIMEOUT
    await ended.wait()
    await until(lambda: registry.abandoned == 0)
    assert "an observer failed" not in caplog.text


async def test_the_trace_is_named(lines: Lines) -> None:
    @operation("a.b", type="query")
    async def b() -> None:
        LOG.info("x")

    with spans_in_memory() as exporter:
        await OperationRegistry([b]).execute("a.b")
        (span,) = exporter.get_finished_spans()
    assert lines.objects[0]["span_id"] == format(span.context.span_id, "016x")


@given(st.text(), st.dictionaries(st.text(min_size=1), st.one_of(st.text(), st.integers(), st.builds(object))))
def test_every_log_record_is_one_line_of_json(message: str, more: dict[str, Any]) -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, message, None, None)
    vars(record).update({name: value for name, value in more.items() if name not in vars(record)})
    try:
        raise KeyError("\ud800\n")
    except KeyError:
        record.exc_info = sys.exc_info()
    line = JSONFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line.encode("utf-8", "replace"))["level"] == "INFO"


def test_a_record_with_an_exception_class_has_no_traceback() -> None:
    record = logging.LogRecord("asyncio", logging.ERROR, __file__, 1, "SSL handshake failed", None, None)
    record.exc_info = (type, ConnectionResetError, ConnectionResetError.__traceback__)  # type: ignore[assignment]
    assert "traceback" not in json.loads(JSONFormatter().format(record))


def audited(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_the_audit_log_has_caller_operation_and_outcome(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    bus = MemoryTransport(direct=False)
    operations = [
        stub_operation("a.ok"),
        stub_operation("a.bad", raises=CallError("EMPTY")),
        stub_operation("a.secret", access_control=AccessControl(("admin",))),
    ]
    with AuditLog(path) as audit:
        handler = CallHandler(OperationRegistry(operations, observers=[audit]), bus.join())
        pending = PendingRequestMap(bus.join())
        await pending.call("a.ok", {"password": "hunter2"}, identity=Identity("ann"))
        for name in ("a.bad", "a.secret", "a.gone"):
            await error_of(pending.call(name, identity=Identity("bob")))
        await handler.close()
    lines = audited(path)
    assert [(line["caller"], line["operation"], line["outcome"]) for line in lines] == [
        ("ann", "a.ok", "ok"),
        ("bob", "a.bad", "EMPTY"),
        ("bob", "a.secret", "ACCESS_DENIED"),
        ("bob", "a.gone", "OPERATION_NOT_FOUND"),
    ]
    assert all(line["request_id"] and line["duration_ms"] >= 0 and line["kind"] == "served" for line in lines)
    assert "hunter2" not in path.read_text()


async def test_inputs_are_written_only_if_configured_and_redacted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path, inputs=FieldRedactor().clean) as audit:
        registry = OperationRegistry([stub_operation("a.b")], observers=[audit])
        await registry.execute("a.b", {"password": "hunter2", "n": 1})
        await registry.execute("a.b", {"x": object()})
    first, second = audited(path)
    assert first["input"] == {"password": "[redacted]", "n": 1}
    assert "object" in second["input"]["x"]


async def test_nested_calls_are_written_if_configured(tmp_path: Path) -> None:
    @operation("a.outer", type="query")
    async def outer(context: OperationContext) -> None:
        await context.env.a.inner()

    for nested, expected in ((False, ["a.outer"]), (True, ["a.inner", "a.outer"])):
        path = tmp_path / f"{nested}.jsonl"
        with AuditLog(path, nested=nested) as audit:
            await OperationRegistry([outer, stub_operation("a.inner")], observers=[audit]).execute("a.outer")
        assert [line["operation"] for line in audited(path)] == expected


async def test_a_line_that_cannot_be_written_is_counted_and_ends_no_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl")
    audit.close()
    registry = OperationRegistry([stub_operation("a.b", returns=1)], observers=[audit])
    assert (await registry.execute("a.b")).data == 1
    assert audit.failures == 1
    assert "audit log" in caplog.text


async def test_a_call_is_written_without_its_input_if_the_function_for_inputs_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(input: Any) -> Any:
        raise LookupError

    path = tmp_path / "audit.jsonl"
    with AuditLog(path, inputs=fail) as audit:
        await OperationRegistry([stub_operation("a.b")], observers=[audit]).execute("a.b", {"n": 1})
    (line,) = audited(path)
    assert (line["operation"], "input" in line, audit.failures) == ("a.b", False, 1)
    assert "without the input" in caplog.text


async def test_two_writers_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as one, AuditLog(path) as other:
        registries = [OperationRegistry([stub_operation("a.b")], observers=[each]) for each in (one, other)]
        await asyncio.gather(*(registry.execute("a.b") for registry in registries * 50))
    assert len(audited(path)) == 100
