"""Limits without a server: truncation of deep messages, ids of messages that cannot be parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.sources.mcp.limits import (
    MAX_DEPTH,
    TOO_DEEP,
    _truncate_deep,
    is_too_deep,
    response_id,
    without_deep_tools,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_a_shallow_message_is_not_changed(value: Any) -> None:
    text = json.dumps(value).encode()
    assert _truncate_deep(text) == text


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(json_values, st.integers(0, 400), st.booleans())
def test_values_below_the_limit_are_replaced_by_the_marker(value: Any, levels: int, in_objects: bool) -> None:
    opening, closing = ('{"a": ', "}") if in_objects else ("[", "]")
    text = '[1, "]}", ' + opening * levels + json.dumps(value) + closing * levels + ', "[{", 2]'
    original, cut = json.loads(text), json.loads(_truncate_deep(text.encode()))
    assert cut[:2] + cut[3:] == original[:2] + original[3:]
    assert depth(cut) == min(depth(original), MAX_DEPTH)
    assert (cut == original) == (depth(original) <= MAX_DEPTH) == (not is_too_deep(text.encode()))


@pytest.mark.parametrize(
    "text", [b'["', b'["\\', b'"\\"\\"', b"]]]", b"[" * 10_000_000, b'["' + b'\\"' * 5_000_000, b'"\\"' * 5_000_000]
)
def test_malformed_input_takes_linear_time(text: bytes) -> None:
    assert len(_truncate_deep(text)) <= len(text)
    assert without_deep_tools(text) is None


def test_a_deep_tool_is_reduced_to_its_name() -> None:
    deep = "[" * 1_000 + "]" * 1_000
    tools = f'[{{"name": "a"}}, {{"name": "b", "inputSchema": {deep}}}, {deep}]'
    message = f'{{"jsonrpc": "2.0", "id": 1, "result": {{"tools": {tools}, "nextCursor": "x"}}}}'
    pruned = json.loads(without_deep_tools(message.encode()) or b"")
    assert pruned["result"] == {"tools": [{"name": "a"}, {"name": "b", TOO_DEEP: True}, None], "nextCursor": "x"}
    assert without_deep_tools(b'{"result": {"content": [{"tools": 1}]}, "tools": []}') is None


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b'{"jsonrpc": "2.0", "id": 7, "result": {"id": 8', 7),
        (b' {"id":"7","jsonrpc":"2.0","result":[[', 7),
        (b'{"jsonrpc": "2.0", "result": {"id": 8, "x": [}], "id": 7}\n', 7),
        (b'{"result": [[[], "jsonrpc": "2.0", "id": 7}', 7),
        (b'{"jsonrpc": "2.0", "id": 7}', 7),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": {', None),
        (b'{"jsonrpc": "2.0", "result": {"id": 8}}', None),
        (b'{"level": "info", "id": 7}', None),
        (b'request {"jsonrpc": "2.0", "id": 7}', None),
        (b'{"jsonrpc": "2.0", "id": null, "result": {', None),
        (b"[]", None),
        (b"", None),
    ],
)
def test_the_id_of_a_message_that_cannot_be_parsed(message: bytes, expected: int | None) -> None:
    assert response_id(message) == expected
