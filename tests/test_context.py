import os
from types import MappingProxyType
from typing import Any

import pytest

from operations import CallError, Identity, OperationContext, OperationRegistry
from operations.context import NO_ENV, new_request_id
from operations.testing import error_of, stub_operation


def test_request_ids_never_repeat() -> None:
    ids = [new_request_id() for _ in range(10_000)]
    assert len(set(ids)) == 10_000


def test_a_forked_process_creates_different_ids() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_request_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 200).decode()
    os.close(reader)
    os.close(writer)
    assert theirs.split("-")[0] != new_request_id().split("-")[0]


def test_a_context_is_trusted_until_it_carries_an_identity() -> None:
    assert OperationContext().is_trusted
    assert not OperationContext(identity=Identity("u")).is_trusted
    assert not OperationContext(trusted=False).is_trusted
    assert OperationContext(identity=Identity("u"), trusted=True).is_trusted


def test_a_child_inherits_caller_deadline_and_trace_but_no_other_metadata() -> None:
    metadata = {"traceparent": "00-1-2-01", "tracestate": "a=b", "authorization": "secret"}
    parent = OperationContext(request_id="p", identity=Identity("u"), deadline=5, metadata=metadata, trusted=False)
    child = parent.child()
    assert child.parent_request_id == "p"
    assert child.request_id not in ("", "p")
    assert (child.identity, child.deadline, child.trusted) == (Identity("u"), 5, False)
    assert child.metadata == {"traceparent": "00-1-2-01", "tracestate": "a=b"}


def test_a_child_does_not_share_the_empty_metadata_of_its_parent() -> None:
    parent = OperationContext()
    assert parent.child().metadata == {}
    assert parent.child().metadata is not parent.metadata


def test_a_context_outside_a_call_reports_that_it_has_no_env() -> None:
    context = OperationContext()
    assert context.env is NO_ENV
    with pytest.raises(CallError, match="has no env"):
        context.env.shop.buy()
    with pytest.raises(CallError, match="has no env"):
        context.env["shop"]


def test_resources_of_an_identity_are_a_mapping() -> None:
    with pytest.raises(CallError, match=r"invalid resources \['doc:7'\]: expected a mapping"):
        Identity("ada", resources=["doc:7"])  # type: ignore[arg-type]


async def test_a_nested_call_needs_a_function() -> None:
    with pytest.raises(CallError, match=r"context\.call\(\) takes a function with @operation, not str"):
        await OperationContext().call("shop.quote")  # type: ignore[call-overload]


@pytest.mark.parametrize("metadata", [5, None, ["trace"]])
async def test_metadata_is_a_mapping(metadata: Any) -> None:
    registry = OperationRegistry([stub_operation("a.b", returns=1)])
    error = await error_of(registry.execute("a.b", {}, OperationContext(metadata=metadata)))
    kind = type(metadata).__name__
    assert str(error) == f"VALIDATION_ERROR: invalid metadata of a context: expected a mapping, not {kind}"
    given = OperationContext(metadata=MappingProxyType({"trace": 1}))
    assert (await registry.execute("a.b", {}, given)).data == 1
