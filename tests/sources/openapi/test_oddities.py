"""Mistakes of published documents, whose operations can be called anyway."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from operations import CallError, Operation, OperationContext, OperationRegistry
from operations.sources.openapi import (
    HTTPCallOptions,
    HTTPServiceConfig,
    from_openapi,
    from_openapi_file,
)

DRY = OperationContext(metadata={"http": HTTPCallOptions(dry_run=True)})
CONFIG = HTTPServiceConfig(namespace="api", base_url="http://api.test")
OPENING = 'openapi: 3.0.0\ninfo: {title: t, version: "1"}\n'


def document(operation: Any, path: str = "/a", **more: Any) -> dict[str, Any]:
    return {"openapi": "3.0.0", "info": {"title": "t", "version": "1"}, "paths": {path: {"post": operation}}, **more}


async def sent(operations: Sequence[Operation[Any]], input: Any = None) -> Any:
    """The request of the first operation, from a generated input unless one is given."""
    operation = operations[0]
    input = operation.spec.input_schema.cast({}, "total") if input is None else input
    return (await OperationRegistry(operations).execute(operation.id, input, DRY)).data


def query(**schema: Any) -> dict[str, Any]:
    return {"parameters": [{"name": "q", "in": "query", "required": True, "schema": schema}]}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
@pytest.mark.parametrize("yaml", [False, True])
async def test_any_unicode_encoding_is_read_and_no_other_is_a_reason_to_fail(
    encoding: str, yaml: bool, tmp_path: Path
) -> None:
    described = {"summary": "café", "responses": {"200": {"content": {"text/event-stream": {}}}}}
    text = json.dumps(document(described), ensure_ascii=False)
    text = f"# a comment\n{text}" if yaml else text
    file = tmp_path / "document"
    file.write_bytes(text.encode(encoding))
    for operations in (from_openapi(text.encode(encoding), CONFIG), await from_openapi_file(file, CONFIG)):
        assert [operation.spec.name for operation in operations] == ["post_a"]
        assert operations[0].stream is not None  # the search for streams sees through the encoding too
        assert operations[0].spec.description == ("caf\ufffd" if encoding == "latin-1" else "café")


@pytest.mark.parametrize("number", ["-1e400", "1e999", "123456789012345678901234567890", "9" * 5000])
async def test_operations_with_numbers_out_of_range_are_kept(number: str) -> None:
    text = json.dumps(document(query(type="number", minimum="HERE"))).replace('"HERE"', number)
    assert (await sent(from_openapi(text, CONFIG), {"q": 10**30}))["url"].startswith("http://api.test/a?q=1")


@pytest.mark.parametrize("index", ["9" * 5000, "1", "x"])
async def test_a_reference_to_a_missing_item_breaks_only_its_operation(index: str) -> None:
    described = document({"parameters": [{"$ref": f"#/tags/{index}"}]}, tags=[{"name": "a"}])
    described["paths"]["/b"] = {"post": {}}
    broken, intact = from_openapi(described, CONFIG)
    with pytest.raises(CallError, match="unresolved reference #/tags/"):
        await OperationRegistry([broken]).execute(broken.id, {}, DRY)
    assert (await sent([intact]))["url"] == "http://api.test/b"


@pytest.mark.parametrize(
    "text",
    [
        "paths:\n  /a:\n    post:\n      summary:\tx\n      responses:\t{}\n",
        "paths:\n  /a:\n\t  post:\n\t    summary: x\n",
    ],
)
def test_tabs_in_yaml_are_read_as_spaces(text: str) -> None:
    operations = from_openapi(OPENING + text, CONFIG)
    assert [operation.spec.description for operation in operations] == ["x"]


async def test_an_operation_without_any_description() -> None:
    assert (await sent(from_openapi(OPENING + "paths:\n  /a:\n    post:\n", CONFIG)))["url"] == "http://api.test/a"


@pytest.mark.parametrize(
    ("path", "url"), [("a/b", "/a/b"), ("", "/"), ("/a/{}", "/a/%7B%7D"), ("/{x}/{}", "/%20/%7B%7D")]
)
async def test_unusual_paths(path: str, url: str) -> None:
    assert (await sent(from_openapi(document({}, path), CONFIG)))["url"] == f"http://api.test{url}"


@pytest.mark.parametrize("parameter", ["text", None, {"in": "query"}, {"name": "q"}, {"name": "", "in": "query"}])
async def test_parameters_without_a_name_or_location_are_skipped_and_reported(parameter: Any) -> None:
    operations = from_openapi(document({"parameters": [parameter]}), CONFIG)
    assert (await sent(operations))["url"] == "http://api.test/a"
    assert operations.diagnostics()["api.post_a"] == [
        "parameter at /paths/~1a/post/parameters/0 is skipped: missing name or location"
    ]


@pytest.mark.parametrize("schema", [None, {}, {"description": "any"}, {"$ref": "#/components/schemas/Version"}])
async def test_path_parameters_are_never_empty(schema: Any) -> None:
    parameter = {"name": "id", "in": "path", "required": True} | ({} if schema is None else {"schema": schema})
    version = {"type": "object", "properties": {"Major": {"type": "integer"}}, "additionalProperties": False}
    described = document({"parameters": [parameter]}, "/a/{id}", components={"schemas": {"Version": version}})
    url = (await sent(from_openapi(described, CONFIG)))["url"]
    assert url in ("http://api.test/a/%20", "http://api.test/a/Major,0")


@pytest.mark.parametrize(
    ("kind", "value"),
    [("String", ""), ("int", 0), ("Double", 0), ("bool", False), ("datetime", ""), ("file", ""), ("list", [])],
)
def test_types_of_other_languages_are_understood(kind: str, value: Any) -> None:
    operations = from_openapi(document(query(type=kind)), CONFIG)
    assert operations[0].spec.input_schema.cast({}, "total") == {"q": value}


async def test_a_swagger_parameter_with_its_schema_as_newer_documents_have_it() -> None:
    described = {"swagger": "2.0", "info": {}, "paths": {"/a": {"post": query(type="integer")}}}
    assert (await sent(from_openapi(described, CONFIG)))["url"] == "http://api.test/a?q=0"


def content(media_type: str, media: Any) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: media}}}


@pytest.mark.parametrize("media", [{}, {"schema": {"type": "string"}}, {"schema": {"$ref": "#/components/schemas/T"}}])
async def test_a_form_that_is_described_as_a_single_value_takes_any_fields(media: Any) -> None:
    components = {"schemas": {"T": {"type": "string"}}}
    operations = from_openapi(document(content("multipart/form-data", media), components=components), CONFIG)
    assert b'name="f"' in (await sent(operations, {"body": {"f": "x"}}))["body"]
    assert (await sent(operations))["headers"][-1][1].startswith("multipart/form-data")
    assert any("any fields are accepted" in note for note in operations.diagnostics()["api.post_a"])


async def test_lines_of_json_may_be_one() -> None:
    operations = from_openapi(document(content("application/x-ndjson", {"schema": {"type": "object"}})), CONFIG)
    assert (await sent(operations, {"body": {"a": 1}}))["body"] == b'{"a":1}\n'


async def test_media_types_may_be_references() -> None:
    media = {"schema": {"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"]}}
    described = document(content("application/json", {"$ref": "#/components/mediaTypes/J"}))
    operations = from_openapi({**described, "openapi": "3.2.0", "components": {"mediaTypes": {"J": media}}}, CONFIG)
    assert (await sent(operations))["body"] == b'{"k":0}'


@pytest.mark.parametrize(
    ("url", "variables", "expected"),
    [
        ("//cdn.test/x", None, "https://cdn.test/x/a"),
        ("https://{where}.test", {"where": {"enum": ["eu", "us"]}}, "https://eu.test/a"),
        ("https://api.test:{port}", None, "the document's server https://api.test:{port} has unset variables"),
        ("https://{host}/x", {"host": {}}, "the document's server https://{host}/x has unset variables"),
        ("http://[oops", None, "the document has no server"),
        ("https://", None, "the document has no server"),
    ],
)
async def test_incomplete_servers_are_completed_or_reported(url: str, variables: Any, expected: str) -> None:
    server = {"url": url} | ({} if variables is None else {"variables": variables})
    operations = from_openapi(document({}, servers=[server]), HTTPServiceConfig(namespace="api"))
    if expected.startswith("https"):
        assert (await sent(operations))["url"] == expected
    else:
        with pytest.raises(Exception, match=expected.replace("{", r"\{")):
            await sent(operations)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "/body has conflicting types: integer and string"),
        ({"$ref": "#/components/schemas/Endless"}, "requires itself: no finite value is valid"),
    ],
)
def test_unsatisfiable_inputs_are_reported(schema: Any, reason: str) -> None:
    endless = {
        "type": "object",
        "properties": {"next": {"$ref": "#/components/schemas/Endless"}},
        "required": ["next"],
    }
    described = document(content("application/json", {"schema": schema}), components={"schemas": {"Endless": endless}})
    (note,) = from_openapi(described, CONFIG).diagnostics()["api.post_a"]
    assert note.startswith("no input is valid: ")
    assert reason in note


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"type": "string"}, {"type": "string", "minLength": 1}]},
        {"allOf": [{"type": "integer"}, {"type": "number"}]},
        {"allOf": [{"type": "string", "nullable": True}, {"type": "integer", "nullable": True}]},
        {"$ref": "#/components/schemas/List"},
        {"$ref": "#/components/schemas/Nowhere"},
    ],
)
def test_no_note_for_a_satisfiable_input(schema: Any) -> None:
    chain = {
        "type": "object",
        "properties": {
            "next": {"$ref": "#/components/schemas/List", "nullable": True},
            "more": {"type": "array", "items": {"$ref": "#/components/schemas/List"}},
        },
        "required": ["more"],
    }
    described = document(content("application/json", {"schema": schema}), components={"schemas": {"List": chain}})
    notes = from_openapi(described, CONFIG).diagnostics().get("api.post_a", [])
    assert not any("no input is valid" in note for note in notes)


async def test_inputs_and_responses_are_repaired() -> None:
    described = document(
        {
            **query(type="integer", enum=["1", "2"]),
            "responses": {"200": {"content": {"application/json": {"schema": {"type": "string", "pattern": "/^a$/"}}}}},
        }
    )
    operations = from_openapi(described, CONFIG)
    assert (await sent(operations))["url"] == "http://api.test/a?q=1"
    assert operations[0].spec.output_schema.check("a")


def test_loading_restores_the_garbage_collector() -> None:
    assert gc.isenabled()
    frozen = gc.get_freeze_count()  # Python 3.12 starts with some
    from_openapi(document({}), CONFIG)
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        from_openapi(document({}), CONFIG)
        assert gc.get_freeze_count() > frozen / 2  # what a program has frozen stays so
    finally:
        gc.unfreeze()
    gc.disable()
    try:
        from_openapi(document({}), CONFIG)
        assert not gc.isenabled()
    finally:
        gc.enable()
