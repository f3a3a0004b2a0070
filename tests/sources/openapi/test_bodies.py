"""Bodies: the choice of the media type, and what each can encode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.errors import CallError, ErrorCode
from operations.sources.openapi.bodies import Body, choose_media_type, encode_body

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
TEXT, XML, BINARY = "text/plain", "application/xml", "application/octet-stream"
PATCHES = ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"]


@pytest.mark.parametrize(
    ("available", "value", "expected"),
    [
        ([FORM, JSON, MULTIPART], {"a": 1}, JSON),
        ([XML, "application/vnd.x+json"], {"a": 1}, "application/vnd.x+json"),
        (["application/vnd.x+json", "application/json; charset=utf-8"], {"a": 1}, "application/json; charset=utf-8"),
        ([MULTIPART, FORM], {"a": 1}, FORM),
        ([JSON, FORM, MULTIPART], {"a": b"x"}, MULTIPART),
        ([JSON, MULTIPART], {"a": [{"filename": "f", "content": b"x"}]}, MULTIPART),
        ([JSON, MULTIPART], {"a": Path("x")}, MULTIPART),
        ([JSON, MULTIPART], {"filename": "f", "content": "x"}, JSON),
        ([JSON, FORM], {"a": b"x"}, JSON),
        ([JSON, BINARY], b"x", BINARY),
        ([JSON, "image/png"], Path("x.png"), "image/png"),
        ([JSON, XML], b"<a/>", XML),
        ([JSON], b"x", JSON),
        (["image/png", "image/gif"], {"content": b"x", "contentType": "image/gif"}, "image/gif"),
        ([JSON, TEXT], "x", TEXT),
        ([JSON, XML], "<a/>", XML),
        ([JSON], "x", JSON),
        ([JSON, FORM], "x", JSON),
        ([TEXT, JSON], 5, JSON),
        ([XML, TEXT], 5, TEXT),
        (["application/x-ndjson", JSON], [1], JSON),
        (["application/x-ndjson", TEXT], [1], "application/x-ndjson"),
        (PATCHES, {"a": 1}, "application/merge-patch+json"),
        (PATCHES, [{"op": "add"}], "application/json-patch+json"),
        (["*/*"], {"a": 1}, JSON),
        (["*/*"], "x", TEXT),
        (["*/*"], b"x", BINARY),
        (["*/*"], {"a": b"x"}, MULTIPART),
        (["application/*"], b"x", BINARY),
        (["text/*"], "x", TEXT),
        (["image/*"], Path("a.png"), "image/png"),
        (["image/*"], {"filename": "a.gif", "content": b"x"}, "image/gif"),
        (["image/*"], b"x", BINARY),
        ([], {"a": 1}, JSON),
        ([], b"x", BINARY),
        ([XML], {"a": 1}, XML),
    ],
)
def test_the_media_type_suits_the_value(available: list[str], value: Any, expected: str) -> None:
    assert choose_media_type(available, value) == expected


@pytest.mark.parametrize(
    ("available", "requested", "expected"),
    [
        ([JSON, FORM], FORM, FORM),
        ([JSON, "Text/CSV; header=present"], "text/csv", "Text/CSV; header=present"),
        ([JSON, "text/csv"], "text/csv; charset=latin-1", "text/csv; charset=latin-1"),
        ([JSON, "image/*"], "image/webp", "image/webp"),
        ([], "a/b", "a/b"),
    ],
)
def test_the_requested_media_type_is_used(available: list[str], requested: str, expected: str) -> None:
    assert choose_media_type(available, {}, requested) == expected


def test_a_media_type_that_is_not_offered_is_refused() -> None:
    with pytest.raises(CallError, match="expected one of application/json, text/plain") as refused:
        choose_media_type([JSON, TEXT], {}, XML)
    assert refused.value.code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize("media_type", [JSON, "application/vnd.github+json", "application/json; charset=utf-8"])
def test_json(media_type: str) -> None:
    assert encode_body(media_type, {"a": [1, None, "é", b"\xff"]}) == Body(
        media_type, '{"a":[1,null,"é","/w=="]}'.encode()
    )
    assert encode_body(media_type, "x").data == b'"x"'
    assert encode_body(media_type, None).data == b"null"


@pytest.mark.parametrize(
    "value", [float("nan"), {"a": [1, None, float("-inf")]}, "\ud800", {"a": Path("x")}, {"a": object()}]
)
def test_values_without_a_json_form_are_rejected(value: Any) -> None:
    with pytest.raises(CallError, match="cannot send the body as application/json") as refused:
        encode_body(JSON, value)
    assert refused.value.code is ErrorCode.VALIDATION_ERROR


def test_a_deeply_nested_body_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CallError, match="cannot send"):
        encode_body(JSON, deep)


@pytest.mark.parametrize(
    ("media_type", "value", "content_type", "data"),
    [
        (TEXT, "é", "text/plain; charset=utf-8", "é".encode()),
        ("text/csv; charset=ISO-8859-1", "é", "text/csv; charset=ISO-8859-1", b"\xe9"),
        (TEXT, 5, "text/plain; charset=utf-8", b"5"),
        (TEXT, True, "text/plain; charset=utf-8", b"true"),
        (TEXT, b"\xe9", TEXT, b"\xe9"),
        (XML, "<a>é</a>", XML, "<a>é</a>".encode()),
        ("text/xml", "<a/>", "text/xml; charset=utf-8", b"<a/>"),
        ("image/svg+xml", b"<a/>", "image/svg+xml", b"<a/>"),
        (BINARY, b"\0\xff", BINARY, b"\0\xff"),
        (BINARY, bytearray(b"x"), BINARY, b"x"),
        (BINARY, "é", BINARY, "é".encode()),
        ("image/png", {"filename": "a.png", "content": b"x"}, "image/png", b"x"),
        ("application/graphql", "{ a }", "application/graphql", b"{ a }"),
        ("application/x-ndjson", [{"a": 1}, 2], "application/x-ndjson", b'{"a":1}\n2\n'),
        ("application/x-ndjson", {"a": 1}, "application/x-ndjson", b'{"a":1}\n'),
        ("application/x-ndjson", "{}\n", "application/x-ndjson", b"{}\n"),
        ("application/apply-patch+yaml", {"a": 1}, "application/apply-patch+yaml", b'{"a":1}'),
        ("application/yaml", "a: 1", "application/yaml", b"a: 1"),
        ("*/*", {"a": 1}, JSON, b'{"a":1}'),
    ],
)
def test_other_types(media_type: str, value: Any, content_type: str, data: bytes) -> None:
    assert encode_body(media_type, value) == Body(content_type, data)


@pytest.mark.parametrize(
    ("media_type", "value", "message"),
    [
        (XML, {"a": 1}, "pass the XML as a string"),
        ("text/xml", [1], "pass the XML as a string"),
        (TEXT, {"a": 1}, "pass a string"),
        (TEXT, None, "pass a string"),
        (BINARY, {"a": 1}, "pass bytes, a path object or a string"),
        (BINARY, 5, "pass bytes"),
        ("application/cbor", [1], "pass bytes"),
        ("text/plain; charset=nonsense", "a", "unknown encoding"),
        ("text/plain; charset=ascii", "é", "can't encode"),
        ("text/plain\r\nX-Evil: 1", "a", "line break"),
        (BINARY, Path("no such file"), "cannot read"),
    ],
)
def test_values_that_a_media_type_cannot_encode_are_rejected(media_type: str, value: Any, message: str) -> None:
    with pytest.raises(CallError, match=message) as refused:
        encode_body(media_type, value)
    assert refused.value.code is ErrorCode.VALIDATION_ERROR


async def test_bytes_are_one_chunk() -> None:
    body = encode_body(JSON, {"a": 1})
    assert [chunk async for chunk in body.chunks()] == [body.data]
    assert body.length == 7
    assert [chunk async for chunk in Body(None, None).chunks()] == []
    assert Body(None, None).length == 0


async def test_a_path_is_streamed(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"x" * 700_000)
    for value in (path, {"content": path}):
        body = encode_body("image/png", value)
        chunks = [chunk async for chunk in body.chunks()]
        assert (body.content_type, body.data, body.length) == ("image/png", None, 700_000)
        assert b"".join(chunks) == path.read_bytes()
        assert len(chunks) > 1


def outcome(encode: Callable[[], Body]) -> Body | CallError:
    try:
        return encode()
    except CallError as error:
        return error


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text('aé"\n'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
)
media_types = st.sampled_from(
    [JSON, FORM, MULTIPART, TEXT, XML, BINARY, "application/x-ndjson", "application/yaml", "*/*", "image/*", "a/b+json"]
)


@given(st.lists(media_types, unique=True), json_values | st.binary())
def test_a_body_is_written_or_refused_clearly(available: list[str], value: Any) -> None:
    media_type = choose_media_type(available, value)
    assert "*" not in media_type
    body = outcome(lambda: encode_body(media_type, value))
    if isinstance(body, CallError):
        assert body.code is ErrorCode.VALIDATION_ERROR
        assert JSON not in available
        return
    assert body.data is not None
    if media_type == JSON:
        assert json.loads(body.data) == json.loads(msgspec.json.encode(value))
