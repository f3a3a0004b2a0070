"""Parsed descriptions: inputs, bodies, responses, servers."""

from __future__ import annotations

from typing import Any

import pytest

from operations import OperationContext, OperationRegistry
from operations.sources.openapi import APIOperations, HTTPCallOptions, HTTPServiceConfig, from_openapi

INFO = {"title": "t", "version": "1"}
DRY = OperationContext(metadata={"http": HTTPCallOptions(dry_run=True)})
PET = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]}


def load(operation: dict[str, Any], path: str = "/pets", method: str = "post", **document: Any) -> APIOperations:
    whole = {"openapi": "3.0.3", "info": INFO, "servers": [{"url": "http://api.test"}], **document}
    return from_openapi({**whole, "paths": {path: {method: operation}}}, HTTPServiceConfig(namespace="api"))


async def request(operations: APIOperations, input: Any) -> Any:
    registry = OperationRegistry(operations)
    return (await registry.execute(operations[0].id, input, DRY)).data


def properties(operations: APIOperations) -> dict[str, Any]:
    document = operations[0].spec.input_schema.document
    assert isinstance(document, dict)
    found: dict[str, Any] = document["properties"]
    return found


def body(schema: Any, media: str = "application/json", **more: Any) -> dict[str, Any]:
    return {"requestBody": {"content": {media: {"schema": schema, **more}}}}


async def test_an_objects_members_are_the_inputs() -> None:
    operations = load(body(PET))
    assert list(properties(operations)) == ["name", "age"]
    assert (await request(operations, {"name": "a"}))["body"] == b'{"name":"a"}'
    assert (await request(operations, {}))["body"] is None


async def test_a_required_body_requires_its_members() -> None:
    description = body(PET)
    description["requestBody"]["required"] = True
    operations = load(description)
    assert operations[0].spec.input_schema.document["required"] == ["name"]  # type: ignore[index]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}},
        {"type": "string"},
        {"oneOf": [PET, {"type": "string"}]},
        {**PET, "additionalProperties": True},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {},
    ],
)
async def test_any_other_body_is_passed_whole(schema: Any) -> None:
    assert list(properties(load(body(schema)))) == ["body"]


async def test_members_joined_by_all_of_are_taken_apart() -> None:
    more = {"type": "object", "properties": {"tag": {"type": "string"}}}
    operations = load(
        body({"allOf": [{"$ref": "#/components/schemas/Pet"}, more]}), components={"schemas": {"Pet": PET}}
    )
    assert set(properties(operations)) == {"name", "age", "tag"}


async def test_a_body_with_colliding_names_is_passed_whole() -> None:
    parameters = [
        {"name": "name", "in": "query", "schema": {}},
        {"name": "body", "in": "header", "schema": {"type": "string"}},
    ]
    operations = load({**body(PET), "parameters": parameters})
    assert set(properties(operations)) == {"name", "body", "body_"}
    sent = await request(operations, {"name": "q", "body": "h", "body_": {"name": "b"}})
    assert sent["url"].endswith("?name=q")
    assert ["body", "h"] in sent["headers"]
    assert sent["body"] == b'{"name":"b"}'


async def test_read_only_properties_are_not_required() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer", "readOnly": True}, "n": {}},
        "required": ["id", "n"],
    }
    operations = load(body(schema))
    assert list(properties(operations)) == ["n"]


async def test_json_is_preferred_and_another_type_can_be_asked_for() -> None:
    content = {
        "application/xml": {"schema": PET},
        "application/x-www-form-urlencoded": {"schema": PET},
        "application/json": {"schema": PET},
    }
    operations = load({"requestBody": {"content": content}})
    assert (await request(operations, {"name": "a"}))["body"] == b'{"name":"a"}'
    registry = OperationRegistry(operations)
    options = HTTPCallOptions(dry_run=True, content_type="application/x-www-form-urlencoded")
    sent = (
        await registry.execute(operations[0].id, {"name": "a b"}, OperationContext(metadata={"http": options}))
    ).data
    assert sent["body"] in (b"name=a+b", b"name=a%20b")
    assert ["Content-Type", "application/x-www-form-urlencoded"] in sent["headers"]


async def test_text_and_binary_bodies_are_sent_as_they_are() -> None:
    assert (await request(load(body({"type": "string"}, "text/plain")), {"body": "grün"}))["body"] == "grün".encode()
    operations = load(body({"type": "string", "format": "binary"}, "application/octet-stream"))
    assert (await request(operations, {"body": b"\x00\xff"}))["body"] == b"\x00\xff"


async def test_xml_is_given_as_text() -> None:
    operations = load(body(PET, "text/xml"))
    assert properties(operations)["body"] == {"type": "string", "contentMediaType": "text/xml"}
    assert (await request(operations, {"body": "<a/>"}))["body"] == b"<a/>"


async def test_undeclared_and_unused_path_parameters() -> None:
    parameters = [{"name": "other", "in": "path", "schema": {"type": "string"}}]
    operations = load({"parameters": parameters}, "/a/{id}.json", "get")
    assert list(properties(operations)) == ["id"]
    assert (await request(operations, {"id": "x y"}))["url"] == "http://api.test/a/x%20y.json"
    assert len(operations.diagnostics()["api.get_a_id_json"]) == 2


