"""Findings of a mock server that validates requests, with real documents: one test for each, F1 to F7."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from operations import ErrorCode, OperationContext, OperationRegistry, from_schema
from operations.sources.openapi import APIOperations, HTTPAuth, HTTPCallOptions, HTTPServiceConfig, from_openapi
from operations.testing import error_of
from tests.sources.openapi.answers import PreparedClient

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}


def load(description: dict[str, Any], *, document: dict[str, Any] | None = None, **config: Any) -> APIOperations:
    whole = {
        "openapi": "3.0.3",
        "info": {"title": "t", "version": "1"},
        "paths": {"/things": {"post": {"operationId": "send", **description}}},
        **(document or {}),
    }
    return from_openapi(whole, {"namespace": "api", "base_url": "http://api.test", **config})


def with_body(schema: Any, kind: str = JSON, *, required: bool = True, **media: Any) -> dict[str, Any]:
    return {"requestBody": {"required": required, "content": {kind: {"schema": schema, **media}}}}


async def request(operations: APIOperations, input: dict[str, Any], **config: Any) -> dict[str, Any]:
    context = OperationContext(metadata={"http": HTTPCallOptions(dry_run=True)})
    data: dict[str, Any] = (await OperationRegistry(operations).execute("api.send", input, context)).data
    return data


async def refusal(operations: APIOperations, input: dict[str, Any]) -> str:
    error = await error_of(request(operations, input))
    assert error.code is ErrorCode.VALIDATION_ERROR
    return error.message


PERSON = {"type": "object", "properties": {"name": TEXT, "age": {"type": "integer"}}, "required": ["name"]}


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
async def test_f1_an_optional_body_is_whole_or_not_sent(version: str) -> None:
    operations = load(with_body(PERSON, required=False), document={"openapi": version})
    assert (await request(operations, {}))["body"] is None
    assert (await request(operations, {"name": "Ada"}))["body"] == b'{"name":"Ada"}'
    assert "name" in await refusal(operations, {"age": 36})
    assert "name" in await refusal(operations, {"nick": "A"})


async def test_a_body_of_several_media_types_meets_the_requirements_of_one() -> None:
    kinds = {
        JSON: {
            "schema": {"type": "object", "properties": {"prompt": TEXT, "url": TEXT}, "required": ["prompt", "url"]}
        },
        MULTIPART: {
            "schema": {"type": "object", "properties": {"prompt": TEXT, "file": {}}, "required": ["prompt", "file"]}
        },
    }
    operations = load({"requestBody": {"required": True, "content": kinds}})
    assert await refusal(operations, {"prompt": "a"})
    assert "prompt" in await refusal(operations, {"url": "a"})
    assert dict((await request(operations, {"prompt": "a", "url": "b"}))["headers"])["Content-Type"] == JSON
    sent = await request(operations, {"prompt": "a", "file": b"b"})
    assert dict(sent["headers"])["Content-Type"].startswith(MULTIPART)


PLACES = [("query", {}), ("header", {}), ("cookie", {}), ("query", {"style": "deepObject"})]


@pytest.mark.parametrize(("place", "style"), PLACES)
@pytest.mark.parametrize("reference", [False, True])
async def test_f2_a_required_parameter_is_not_empty(place: str, style: dict[str, Any], reference: bool) -> None:
    schema: Any = {"type": "object", "additionalProperties": TEXT} if style else TEXTS
    shown = {"$ref": "#/components/schemas/Tags"} if reference else schema
    parameter = {"name": "tags", "in": place, "required": True, "schema": shown, **style}
    operations = load({"parameters": [parameter]}, document={"components": {"schemas": {"Tags": schema}}})
    assert "/tags" in await refusal(operations, {"tags": {} if style else []})
    await request(operations, {"tags": {"a": "b"} if style else ["a"]})


async def test_f2_an_empty_value_is_sent_where_the_document_allows_it() -> None:
    tags = {"name": "tags", "in": "query", "required": True, "schema": TEXTS}
    allowed = load({"parameters": [{**tags, "allowEmptyValue": True}]})
    assert (await request(allowed, {"tags": []}))["url"].endswith("?tags=")
    as_json = {"name": "tags", "in": "query", "required": True, "content": {JSON: {"schema": TEXTS}}}
    assert (await request(load({"parameters": [as_json]}), {"tags": []}))["url"].endswith("?tags=%5B%5D")


@pytest.mark.parametrize("kind", [FORM, MULTIPART])
async def test_f2_a_required_array_of_a_form_is_not_empty(kind: str) -> None:
    schema = {"type": "object", "properties": {"tags": TEXTS}, "required": ["tags"]}
    assert "/tags" in await refusal(load(with_body(schema, kind)), {"tags": []})
    as_json = load(with_body(schema, kind, encoding={"tags": {"contentType": JSON}}))
    assert (await request(as_json, {"tags": []}))["body"] is not None
    assert (await request(load(with_body(schema)), {"tags": []}))["body"] == b'{"tags":[]}'


@pytest.mark.parametrize("place", ["query", "cookie", "header"])
async def test_f3_credentials_replace_a_parameter_of_the_same_name(place: str) -> None:
    key = {"type": "apiKey", "in": place, "name": "api_key"}
    document = {
        "openapi": "3.0.3",
        "info": {"title": "t", "version": "1"},
        "components": {"securitySchemes": {"one": key, "two": key}},
        "paths": {
            "/things": {
                "get": {
                    "operationId": "send",
                    "security": [{"one": [], "two": []}],
                    "parameters": [
                        {"name": "api_key", "in": place, "required": True, "schema": TEXT},
                        {"name": "q", "in": place, "schema": TEXT},
                    ],
                }
            }
        },
    }
    auth = dict.fromkeys(("one", "two"), HTTPAuth(type="api_key", token="KEY"))
    client = PreparedClient()
    base_url = f"http://api.test{'/?api_key=abc' if place == 'query' else ''}"
    config = HTTPServiceConfig(namespace="api", base_url=base_url, auth=auth, client=client)
    registry = OperationRegistry(from_openapi(document, config))
    for input in ({"q": "1"}, {"q": "1", "api_key": "mine"}):
        await registry.execute("api.send", input)
    for sent in client.requests:
        headers = {name.lower(): value for name, value in sent.headers}
        if place == "query":
            assert sent.url.partition("?")[2] == "q=1&api_key=KEY"
        elif place == "cookie":
            assert headers["cookie"] == "q=1; api_key=KEY"
        else:
            assert [value for name, value in sent.headers if name.lower() == "api_key"] == ["KEY"]


async def test_f3_without_credentials_the_parameter_is_required() -> None:
    parameter = {"name": "api_key", "in": "query", "required": True, "schema": TEXT}
    assert "api_key" in await refusal(load({"parameters": [parameter]}), {})


@pytest.mark.parametrize("closed", [{}, {"additionalProperties": False}])
async def test_f4_a_required_member_without_a_description_can_be_given(closed: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"name": TEXT}, "required": ["name", "kind"], **closed}
    operations = load(with_body(schema))
    assert (await request(operations, {"name": "a", "kind": 1}))["body"] == b'{"name":"a","kind":1}'
    assert "kind" in await refusal(operations, {"name": "a"})
    assert any("'kind' of the body is not described" in note for note in operations.diagnostics()["api.send"])


async def test_f4_a_member_that_another_part_describes_needs_no_note() -> None:
    parts = {"allOf": [{"type": "object", "required": ["name"]}, {"type": "object", "properties": {"name": TEXT}}]}
    assert load(with_body(parts)).diagnostics() == {}


@pytest.mark.parametrize("kind", ["", "json"])
async def test_f5_an_invalid_media_type_counts_as_json(kind: str) -> None:
    operations = load(with_body(PERSON, kind))
    sent = await request(operations, {"name": "Ada"})
    assert (sent["body"], dict(sent["headers"])["Content-Type"]) == (b'{"name":"Ada"}', JSON)
    assert any("invalid media type" in note for note in operations.diagnostics()["api.send"])


@pytest.mark.parametrize("kinds", [("", JSON), (JSON, "")])
async def test_an_invalid_media_type_does_not_hide_the_declared_json(kinds: tuple[str, str]) -> None:
    other = {"type": "object", "properties": {"other": TEXT}, "required": ["other"]}
    content = {kind: {"schema": PERSON if kind else other} for kind in kinds}
    operations = load(
        {"requestBody": {"required": True, "content": content}, "responses": {"200": {"content": content}}}
    )
    assert (await request(operations, {"name": "Ada"}))["body"] == b'{"name":"Ada"}'
    [operation] = operations
    assert not operation.spec.output_schema.check({"other": "a"})
    assert operation.spec.output_schema.check({"name": "Ada"})
    assert "200: invalid media type '': ignored" in operations.diagnostics()["api.send"]


def members(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "integer"} for name in names} | more}


RICH, POOR = members("a", "b", "c", size={"type": "integer"}), members("a", "b")
RICH = {**RICH, "required": ["size"]}


@pytest.mark.parametrize("policy", ["cast", "total"])
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_f6_a_union_keeps_the_branch_that_loses_least(keyword: str, policy: Any) -> None:
    schema = from_schema({keyword: [POOR, RICH]})
    # With the number it would match both branches, which `oneOf` does not allow.
    size: Any = 4 if keyword == "anyOf" else "4"
    assert schema.cast({"a": 1, "b": 2, "c": 3, "size": "4"}, policy) == {"a": 1, "b": 2, "c": 3, "size": size}
    kept = {"a": 1, "b": 2, "c": 3, "size": "large"}
    assert schema.cast(kept, policy) == kept
    assert schema.cast(schema.cast(kept, policy), policy) == kept


def test_f6_a_branch_with_another_literal_is_not_taken() -> None:
    schema = from_schema(
        {"anyOf": [members("x", kind={"const": "small"}), members("x", "y", "z", kind={"const": "large"})]}
    )
    assert schema.cast({"kind": "small", "x": 1, "y": 2, "z": 3}) == {"kind": "small", "x": 1}


@pytest.mark.parametrize(
    ("version", "described"),
    [
        ({"swagger": "2.0", "produces": [JSON]}, {"schema": {"type": "file"}}),
        ({"openapi": "3.0.3"}, {"content": {JSON: {"schema": {"type": "string", "format": "binary"}}}}),
    ],
)
async def test_f7_a_file_in_json_is_not_a_mismatch(
    version: dict[str, Any], described: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    document = {
        **version,
        "info": {"title": "t", "version": "1"},
        "paths": {"/export": {"get": {"operationId": "send", "responses": {"200": described}}}},
    }
    client = PreparedClient(b'{"rows": [1]}')
    operations = from_openapi(document, {"namespace": "api", "base_url": "http://api.test", "client": client})
    envelope = await OperationRegistry(operations).execute("api.send")
    assert envelope.data == {"rows": [1]}
    assert caplog.text == ""


async def test_removed_properties_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    listed = {"type": "array", "items": members("id")}
    described = {"responses": {"200": {"content": {JSON: {"schema": listed}}}}}
    client = PreparedClient(b'[{"id": 1, "etag": "a"}, {"id": 2, "etag": "b"}]')
    registry = OperationRegistry(load(described, client=client))
    with caplog.at_level(logging.INFO, "operations"):
        for _ in range(3):
            assert (await registry.execute("api.send")).data == [{"id": 1}, {"id": 2}]
    assert registry.mismatches.removed() == {("api.send", "/*/etag"): 6}
    removed = [measure for measure in registry.measures() if measure.name == "operations_result_removed_total"]
    assert [(measure.value, measure.labels) for measure in removed] == [(6, {"operation": "api.send"})]
    assert [record.getMessage() for record in caplog.records if "removed" in record.getMessage()] == [
        "api.send: removed /*/etag from the result: the output schema does not declare it"
    ]


async def test_a_scalar_is_sent_as_text() -> None:
    operations = load(with_body({"type": "boolean"}, "text/plain"))
    assert (await request(operations, {"body": True}))["body"] == b"true"
    assert "/body" in await refusal(operations, {"body": "yes"})


async def test_a_required_member_of_a_form_is_not_null() -> None:
    schema = {"type": "object", "properties": {"name": TEXT}, "required": ["name", "kind"]}
    assert "/kind" in await refusal(load(with_body(schema, FORM)), {"name": "a", "kind": None})


async def test_swagger_may_declare_the_content_type_as_a_parameter() -> None:
    document = {
        "swagger": "2.0",
        "info": {"title": "t", "version": "1"},
        "consumes": ["application/octet-stream"],
        "paths": {
            "/build": {
                "post": {
                    "operationId": "send",
                    "parameters": [
                        {"name": "input", "in": "body", "schema": {"type": "string", "format": "binary"}},
                        {"name": "Content-type", "in": "header", "type": "string", "enum": ["application/x-tar"]},
                    ],
                }
            }
        },
    }
    operations = from_openapi(document, {"namespace": "api", "base_url": "http://api.test"})
    for given, kind in (({}, "application/octet-stream"), ({"Content-type": "application/x-tar"}, "application/x-tar")):
        sent = await request(operations, {"body": b"x", **given})
        assert [value for name, value in sent["headers"] if name.lower() == "content-type"] == [kind]


async def test_a_member_that_two_parts_describe_matches_both() -> None:
    described = {"type": "object", "properties": {"from": {"type": "object", "properties": {"email": TEXT}}}}
    required = {"type": "object", "properties": {"from": {"type": "object", "required": ["email"]}}}
    operations = load(with_body({"allOf": [described, required]}))
    assert (await request(operations, {"from": {"email": "a"}}))["body"] == b'{"from":{"email":"a"}}'
    assert "/from/email" in await refusal(operations, {"from": {"email": 5}})
    assert "/from" in await refusal(operations, {"from": {}})


async def test_a_reference_in_place_of_all_properties_is_followed() -> None:
    ids = {"droplet_ids": {"type": "array", "items": {"type": "integer"}}}
    body = with_body({"type": "object", "properties": {"$ref": "#/components/x-ids"}, "required": ["droplet_ids"]})
    operations = load(body, document={"components": {"x-ids": ids}})
    assert (await request(operations, {"droplet_ids": [1]}))["body"] == b'{"droplet_ids":[1]}'
    assert "/droplet_ids" in await refusal(operations, {"droplet_ids": None})
    assert operations.diagnostics() == {}
