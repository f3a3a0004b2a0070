from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from operations.cli.arguments import UsageError
from operations.cli.inputs import read_input
from operations.cli.snippets import example_input
from operations.schema import from_schema, from_type
from operations.schema.parts import Fields

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "item": {"type": "string"},
        "count": {"type": "integer"},
        "price": {"type": "number"},
        "gift": {"type": "boolean"},
        "colour": {"enum": ["red", "7", 7, None]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "either": {"type": ["integer", "string"]},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "address": {"$ref": "#/$defs/Address"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
        "photo": {"type": "string", "contentEncoding": "base64"},
        "a.b": {"type": "integer"},
        "X-Id:v": {"type": "integer"},
    },
    "required": ["item", "count"],
    "additionalProperties": False,
    "$defs": {
        "Address": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
            "additionalProperties": False,
        },
        "Line": {
            "allOf": [{"properties": {"n": {"type": "integer"}}}, {"properties": {"next": {"$ref": "#/$defs/Line"}}}]
        },
    },
}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], None),
        (["item=tea", "count=4"], {"item": "tea", "count": 4}),
        (["item=4"], {"item": "4"}),
        (["item="], {"item": ""}),
        (["item=a=b:=c@d"], {"item": "a=b:=c@d"}),
        (["price=4"], {"price": 4}),
        (["price=4.5"], {"price": 4.5}),
        (["price=nan"], {"price": "nan"}),
        (["gift=true"], {"gift": True}),
        (["gift=no"], {"gift": False}),
        (["count=four"], {"count": "four"}),
        (["colour=red"], {"colour": "red"}),
        (["colour=7"], {"colour": "7"}),
        (["colour=null"], {"colour": None}),
        (["tags=a"], {"tags": ["a"]}),
        (["tags=a", "tags=b"], {"tags": ["a", "b"]}),
        (["tags[]=a", "tags[]=b"], {"tags": ["a", "b"]}),
        (["tags[0]=a", "tags[1]=b"], {"tags": ["a", "b"]}),
        (['tags=["a","b"]'], {"tags": ["a", "b"]}),
        (["sizes=1", "sizes=2"], {"sizes": [1, 2]}),
        (["sizes=null"], {"sizes": None}),
        (["either=4"], {"either": "4"}),
        (["either:=4"], {"either": 4}),
        (["maybe=4"], {"maybe": 4}),
        (["maybe=null"], {"maybe": None}),
        (["address.city=Rome", "address.zip=123"], {"address": {"city": "Rome", "zip": 123}}),
        (['address={"city": "Rome"}'], {"address": {"city": "Rome"}}),
        (["lines[].n=1", "lines[].n=2"], {"lines": [{"n": 1}, {"n": 2}]}),
        (["lines[0].n=1", "lines[0].next.n=2"], {"lines": [{"n": 1, "next": {"n": 2}}]}),
        (["a.b=3"], {"a.b": 3}),
        (["X-Id:v=3"], {"X-Id:v": 3}),
        (['{"item": "tea"}', "count=2"], {"item": "tea", "count": 2}),
        (['{"item": "tea", "count": 1}', "count=2"], {"item": "tea", "count": 2}),
        (['{"address": {"city": "Rome"}}', "address.city=Oslo"], {"address": {"city": "Oslo"}}),
        (["tags:=[1]"], {"tags": [1]}),
    ],
)
def test_words_are_converted_to_the_types_of_the_schema(words: list[str], wanted: Any) -> None:
    assert read_input(words, SCHEMA) == wanted


