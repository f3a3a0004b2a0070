import copy
from collections import ChainMap
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations import (
    CallError,
    ErrorCode,
    HTTPResponseMeta,
    LocalResponseMeta,
    MCPResponseMeta,
    ResponseEnvelope,
    ResponseEnvelopeSchema,
    ResponseMetaSchema,
    http_envelope,
    is_response_envelope,
    local_envelope,
    mcp_envelope,
    unwrap,
)
from operations.envelope import SSEEvent
from tests.strategies import envelopes, http_envelopes, json_values, local_envelopes, mcp_envelopes

REQUIRED = {
    "local": ("source", "operationId", "timestamp"),
    "http": ("source", "statusCode", "headers", "contentType"),
    "mcp": ("source", "isError", "content"),
}
WRONG: dict[str, list[Any]] = {
    "source": ["ftp", None, 1, ["local"]],
    "operationId": [1, None],
    "timestamp": ["1", 1.5, True, None],
    "statusCode": ["200", None, 200.5, True],
    "headers": [None, [], {"a": 1}, "x"],
    "contentType": [None, 1],
    "isError": [None, 0, "false"],
    "content": [None, {}, "text", [1], [{}], [{"type": "text"}], [{"type": "text", "text": 1}]],
    "setCookies": ["a=1", [1]],
    "event": ["message", {}, {"type": 1}],
    "structuredContent": [[], 1],
    "_meta": ["x"],
}


@given(envelopes)
def test_an_envelope_round_trips_as_json(envelope: ResponseEnvelope[Any]) -> None:
    assert ResponseEnvelope.from_json(envelope.to_json()) == envelope


@given(envelopes)
def test_an_envelope_round_trips_as_msgpack(envelope: ResponseEnvelope[Any]) -> None:
    assert ResponseEnvelope.from_msgpack(envelope.to_msgpack()) == envelope


@given(envelopes)
def test_detection_misses_no_serialised_envelope(envelope: ResponseEnvelope[Any]) -> None:
    plain = envelope.to_dict()
    assert is_response_envelope(envelope)
    assert is_response_envelope(plain)
    assert is_response_envelope(MappingProxyType({"data": plain["data"], "meta": ChainMap(plain["meta"])}))
    assert ResponseEnvelope.from_dict(plain) == envelope
    assert ResponseEnvelopeSchema.check(ResponseEnvelope.from_json(envelope.to_json()).to_dict())


@given(st.one_of(local_envelopes, http_envelopes, mcp_envelopes), st.data())
def test_detection_rejects_a_missing_field(envelope: ResponseEnvelope[Any], data: st.DataObject) -> None:
    plain = copy.deepcopy(envelope.to_dict())
    del plain["meta"][data.draw(st.sampled_from(REQUIRED[plain["meta"]["source"]]))]
    assert not is_response_envelope(plain)
    with pytest.raises(CallError, match="not a response envelope"):
        ResponseEnvelope.from_dict(plain)


@given(st.one_of(local_envelopes, http_envelopes, mcp_envelopes), st.data())
def test_detection_rejects_a_wrong_field(envelope: ResponseEnvelope[Any], data: st.DataObject) -> None:
    plain = copy.deepcopy(envelope.to_dict())
    source = plain["meta"]["source"]
    optional = {"local": ("event",), "http": ("setCookies", "event"), "mcp": ("structuredContent", "_meta")}[source]
    name = data.draw(st.sampled_from([*REQUIRED[source], *optional]))
    plain["meta"][name] = data.draw(st.sampled_from(WRONG[name]))
    assert not is_response_envelope(plain)
    assert not ResponseMetaSchema.check(plain["meta"])


