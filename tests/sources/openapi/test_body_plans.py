"""Bodies of several media types in one flat input, and properties of one direction."""

from __future__ import annotations

from typing import Any

import pytest

from operations import ErrorCode, OperationContext, OperationRegistry
from operations.sources.openapi import APIOperations, HTTPCallOptions, HTTPServiceConfig, from_openapi
from operations.testing import error_of

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
OCTETS = "application/octet-stream"
TEXT = {"type": "string"}
BINARY = {"type": "string", "format": "binary"}
SET_BY_SERVER = {"type": "integer", "readOnly": True}


def shape(*required: str, **members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(required)}


def load(content: dict[str, Any], *, version: str = "3.1.0", **config: Any) -> APIOperations:
    described = {kind: {"schema": schema} for kind, schema in content.items()}
    document = {
        "openapi": version,
        "info": {"title": "t", "version": "1"},
        "components": config.pop("components", {}),
        "paths": {
            "/things/{id}": {
                "post": {
                    "operationId": "send",
                    "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
                    "requestBody": {"required": True, "content": described},
                    "responses": config.pop("responses", {}),
                }
            }
        },
    }
    return from_openapi(document, HTTPServiceConfig(namespace="api", base_url="http://api.test", **config))


async def sent(operations: APIOperations, input: dict[str, Any], content_type: str | None = None) -> tuple[str, bytes]:
    options = HTTPCallOptions(dry_run=True, content_type=content_type)
    context = OperationContext(metadata={"http": options})
    data = (await OperationRegistry(operations).execute("api.send", {"id": 1, **input}, context)).data
    assert isinstance(data["body"], bytes)
    return dict(data["headers"])["Content-Type"].partition(";")[0], data["body"]


def schema_of(operations: APIOperations) -> Any:
    return operations[0].spec.input_schema.document


TWO = {
    JSON: shape("url", url=TEXT, note=TEXT),
    MULTIPART: shape("file", file=BINARY, note={"type": ["string", "null"]}),
}


async def test_media_types_with_other_members_are_one_flat_input() -> None:
    operations = load(TWO)
    schema = schema_of(operations)
    assert list(schema["properties"]) == ["id", "url", "note", "file"]
    assert schema["required"] == ["id"]
    assert schema["properties"]["note"] == {"anyOf": [TEXT, {"type": ["string", "null"]}]}
    assert await sent(operations, {"url": "u", "note": "n"}) == (JSON, b'{"url":"u","note":"n"}')
    kind, body = await sent(operations, {"file": b"\0content", "note": "n"})
    assert kind == MULTIPART
    assert b"\0content" in body
    assert b'name="note"' in body


async def test_the_given_properties_select_the_media_type() -> None:
    operations = load({JSON: shape("a", "b", a=TEXT, b=TEXT), FORM: shape("a", a=TEXT)})
    assert schema_of(operations)["required"] == ["id", "a"]
    assert (await sent(operations, {"a": "1", "b": "2"}))[0] == JSON
    # JSON would lack a member that it requires.
    assert await sent(operations, {"a": "1"}) == (FORM, b"a=1")


async def test_properties_of_two_media_types_select_the_best_match() -> None:
    kind, body = await sent(load(TWO), {"url": "u", "note": "n", "file": b"x"})
    assert kind == MULTIPART
    assert all(name in body for name in (b'"url"', b'"note"', b'"file"'))


async def test_a_call_can_choose_the_media_type() -> None:
    operations = load({JSON: shape(a=TEXT), FORM: shape(a=TEXT), MULTIPART: shape(a=TEXT)})
    assert (await sent(operations, {"a": "1"}))[0] == JSON
    assert await sent(operations, {"a": "1"}, FORM) == (FORM, b"a=1")
    assert (await sent(operations, {"a": "1"}, MULTIPART))[0] == MULTIPART
    error = await error_of(sent(operations, {"a": "1"}, "text/csv"))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert "expected one of application/json" in error.message


