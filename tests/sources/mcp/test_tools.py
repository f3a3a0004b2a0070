"""Envelopes of results, names of tools and paged lists, without a server."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations import UNKNOWN, CallError, ErrorCode, Identity, OperationContext, from_schema
from operations.progress import ProgressEvent
from operations.sources.mcp import MCPClientConfig, is_progress
from operations.sources.mcp.calls import as_json, request_meta
from operations.sources.mcp.config import namespace_of
from operations.sources.mcp.limits import MAX_PAGES, list_all
from operations.sources.mcp.protocol import (
    RequestFailedError,
    RequestLostError,
    RequestTimeoutError,
    call_error,
    explain,
)
from operations.sources.mcp.tools import assign_names, is_tool_data, progress_envelope, tool_envelope
from operations.spec import NAME_PATTERN, NAMESPACE_PATTERN

NUMBER = from_schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
TEXT = {"type": "text", "text": '{"n": 1}'}


@pytest.mark.parametrize(
    ("result", "data", "described"),
    [
        ({"content": [TEXT], "structuredContent": {"n": 2}}, {"n": 2}, True),
        ({"content": [], "structuredContent": [1, 2]}, [1, 2], True),
        ({"content": [TEXT]}, {"n": 1}, True),
        ({"content": [TEXT, TEXT]}, [TEXT, TEXT], False),
        ({"content": [{"type": "text", "text": "n is 1"}]}, [{"type": "text", "text": "n is 1"}], False),
        ({"content": [TEXT], "isError": True}, [TEXT], False),
        ({"content": [], "structuredContent": {"n": 3}, "isError": True}, {"n": 3}, False),
        ({}, [], False),
        ({"content": None}, [], False),
    ],
)
def test_the_data_of_a_tool_result(result: dict[str, Any], data: Any, described: bool) -> None:
    envelope = tool_envelope(result, NUMBER)
    assert envelope.data == data
    assert is_tool_data(envelope) is described


def test_without_an_output_schema_a_text_stays_a_block() -> None:
    assert tool_envelope({"content": [TEXT]}, UNKNOWN).data == [TEXT]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["content", "structuredContent", "isError", "_meta", "other"]), json_values))
def test_any_json_is_an_envelope_that_can_be_written(result: dict[str, Any]) -> None:
    envelope = tool_envelope(result, NUMBER)
    assert type(envelope).from_json(envelope.to_json()) == envelope


def test_progress_is_distinguished_from_a_result() -> None:
    envelope = progress_envelope(ProgressEvent(1, None, None))
    assert envelope.data == {"progress": 1}
    assert is_progress(envelope)
    assert not is_tool_data(envelope)
    assert not is_progress(tool_envelope({}, UNKNOWN))


@given(st.lists(st.text(min_size=1), unique=True, max_size=8))
def test_names_are_legal_distinct_and_independent_of_order(originals: list[str]) -> None:
    import re

    assigned = assign_names(originals)
    names = [name for name, _ in assigned.values()]
    assert len(set(names)) == len(originals)
    assert all(re.fullmatch(NAME_PATTERN, name) for name in names)
    assert assign_names(reversed(originals)) == assigned
    for original, (name, kept) in assigned.items():
        assert kept.get("sourceName", name) == original


@given(st.text())
def test_every_server_name_has_a_namespace(name: str) -> None:
    import re

    assert re.fullmatch(NAMESPACE_PATTERN, namespace_of(name))


async def test_pages_are_followed_until_they_end_or_repeat() -> None:
    asked: list[Any] = []
    pages: dict[Any, dict[str, Any]] = {
        None: {"x": [1], "nextCursor": "b"},
        "b": {"x": [2], "nextCursor": "c"},
        "c": {"x": [3]},
    }

    async def fetch(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(params.get("cursor"))
        return pages[asked[-1]]

    assert await list_all(fetch, "x/list", "x", server="s") == [1, 2, 3]
    assert asked == [None, "b", "c"]
    counter = itertools.count()

    async def endless(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"x": [1], "nextCursor": str(next(counter))}

    assert len(await list_all(endless, "x/list", "x", server="s")) == MAX_PAGES + 1

    async def odd(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"x": "nothing", "nextCursor": 7}

    assert await list_all(odd, "x/list", "x", server="s") == []


def test_meta_is_empty_unless_there_is_something_to_report() -> None:
    config = MCPClientConfig(command="x", identity_fields=("id", "resources", "nonsense"))
    assert request_meta(config, OperationContext()) == {}
    context = OperationContext(identity=Identity("a"), metadata={"traceparent": 7})
    assert request_meta(config, context) == {"operations/identity": {"id": "a", "resources": {}}}


def test_every_failure_has_its_code() -> None:
    lost = call_error(RequestLostError("gone", executed="unknown"), "s", "tool 'x'")
    assert (lost.code, lost.details) == (ErrorCode.UNAVAILABLE, {"server": "s", "executed": "unknown"})
    assert call_error(RequestTimeoutError(), "s", "tool 'x'").code is ErrorCode.TIMEOUT
    failed = call_error(RequestFailedError(-32002, "no such resource"), "s", "resource 'x'")
    assert failed.code is ErrorCode.VALIDATION_ERROR
    assert failed.message == "MCP server 's', resource 'x': no such resource (-32002)"


def test_a_group_of_failures_is_one_line() -> None:
    group = ExceptionGroup("many", [ValueError("a\n b"), ExceptionGroup("inner", [OSError()])])
    assert explain(group) == "ValueError: a b; OSError"


@pytest.mark.parametrize("params", [{"a": object()}, {"a": "\ud800"}, {"a": {b"b": {1, 2}, None: 3}}])
def test_requests_that_are_not_json_are_rejected_before_sending(params: Any) -> None:
    with pytest.raises(CallError) as caught:
        as_json(params, 1_000)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


def test_values_are_sent_in_their_json_form() -> None:
    assert as_json({"a": b"x", "b": (1, 2)}, 1_000) == {"a": "eA==", "b": [1, 2]}


@pytest.mark.parametrize("value", ["caf\u00e9", "a\nb: c", 7])
def test_trace_fields_that_cannot_be_headers_are_not_sent(value: Any) -> None:
    assert request_meta(MCPClientConfig(url="http://x"), OperationContext(metadata={"traceparent": value})) == {}