@pytest.mark.parametrize(
    "meta",
    [
        {"source": "local", "operationId": "a.b", "timestamp": 5.0},
        {"source": "http", "statusCode": 200.0, "headers": {}, "contentType": "", "setCookies": None, "event": None},
        {"source": "http", "statusCode": 200, "headers": {}, "contentType": "", "event": {"type": "a", "id": None}},
        {"source": "mcp", "isError": False, "content": [], "structuredContent": None, "_meta": None},
    ],
    ids=["integral", "http", "event", "mcp"],
)
def test_null_is_an_absent_optional_field(meta: dict[str, Any]) -> None:
    plain: Any = {"data": 1, "meta": meta}
    assert ResponseEnvelopeSchema.check(plain)
    written = ResponseEnvelope.from_dict(plain).to_json()
    assert b"null" not in written
    assert b"5.0" not in written


def test_unwrap_takes_an_envelope_as_a_mapping() -> None:
    envelope = local_envelope([1], "a.b")
    assert unwrap(envelope) == unwrap(envelope.to_dict()) == [1]
    with pytest.raises(CallError, match="not an envelope"):
        unwrap({"data": 1})


@given(json_values)
def test_plain_data_is_not_an_envelope(value: Any) -> None:
    assert not is_response_envelope(value)
    assert not is_response_envelope({"data": value})
    assert not is_response_envelope({"data": value, "meta": {"source": "local"}})


@pytest.mark.parametrize(
    "value", [None, 1, "x", [], {"data": 1, "meta": None}, {"meta": {"source": "local"}}, object()]
)
def test_other_values_are_not_envelopes(value: Any) -> None:
    assert not is_response_envelope(value)


def test_the_local_meta_has_exactly_its_json_names() -> None:
    plain = local_envelope([1], "math.add").to_dict()
    assert plain["data"] == [1]
    assert list(plain["meta"]) == ["source", "operationId", "timestamp"]
    assert plain["meta"]["timestamp"] > 1_600_000_000_000


def test_absent_fields_of_the_http_meta_are_left_out() -> None:
    plain = http_envelope(None, status_code=204, headers={"X-Rate": "9"}).to_dict()
    assert plain == {
        "data": None,
        "meta": {"source": "http", "statusCode": 204, "headers": {"x-rate": "9"}, "contentType": ""},
    }


def test_the_http_meta_has_exactly_its_json_names() -> None:
    envelope = http_envelope(1, status_code=200, headers=[("Set-Cookie", "a=1")], event=SSEEvent("tick", "7"))
    assert envelope.to_dict()["meta"] == {
        "source": "http",
        "statusCode": 200,
        "headers": {},
        "contentType": "",
        "setCookies": ["a=1"],
        "event": {"type": "tick", "id": "7"},
    }


def test_the_mcp_meta_has_exactly_its_json_names() -> None:
    envelope = mcp_envelope({"a": 1}, structured_content={"a": 1}, extensions={"trace": "t"})
    assert envelope.to_dict()["meta"] == {
        "source": "mcp",
        "isError": False,
        "content": [],
        "structuredContent": {"a": 1},
        "_meta": {"trace": "t"},
    }
    assert list(mcp_envelope(1).to_dict()["meta"]) == ["source", "isError", "content"]


def test_repeated_headers_are_joined_and_cookies_kept_apart() -> None:
    sent = [("Vary", "a"), ("VARY", "b"), ("Set-Cookie", "a=1; Expires=Mon, 1"), ("set-cookie", "b=2")]
    meta = http_envelope(b"", status_code=200, headers=sent).meta
    assert isinstance(meta, HTTPResponseMeta)
    assert meta.headers == {"vary": "a, b"}
    assert meta.set_cookies == ["a=1; Expires=Mon, 1", "b=2"]
    grouped = {"Vary": ["a", "b"], "Set-Cookie": ["a=1; Expires=Mon, 1", "b=2"]}
    assert http_envelope(b"", status_code=200, headers=grouped).meta == meta


def test_the_content_type_comes_from_the_headers_unless_given() -> None:
    meta = http_envelope("", status_code=200, headers={"Content-Type": "text/plain"}).meta
    assert isinstance(meta, HTTPResponseMeta)
    assert meta.content_type == "text/plain"