async def test_the_configuration_can_set_the_preferred_media_type() -> None:
    content = {JSON: shape(a=TEXT), FORM: shape(a=TEXT)}
    operations = load(content, content_types=["text/csv", FORM])
    assert await sent(operations, {"a": "1"}) == (FORM, b"a=1")
    assert (await sent(operations, {"a": "1"}, JSON))[0] == JSON


async def test_a_file_is_sent_as_multipart_if_json_has_the_same_schema() -> None:
    content = {JSON: shape(data=BINARY), MULTIPART: shape(data=BINARY)}
    assert (await sent(load(content), {"data": b"\xff"}))[0] == MULTIPART
    assert (await sent(load(content), {"data": "text"}))[0] == JSON


async def test_an_object_or_bytes_are_passed_whole() -> None:
    operations = load({JSON: shape(a=TEXT), OCTETS: BINARY})
    assert list(schema_of(operations)["properties"]) == ["id", "body"]
    assert await sent(operations, {"body": {"a": "1"}}) == (JSON, b'{"a":"1"}')
    assert await sent(operations, {"body": b"\xff"}) == (OCTETS, b"\xff")
    error = await error_of(sent(operations, {"body": 3}))
    assert error.code is ErrorCode.VALIDATION_ERROR


EITHER = {**shape(url=TEXT, note=TEXT), "anyOf": [{"required": ["url"]}, {"required": ["note"]}]}


@pytest.mark.parametrize(
    ("content", "body", "expected"),
    [
        ({JSON: EITHER, MULTIPART: shape(file=BINARY)}, {}, MULTIPART),
        ({JSON: EITHER, MULTIPART: shape(file=BINARY)}, {"url": "u"}, JSON),
        ({JSON: EITHER, MULTIPART: shape(file=BINARY)}, {"file": b"x"}, MULTIPART),
        ({JSON: {"oneOf": [shape("a", a=TEXT)]}, FORM: shape(a={"type": "integer"})}, {"a": 1}, FORM),
        ({JSON: {"type": "array"}, "application/merge-patch+json": True}, {"a": 1}, "application/merge-patch+json"),
        ({JSON: {"$ref": "#/components/schemas/Either"}, FORM: shape(a=TEXT)}, {"a": "1"}, FORM),
        ({JSON: {"oneOf": [shape("id", id=SET_BY_SERVER)]}, FORM: shape("a", a=TEXT)}, {}, JSON),
    ],
)
async def test_a_whole_body_has_the_first_media_type_that_accepts_it(content: Any, body: Any, expected: str) -> None:
    operations = load(content, components={"schemas": {"Either": EITHER}})
    assert list(schema_of(operations)["properties"]) == ["id", "body"]
    assert (await sent(operations, {"body": body}))[0] == expected


async def test_types_of_given_properties_select_the_media_type() -> None:
    operations = load({JSON: shape(count={"type": "integer"}), FORM: shape(count={"enum": ["all"]})})
    assert await sent(operations, {"count": 3}) == (JSON, b'{"count":3}')
    assert await sent(operations, {"count": "all"}) == (FORM, b"count=all")
    assert (await sent(operations, {"count": "all"}, JSON))[0] == JSON


async def test_equal_schemas_of_two_media_types_are_one_input() -> None:
    thing = shape("a", a=TEXT)
    operations = load({"application/xml": thing, JSON: thing, "text/plain": None})
    assert list(schema_of(operations)["properties"]) == ["id", "a"]
    assert schema_of(operations)["required"] == ["id", "a"]


async def test_text_of_a_binary_part_is_a_file() -> None:
    reference = {"$ref": "#/components/schemas/File"}
    for schema in (BINARY, reference):
        operations = load({MULTIPART: shape("file", file=schema)}, components={"schemas": {"File": BINARY}})
        assert b'name="file"; filename="file"' in (await sent(operations, {"file": "text"}))[1]
    operations = load({MULTIPART: shape(files={"type": "array", "items": BINARY}, name=TEXT)})
    body = (await sent(operations, {"files": ["a", "b"], "name": "n"}))[1]
    assert body.count(b'name="files"; filename="files"') == 2
    assert b'name="name"\r\n' in body


