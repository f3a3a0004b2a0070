import pytest

from operations import CallError, ErrorCode, OperationRegistry, is_response_envelope
from operations.calls import PendingRequestMap, serve_registry
from operations.pubsub.memory import MemoryTransport
from operations.testing import (
    Recorder,
    RecordingTransport,
    error_of,
    sample_http_envelope,
    sample_mcp_envelope,
    stub_operation,
    stub_source,
)


async def test_stubs_return_their_configured_results() -> None:
    registry = OperationRegistry(
        [
            stub_operation("t.value", returns=1),
            stub_operation("t.made", returns=lambda input: input["n"] + 1),
            stub_operation("t.stream", yields=[1, 2], raises=ValueError()),
            *stub_source("s", {"ok": "fine", "bad": CallError("BROKEN", "x")}),
        ]
    )
    assert (await registry.execute("t.value")).data == 1
    assert (await registry.execute("t.made", {"n": 1})).data == 2
    assert (await registry.execute("s.ok")).data == "fine"
    assert (await error_of(registry.execute("s.bad"))).code == "BROKEN"
    events = registry.subscribe("t.stream")
    assert [(await anext(events)).data, (await anext(events)).data] == [1, 2]
    assert (await error_of(anext(events))).code is ErrorCode.EXECUTION_ERROR


async def test_a_recorder_keeps_every_call() -> None:
    recorder = Recorder()
    registry = OperationRegistry(
        [
            stub_operation("t.a", returns=1),
            stub_operation("t.b", raises=ValueError()),
            stub_operation("t.c", yields=[]),
        ],
        interceptors=[recorder],
    )
    await registry.execute("t.a", {"n": 1})
    await error_of(registry.execute("t.b"))
    assert [event async for event in registry.subscribe("t.c")] == []
    assert recorder.inputs("t.a") == [{"n": 1}]
    assert [(call.operation_id, call.streaming) for call in recorder.calls] == [
        ("t.a", False),
        ("t.b", False),
        ("t.c", True),
    ]
    assert recorder.calls[0].result is not None
    assert recorder.calls[0].result.data == 1
    assert isinstance(recorder.calls[1].error, CallError)


async def test_a_recorder_stores_the_items_and_end_of_a_stream() -> None:
    recorder = Recorder()
    registry = OperationRegistry(
        [stub_operation("t.whole", yields=[1, 2]), stub_operation("t.broken", yields=[1], raises=ValueError())],
        interceptors=[recorder],
    )
    assert [event.data async for event in registry.subscribe("t.whole")] == [1, 2]
    broken = registry.subscribe("t.broken")
    await anext(broken)
    assert not recorder.calls[1].ended
    await error_of(anext(broken))
    left = registry.subscribe("t.whole")
    await anext(left)
    await left.aclose()
    assert [[event.data for event in call.events] for call in recorder.calls] == [[1, 2], [1], [1]]
    assert [type(call.error) for call in recorder.calls] == [type(None), CallError, GeneratorExit]
    assert all(call.ended for call in recorder.calls)


def test_sample_envelopes_are_envelopes() -> None:
    assert is_response_envelope(sample_http_envelope([1], headers={"X-A": "1"}).to_dict())
    failed = sample_mcp_envelope({"a": 1}, is_error=True)
    assert is_response_envelope(failed.to_dict())
    with pytest.raises(CallError):
        failed.raise_for_error()


async def test_error_of_requires_an_error() -> None:
    registry = OperationRegistry([stub_operation("t.a", returns=1)])
    with pytest.raises(AssertionError, match="expected the call to fail"):
        await error_of(registry.execute("t.a"))


async def test_a_recording_transport_keeps_every_message() -> None:
    worker_end = MemoryTransport(direct=False)
    recorder = RecordingTransport(worker_end.join())
    registry = OperationRegistry([stub_operation("t.a", returns=1)])
    async with serve_registry(registry, worker_end):
        assert (await PendingRequestMap(recorder).call("t.a", {"n": 1})).data == 1
    directions = {message.direction for message in recorder.messages}
    assert directions == {"sent", "received"}
    assert any(b"call.requested" in message.message for message in recorder.messages)
    assert any(b"call.responded" in message.message for message in recorder.messages)