async def test_an_empty_path_parameter_does_not_match_the_schema() -> None:
    operations = load({}, "/a/{id}", "delete")
    assert not operations[0].spec.input_schema.check({"id": ""})


async def test_fragments_and_queries_of_a_path_are_distinguished() -> None:
    operations = load({"parameters": [{"name": "q", "in": "query", "schema": {}}]}, "/a?mode=1#copy", "get")
    assert (await request(operations, {"q": "x"}))["url"] == "http://api.test/a?mode=1&q=x"


@pytest.mark.parametrize(
    ("servers", "config", "expected"),
    [
        (
            [{"url": "https://{env}.test/{v}/", "variables": {"env": {"default": "prod"}, "v": {"default": "1"}}}],
            {},
            "https://prod.test/1/pets",
        ),
        (
            [{"url": "https://{env}.test", "variables": {"env": {"default": "prod"}}}],
            {"server_variables": {"env": "dev"}},
            "https://dev.test/pets",
        ),
        ([{"url": "https://a.test"}], {"base_url": "http://other.test/x/"}, "http://other.test/x/pets"),
    ],
)
async def test_servers_and_their_variables(servers: Any, config: Any, expected: str) -> None:
    document = {"openapi": "3.0.3", "info": INFO, "servers": servers, "paths": {"/pets": {"get": {}}}}
    operations = from_openapi(document, HTTPServiceConfig(namespace="api", **config))
    assert (await request(operations, {}))["url"] == expected


async def test_an_operations_own_server_goes_first() -> None:
    operations = load({"servers": [{"url": "http://own.test"}]}, method="get")
    assert (await request(operations, {}))["url"] == "http://own.test/pets"


async def test_a_missing_server_is_reported_at_the_call() -> None:
    operations = load({}, method="get", servers=[])
    with pytest.raises(Exception, match="set base_url"):
        await request(operations, {})


@pytest.mark.parametrize(
    ("responses", "value", "fits"),
    [
        ({"200": PET, "201": {"type": "string"}}, {"name": "a"}, True),
        ({"201": PET, "204": None}, {"name": 1}, False),
        ({"2XX": PET}, {"name": 1}, False),
        ({"default": PET}, {"name": 1}, False),
        ({"404": PET}, {"name": 1}, True),
        ({}, 5, True),
    ],
)
def test_the_output_schema_is_that_of_the_most_specific_response(responses: Any, value: Any, fits: bool) -> None:
    described = {
        status: {"description": "", **({"content": {"application/json": {"schema": schema}}} if schema else {})}
        for status, schema in responses.items()
    }
    assert load({"responses": described})[0].spec.output_schema.check(value) is fits


def swagger(operation: dict[str, Any], **document: Any) -> APIOperations:
    whole = {
        "swagger": "2.0",
        "info": INFO,
        "host": "api.test",
        "basePath": "/v1",
        "schemes": ["http", "https"],
        **document,
    }
    return from_openapi({**whole, "paths": {"/pets": {"post": operation}}}, HTTPServiceConfig(namespace="api"))


async def test_swagger_parameters_and_bodies() -> None:
    parameters = [
        {"name": "ids", "in": "query", "type": "array", "items": {"type": "integer"}, "collectionFormat": "pipes"},
        {"name": "tags", "in": "query", "type": "array", "items": {"type": "string"}},
        {"name": "pet", "in": "body", "required": True, "schema": {"$ref": "#/definitions/Pet"}},
    ]
    response = {"200": {"description": "", "schema": {"$ref": "#/definitions/Pet"}}}
    operations = swagger({"parameters": parameters, "responses": response}, definitions={"Pet": PET})
    sent = await request(operations, {"ids": [1, 2], "tags": ["a", "b"], "name": "n"})
    assert sent["url"] in ("https://api.test/v1/pets?ids=1%7C2&tags=a,b", "https://api.test/v1/pets?ids=1|2&tags=a,b")
    assert sent["body"] == b'{"name":"n"}'
    assert not operations[0].spec.output_schema.check({"name": 5})
    assert not operations[0].spec.input_schema.check({"ids": ["x"], "name": "n"})


async def test_swagger_forms_and_files() -> None:
    fields = [
        {"name": "note", "in": "formData", "type": "string", "required": True, "description": "say"},
        {"name": "tags", "in": "formData", "type": "array", "items": {"type": "string"}, "collectionFormat": "multi"},
    ]
    sent = await request(swagger({"parameters": fields}), {"note": "a b", "tags": ["x", "y"]})
    assert sent["body"] in (b"note=a+b&tags=x&tags=y", b"note=a%20b&tags=x&tags=y")
    uploads = swagger({"parameters": [*fields, {"name": "photo", "in": "formData", "type": "file"}]})
    sent = await request(uploads, {"note": "n", "photo": b"\xff\x00"})
    assert next(value for name, value in sent["headers"] if name == "Content-Type").startswith("multipart/form-data")
    assert b"\xff\x00" in sent["body"]


async def test_nullable_and_exclusive_bounds_of_older_documents() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "nullable": True, "minimum": 0, "exclusiveMinimum": True}},
    }
    schema_of_input = load(body(schema))[0].spec.input_schema
    assert schema_of_input.check({"n": None})
    assert schema_of_input.check({"n": 1})
    assert not schema_of_input.check({"n": 0})