DEEP = {
    "Id": SET_BY_SERVER,
    "Base": shape("id", "kind", id={"$ref": "#/components/schemas/Id"}, kind=TEXT),
    "Tree": {
        "allOf": [{"$ref": "#/components/schemas/Base"}],
        "properties": {"leaves": {"type": "array", "items": {"$ref": "#/components/schemas/Tree"}}},
        "required": ["id", "leaves"],
    },
}


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
async def test_read_only_properties_are_never_required(version: str) -> None:
    tree = {"$ref": "#/components/schemas/Tree"}
    members = {
        "tree": tree,
        "either": {"oneOf": [shape("id", "a", id=SET_BY_SERVER, a=TEXT), TEXT]},
        "branch": {"type": "object", "properties": {"id": SET_BY_SERVER}, "anyOf": [{"required": ["id"]}]},
        "joined": {"type": "object", "properties": {"id": {"allOf": [SET_BY_SERVER]}}, "required": ["id"]},
        "each": {"type": "object", "additionalProperties": shape("id", id=SET_BY_SERVER)},
    }
    operations = load({JSON: shape(*members, **members)}, version=version, components={"schemas": DEEP})
    inner = {"kind": "k", "leaves": []}
    given = {
        "tree": {"kind": "k", "leaves": [inner]},
        "either": {"a": "1"},
        "branch": {},
        "joined": {},
        "each": {"x": {}},
    }
    assert (await sent(operations, given))[0] == JSON
    error = await error_of(sent(operations, {**given, "tree": {"kind": "k", "leaves": [{"leaves": []}]}}))
    assert "kind" in str(error.details)


async def test_a_body_of_read_only_properties_requires_nothing() -> None:
    operations = load({JSON: shape("id", id=SET_BY_SERVER)})
    assert list(schema_of(operations)["properties"]) == ["id"]
    assert await sent(operations, {}) == (JSON, b"{}")


async def test_a_parameter_is_required_independent_of_its_schema() -> None:
    document = {
        "openapi": "3.0.3",
        "info": {"title": "t", "version": "1"},
        "components": {"schemas": {"Id": SET_BY_SERVER}},
        "paths": {
            "/things/{id}": {
                "get": {
                    "operationId": "get",
                    "parameters": [
                        {"name": "id", "in": "path", "required": True, "schema": {"$ref": "#/components/schemas/Id"}}
                    ],
                }
            }
        },
    }
    [operation] = from_openapi(document, HTTPServiceConfig(namespace="api"))
    assert operation.spec.input_schema.document["required"] == ["id"]  # type: ignore[index]


async def test_write_only_properties_are_not_required_in_responses() -> None:
    secret = {"type": "string", "writeOnly": True}
    user = shape("name", "password", name=TEXT, password=secret, keys={"type": "array", "items": shape("s", s=secret)})
    responses = {"200": {"description": "", "content": {JSON: {"schema": {"$ref": "#/components/schemas/User"}}}}}
    operations = load({JSON: user}, components={"schemas": {"User": user}}, responses=responses)
    output = operations[0].spec.output_schema
    assert output.check({"name": "a", "keys": [{}]})
    assert not output.check({"keys": [{}]})
    assert schema_of(operations)["required"] == ["id", "name", "password"]


async def test_not_schemas_apply_to_read_only_properties() -> None:
    thing = {**shape("id", id=SET_BY_SERVER, a=TEXT), "not": shape("id", id=SET_BY_SERVER)}
    operations = load({JSON: shape("thing", thing=thing)})
    assert await sent(operations, {"thing": {"a": "1"}}) == (JSON, b'{"thing":{"a":"1"}}')
    assert (await error_of(sent(operations, {"thing": {"id": 1}}))).code is ErrorCode.VALIDATION_ERROR


async def test_a_list_as_a_form_has_its_indexes_for_names() -> None:
    things = {"type": "array", "items": {"type": "string"}}
    assert await sent(load({FORM: things}), {"body": ["a", "b"]}) == (FORM, b"0=a&1=b")