def test_files_and_stdin_are_read(tmp_path: Path) -> None:
    (tmp_path / "input.json").write_text('{"item": "tea"}')
    (tmp_path / "text").write_text("some text")
    (tmp_path / "bytes").write_bytes(b"\xff\x00")
    assert read_input([f"@{tmp_path}/input.json", "count=1"], SCHEMA) == {"item": "tea", "count": 1}
    assert read_input([f"item@{tmp_path}/text"], SCHEMA) == {"item": "some text"}
    assert read_input([f"photo@{tmp_path}/bytes"], SCHEMA) == {"photo": b"\xff\x00"}
    assert read_input([f"photo@{tmp_path}/text"], SCHEMA) == {"photo": b"some text"}
    assert read_input([f"address:=@{tmp_path}/input.json"], SCHEMA) == {"address": {"item": "tea"}}
    assert read_input(["-"], SCHEMA, b'{"count": 3}') == {"count": 3}
    assert read_input(["@-"], True, b"[1]") == [1]
    assert read_input(["-"], True, b"\xef\xbb\xbf[1]") == [1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tea"], "invalid input 'tea'"),
        (["itme=tea"], "unknown field itme; did you mean item?"),
        (["address.ctiy=Rome"], "unknown field address.ctiy; did you mean city?"),
        (["count:=four"], "count: malformed JSON"),
        (["item=a", "item=b"], "duplicate value for item"),
        (["@no-such-file"], "no-such-file: no such file or directory"),
        (["photo@no-such-file"], "no-such-file: no such file or directory"),
        (["tags[3]=x"], "index 3 is out of range: the list has length 0"),
        (["[1]", "item=a"], "the whole input is not an object"),
        (["address.city=Rome", "address:={}"], "conflicting values for address"),
        (["lines[0].item=a", "lines[0]:={}"], "conflicting values for lines[0]"),
        (["@"], "missing file name after @"),
        (["photo@"], "missing file name after @"),
        (["{}", "-"], "the whole input is given twice"),
        (["tags=a", "tags.b=c"], "already has a value that is not an object"),
        ([".=3"], "invalid key"),
        (["-"], "stdin is empty"),
        (["address.city=Rome", "address.city=Oslo"], "duplicate value for address.city"),
        (["item=@ada"], "ada: no such file or directory"),
        (["address=Rome"], "address is an object: write address.city=…"),
        (["lines=tea"], "lines[0] is an object: write lines[0].n=…"),
        (["address={Rome}"], "address: malformed JSON"),
        (["item=\udcff"], "item: the value is not valid Unicode"),
    ],
)
def test_a_mistake_is_reported_with_a_hint(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_input(words, SCHEMA)
    assert message in raised.value.message


def test_an_open_schema_accepts_unknown_fields_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    assert read_input(["ctiy=Rome"], schema) == {"ctiy": "Rome"}
    assert "did you mean city?" in capsys.readouterr().err
    assert read_input(["else=1"], schema) == {"else": "1"}
    assert capsys.readouterr().err == ""
    assert read_input(["n=1", "m:=2"], True) == {"n": "1", "m": 2}


def test_fields_of_a_schema_that_refers_to_itself() -> None:
    fields = Fields({"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "integer"}]}}})
    assert fields.types([]) == {"integer"}
    loop = Fields({"$ref": "#"})
    assert loop.names() == []
    assert loop.types(["x"]) == set()


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (SCHEMA, {"item": "text", "count": 1}),
        (True, {}),
        ({"type": "object", "properties": {"when": {"type": "string", "format": "date"}}}, {"when": "2026-01-31"}),
        ({"properties": {"x": {"examples": ["Rome"]}}, "required": ["x"]}, {"x": "Rome"}),
        ({"properties": {"x": {"type": "integer", "minimum": 5, "maximum": 6}}, "required": ["x"]}, {"x": 5}),
        ({"properties": {"x": {"type": "array", "items": {"type": "boolean"}}}, "required": ["x"]}, {"x": [True]}),
    ],
)
def test_the_example_of_a_schema_is_readable_and_valid(schema: Any, wanted: Any) -> None:
    made = from_schema(schema)
    assert example_input(made) == wanted
    assert made.check(wanted)


def test_an_invalid_guess_is_replaced_by_the_smallest_value() -> None:
    schema = from_schema({"properties": {"code": {"type": "string", "pattern": "^[A-Z]{3}$"}}, "required": ["code"]})
    assert schema.check(example_input(schema))
    assert from_type(dict[str, int]).check(example_input(from_type(dict[str, int])))


BINARY: dict[str, Any] = {
    "properties": {
        "photo": {"type": "string", "format": "binary"},
        "untyped": {"anyOf": [{"contentMediaType": "image/png"}, {"type": "object", "required": ["content"]}]},
        "photos": {"type": "array", "items": {"type": "string", "contentEncoding": "base64"}},
        "name": {"type": "string"},
    }
}


@pytest.mark.parametrize(
    ("key", "better"),
    [("photo", "photo@oak.png"), ("untyped", "untyped@oak.png"), ("photos", "'photos[]@oak.png'"), ("name", None)],
)
def test_a_file_name_as_the_text_of_a_binary_field_is_noted(
    key: str,
    better: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = ["oak.png"] if key == "photos" else "oak.png"
    assert read_input([f"{key}=oak.png"], BINARY) == {key: text}
    assert capsys.readouterr().err == ""  # no such file
    Path("oak.png").write_bytes(b"green")
    assert read_input([f"{key}=oak.png"], BINARY) == {key: text}
    note = f"note: {key} is set to the text oak.png; write {better} to send the content of the file with this name\n"
    assert capsys.readouterr().err == ("" if better is None else note)
