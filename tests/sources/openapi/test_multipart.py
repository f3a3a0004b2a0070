"""Multipart bodies, read back byte for byte by parsers that are not ours."""

from __future__ import annotations

import json
import re
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.errors import CallError, ErrorCode
from operations.sources.openapi.bodies import Body, encode_body
from operations.sources.openapi.forms import guess_type
from operations.sources.openapi.uploads import FileContent, is_file, upload_of

MULTIPART = "multipart/form-data"
EVERY_BYTE = bytes(range(256)) * 3 + b"\r\n--boundary\r\n\r\n--"


class Part(NamedTuple):
    name: str
    filename: str | None
    content_type: str | None
    content: bytes
    headers: dict[str, str]


def split(body: Body, data: bytes) -> list[Part]:
    """The parts by RFC 2046: everything between two delimiter lines, to the byte."""
    assert body.content_type is not None
    boundary = body.content_type.partition("; boundary=")[2]
    assert re.fullmatch(r"[0-9a-f]{32}", boundary)
    first, *middle, last = (b"\r\n" + data).split(f"\r\n--{boundary}".encode())
    assert (first, last) == (b"", b"--\r\n")
    return [read_part(piece.removeprefix(b"\r\n")) for piece in middle]


def read_part(piece: bytes) -> Part:
    head, _, content = piece.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
    disposition = re.fullmatch(r'form-data; name="([^"]*)"(?:; filename="([^"]*)")?', headers["Content-Disposition"])
    assert disposition is not None
    return Part(disposition[1], disposition[2], headers.pop("Content-Type", None), content, headers)


def parts_of(value: dict[str, Any], **options: Any) -> list[Part]:
    body = encode_body(MULTIPART, value, **options)
    assert body.data is not None
    assert body.length == len(body.data)
    return split(body, body.data)


async def sent(body: Body) -> bytes:
    return b"".join([chunk async for chunk in body.chunks()])


def test_the_email_parser_reads_the_body() -> None:
    body = encode_body(
        MULTIPART,
        {"title": "Grüße", "count": 3, "meta": {"a": [1]}, "file": {"filename": "a.bin", "content": EVERY_BYTE}},
    )
    assert body.data is not None
    message = BytesParser(EmailMessage, policy=policy.HTTP).parsebytes(
        f"Content-Type: {body.content_type}\r\n\r\n".encode() + body.data
    )
    read = [
        (part.get_param("name", header="content-disposition"), part.get_filename(), part.get_content_type())
        for part in message.iter_parts()
    ]
    assert read == [
        ("title", None, "text/plain"),
        ("count", None, "text/plain"),
        ("meta", None, "application/json"),
        ("file", "a.bin", "application/octet-stream"),
    ]
    payloads = [part.get_payload(decode=True) for part in message.iter_parts()]
    assert payloads == ["Grüße".encode(), b"3", b'{"a":[1]}', EVERY_BYTE]


def test_python_multipart_reads_the_body() -> None:
    library = pytest.importorskip("python_multipart")
    body = encode_body(MULTIPART, {"title": "x", "files": [EVERY_BYTE, {"filename": "ü.txt", "content": "text"}]})
    fields: list[Any] = []
    files: list[Any] = []
    headers = {"Content-Type": (body.content_type or "").encode(), "Content-Length": str(body.length).encode()}
    parser = library.create_form_parser(headers, fields.append, files.append)
    parser.write(body.data)
    parser.finalize()
    assert [(field.field_name, field.value) for field in fields] == [(b"title", b"x")]
    read = []
    for file in files:
        file.file_object.seek(0)
        read.append((file.field_name, file.file_name, file.file_object.read()))
        file.close()
    assert read == [(b"files", b"files", EVERY_BYTE), (b"files", "ü.txt".encode(), b"text")]