def test_headers_of_a_detected_mapping_are_lowered() -> None:
    meta = {"source": "http", "statusCode": 200, "headers": {"X-A": "1", "Set-Cookie": "a=1"}, "contentType": ""}
    read = ResponseEnvelope.from_dict({"data": 1, "meta": meta}).meta
    assert isinstance(read, HTTPResponseMeta)
    assert read.headers == {"x-a": "1"}
    assert read.set_cookies == ["a=1"]


def test_the_source_discriminates_the_metas() -> None:
    metas = [local_envelope(1, "a.b").meta, http_envelope(1, status_code=200).meta, mcp_envelope(1).meta]
    assert [meta.source for meta in metas] == ["local", "http", "mcp"]
    assert [type(meta) for meta in metas] == [LocalResponseMeta, HTTPResponseMeta, MCPResponseMeta]


def test_an_envelope_is_frozen() -> None:
    envelope = local_envelope(1, "a.b")
    with pytest.raises(AttributeError):
        envelope.data = 2  # type: ignore[misc]


def test_unwrap_gives_the_data() -> None:
    assert unwrap(local_envelope({"a": 1}, "a.b")) == {"a": 1}


def test_raise_for_error_raises_only_for_an_mcp_error() -> None:
    fine = [local_envelope(1, "a.b"), http_envelope(1, status_code=500), mcp_envelope(1)]
    assert [envelope.raise_for_error() for envelope in fine] == fine
    failed = mcp_envelope(None, is_error=True, content=[{"type": "text", "text": "disk full"}])
    with pytest.raises(CallError, match="disk full") as caught:
        failed.raise_for_error()
    assert caught.value.code is ErrorCode.EXECUTION_ERROR
    assert caught.value.details["isError"] is True


def test_a_failed_tool_without_text_still_has_a_message() -> None:
    with pytest.raises(CallError, match="without a message"):
        mcp_envelope(None, is_error=True).raise_for_error()


@pytest.mark.parametrize("text", [b"[]", b"{}", b'"x"', b'{"data":1,"meta":{"source":"local"}}'])
def test_json_that_is_not_an_envelope_is_one_error(text: bytes) -> None:
    with pytest.raises(CallError, match="not a response envelope") as caught:
        ResponseEnvelope.from_json(text)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


def test_cookies_of_a_detected_mapping_are_kept_apart() -> None:
    meta = {"source": "http", "statusCode": 200, "headers": {"set-cookie": "a=1"}, "contentType": ""}
    read = ResponseEnvelope.from_dict({"data": 1, "meta": meta}).meta
    assert isinstance(read, HTTPResponseMeta)
    assert (read.headers, read.set_cookies) == ({}, ["a=1"])


def test_blocks_used_as_data_are_json() -> None:
    sent = mcp_envelope(None, content=[{"type": "text", "text": "hi", "title": "t", "annotations": None}])
    assert isinstance(sent.meta, MCPResponseMeta)
    data: Any = mcp_envelope(sent.meta.content, content=sent.meta.content).data
    assert data == [{"type": "text", "text": "hi", "title": "t"}]


def test_a_block_of_an_unknown_type_matches_the_schema() -> None:
    meta = {"source": "mcp", "isError": False, "content": [{"type": "hologram"}]}
    assert is_response_envelope({"data": 1, "meta": meta})
    assert ResponseMetaSchema.check(meta)


def test_a_value_that_is_not_a_block_is_rejected() -> None:
    with pytest.raises(CallError, match="invalid content block"):
        mcp_envelope(1, content=["hi"])  # type: ignore[list-item]


def test_an_integer_too_large_to_write_is_one_clear_error() -> None:
    with pytest.raises(CallError) as caught:
        local_envelope(10**5000, "a.b").to_json()
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert ResponseEnvelope.from_json(bytearray(local_envelope(1, "a.b").to_json())).data == 1