@pytest.mark.parametrize(
    ("value", "encoding", "expected"),
    [
        ("text", {}, [(None, None, b"text")]),
        (True, {}, [(None, None, b"true")]),
        (1.5, {}, [(None, None, b"1.5")]),
        (None, {}, []),
        ([1, None, 2], {}, [(None, None, b"1"), (None, None, b"2")]),
        ({"a": 1}, {}, [(None, "application/json", b'{"a":1}')]),
        ([{"a": 1}], {}, [(None, "application/json", b'{"a":1}')]),
        ([[1, 2]], {}, [(None, None, b"1"), (None, None, b"2")]),
        ([1, 2], {"contentType": "application/json"}, [(None, "application/json", b"[1,2]")]),
        ({"a": 1}, {"contentType": "application/ld+json"}, [(None, "application/ld+json", b'{"a":1}')]),
        ("<a/>", {"contentType": "application/xml"}, [(None, "application/xml", b"<a/>")]),
        (b"\x00\xff", {}, [("p", "application/octet-stream", b"\x00\xff")]),
        (bytearray(b"x"), {"contentType": "image/png"}, [("p", "image/png", b"x")]),
        ([b"1", b"2"], {}, [("p", "application/octet-stream", b"1"), ("p", "application/octet-stream", b"2")]),
        ([b"1"], {"style": "form", "explode": True}, [("p", "application/octet-stream", b"1")]),
        ({"content": b"x"}, {}, [("p", "application/octet-stream", b"x")]),
        ({"filename": "a.csv", "content": "a,b"}, {}, [("a.csv", "application/octet-stream", b"a,b")]),
        ({"filename": "a", "content": "ü", "contentType": "text/x"}, {}, [("a", "text/x", "ü".encode())]),
        ({"content": "just an object"}, {}, [(None, "application/json", b'{"content":"just an object"}')]),
        (
            {"filename": "a.png", "content": b"x"},
            {"contentType": "image/jpeg, image/*"},
            [("a.png", "image/png", b"x")],
        ),
        ([1, 2], {"style": "form", "explode": False}, [(None, None, b"1,2")]),
        ([1, 2], {"collectionFormat": "pipes"}, [(None, None, b"1|2")]),
    ],
)
def test_a_property_becomes_parts(value: Any, encoding: dict[str, Any], expected: list[Any]) -> None:
    parts = parts_of({"p": value, "last": "x"}, encoding={"p": encoding})
    assert [(part.filename, part.content_type, part.content) for part in parts[:-1]] == expected
    assert {part.name for part in parts[:-1]} <= {"p"}


def test_a_style_names_the_parts() -> None:
    parts = parts_of({"p": {"a": {"b": "x y"}, "c": [1]}}, encoding={"p": {"style": "deepObject", "explode": True}})
    assert [(part.name, part.content) for part in parts] == [("p[a][b]", b"x y"), ("p[c][]", b"1")]


@pytest.mark.parametrize("schema", [{"type": "string", "format": "binary"}, {"contentMediaType": "image/png"}])
def test_a_string_is_a_file_if_the_schema_is_binary(schema: dict[str, Any]) -> None:
    hint = {"properties": {"p": schema, "q": {"type": "array", "items": schema}, "r": True}}
    parts = parts_of({"p": "x", "q": ["y", {"content": "z"}], "r": "w"}, schema_hint=hint)
    assert [(part.filename, part.content) for part in parts] == [("p", b"x"), ("q", b"y"), ("q", b"z"), (None, b"w")]


def test_an_object_that_looks_like_a_file_is_an_object_if_the_schema_declares_it() -> None:
    value = {"filename": "a", "content": "b"}
    assert parts_of({"p": value})[0].filename == "a"
    (part,) = parts_of({"p": value}, schema_hint={"properties": {"p": {"type": "object"}}})
    assert (part.filename, json.loads(part.content)) == (None, value)


def test_parts_have_their_own_headers() -> None:
    headers = {"X-Fixed": {"schema": {"default": "d"}}, "X-Open": {"schema": {"type": "string"}}, "Content-Type": "no"}
    file = {"content": b"x", "headers": {"X-Own": 5, "content-disposition": "no"}}
    (part,) = parts_of({"p": file}, encoding={"p": {"headers": headers}})
    assert part.headers.keys() == {"Content-Disposition", "X-Fixed", "X-Own"}
    assert (part.headers["X-Fixed"], part.headers["X-Own"]) == ("d", "5")


def test_names_and_filenames_are_escaped_in_quotes() -> None:
    name = 'a"; filename="x\r\nX-Evil: 1\nü'
    body = encode_body(MULTIPART, {name: {"filename": name, "content": b"x"}})
    assert body.data is not None
    head = body.data.split(b"\r\n")[1].decode()
    escaped = "a%22; filename=%22x%0D%0AX-Evil: 1"
    assert head == f'Content-Disposition: form-data; name="{escaped}%0D%0Aü"; filename="{escaped}%0Aü"'


@pytest.mark.parametrize(
    "value",
    [
        {"content": b"x", "contentType": "text/plain\r\nX-Evil: 1"},
        {"content": b"x", "headers": {"X-A": "b\r\nX-Evil: 1"}},
        {"content": b"x", "headers": {"X-A: b\r\nX-Evil": "1"}},
        {"a": float("nan")},
        "\ud800",
        Path("no such file"),
        Path(),
        {"content": Path("no such file")},
    ],
)
def test_a_refusal_names_the_property(value: Any) -> None:
    with pytest.raises(CallError, match="property 'bad'") as refused:
        encode_body(MULTIPART, {"good": 1, "bad": value})
    assert refused.value.code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize("value", ["text", b"bytes", None])
def test_a_value_that_is_not_an_object_is_rejected(value: Any) -> None:
    with pytest.raises(CallError, match="pass an object"):
        encode_body(MULTIPART, value)


def test_parts_from_other_encoders_are_unchanged() -> None:
    assert encode_body("multipart/related; boundary=b", b"--b--").data == b"--b--"


def test_other_multipart_types_keep_their_name() -> None:
    content_type = encode_body("multipart/mixed", {"a": 1}).content_type
    assert content_type is not None
    assert content_type.startswith("multipart/mixed; boundary=")


def test_each_body_has_a_different_boundary() -> None:
    assert encode_body(MULTIPART, {"a": 1}).content_type != encode_body(MULTIPART, {"a": 1}).content_type


async def test_a_file_is_streamed_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "big.bin"
    content = EVERY_BYTE * 2000
    path.write_bytes(content)
    body = encode_body(MULTIPART, {"a": "x", "file": path, "more": [path, {"content": path, "filename": "y"}]})
    assert body.data is None
    data = await sent(body)
    assert body.length == len(data)
    assert data == await sent(body)
    parts = split(body, data)
    assert [(part.name, part.filename) for part in parts] == [
        ("a", None),
        ("file", "big.bin"),
        ("more", "big.bin"),
        ("more", "y"),
    ]
    assert all(part.content == content for part in parts[1:])
    assert max([len(chunk) async for chunk in body.chunks()]) < len(content)


async def test_a_file_that_changes_is_sent_at_its_first_length_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"12345")
    body = encode_body("application/octet-stream", path)
    path.write_bytes(b"1234567")
    assert await sent(body) == b"12345"
    path.write_bytes(b"1")
    with pytest.raises(CallError, match="was truncated") as shorter:
        await sent(body)
    path.unlink()
    with pytest.raises(CallError, match="cannot read file") as gone:
        await sent(body)
    assert shorter.value.code is gone.value.code is ErrorCode.EXECUTION_ERROR


async def test_stopping_early_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "big.bin"
    path.write_bytes(bytes(1_000_000))
    for chunks in (FileContent.at(path).chunks(), encode_body("image/png", path).chunks()):
        assert await anext(chunks)
        await chunks.aclose()  # an open file would be a warning, and so an error


def test_a_device_has_no_length() -> None:
    body = encode_body("application/octet-stream", Path("/dev/null"))
    assert (body.data, body.length) == (None, None)


def test_text_is_never_a_path(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("secret")
    assert upload_of(str(path)) is None
    assert not is_file({"content": str(path)})
    (part,) = parts_of({"p": str(path)}, schema_hint={"properties": {"p": {"format": "binary"}}})
    assert part.content == str(path).encode()


@pytest.mark.parametrize(
    ("offered", "filename", "expected"),
    [
        ("", "a.png", "application/octet-stream"),
        ("image/png", "a.gif", "image/png"),
        ("image/png, image/gif", "a.gif", "image/gif"),
        ("image/png, image/gif", "a", "image/png"),
        ("image/*", "a.gif", "image/gif"),
        ("image/*", "a.txt", "application/octet-stream"),
    ],
)
def test_a_content_type_is_chosen_by_the_file_name(offered: str, filename: str, expected: str) -> None:
    assert guess_type(offered, filename) == expected


names = st.text(st.characters(codec="utf-8", exclude_characters='"\r\n'))


@given(st.dictionaries(names, st.binary() | st.lists(st.binary(), max_size=3)))
def test_files_come_back_byte_for_byte(value: dict[str, Any]) -> None:
    expected = [
        (name, item) for name, member in value.items() for item in (member if isinstance(member, list) else [member])
    ]
    body = encode_body(MULTIPART, value)
    assert body.data is not None
    assert [(part.name, part.content) for part in split(body, body.data)] == expected
