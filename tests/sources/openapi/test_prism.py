"""Documents of the public set against a mock server that checks each request against the same document."""

from __future__ import annotations

import asyncio
import os
import tarfile
from pathlib import Path

import pytest

from operations import CallError, HTTPResponseMeta, OperationRegistry
from operations.sources.openapi import HTTPAuth, HTTPServiceConfig, from_openapi_file
from tests.sources.openapi.inputs import fitting_input
from tests.sources.openapi.prism import prism, read_outcome
from tests.sources.openapi.prism_excuses import EXCUSES, Rejection, excuse_of

FOLDER = os.environ.get("OPERATIONS_TEST_DOCUMENTS")
DOCUMENTS = ["petstore.yaml", "museum.yaml", "readme-train-travel.yaml"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", DOCUMENTS)
async def test_every_operation_is_accepted_by_a_server_of_the_document(name: str, tmp_path: Path) -> None:
    if not FOLDER:
        pytest.skip("OPERATIONS_TEST_DOCUMENTS names no folder: the public documents are not here and were not run")
    with tarfile.open(Path(FOLDER) / "documents.tar.xz") as archive:
        archive.extract(f"specs/{name}", tmp_path, filter="data")
    document = tmp_path / "specs" / name
    refused: dict[str, object] = {}
    with prism(document) as mock:
        auth = {
            "petstore_auth": HTTPAuth(type="bearer", token="t"),
            "api_key": HTTPAuth(type="api_key", token="k"),
            "MuseumPlaceholderAuth": HTTPAuth(type="basic", username="u", password="p"),
            "OAuth2": HTTPAuth(type="bearer", token="t"),
        }
        operations = await from_openapi_file(
            document, HTTPServiceConfig(namespace="mock", base_url=mock.url, auth=auth)
        )
        registry = OperationRegistry(operations)
        for operation in operations:
            input = fitting_input(operation.spec.input_schema)
            try:
                async with asyncio.timeout(60):
                    envelope = await registry.execute(operation.id, input)
            except CallError as error:
                refused[operation.id] = error.details or str(error)
            else:
                assert isinstance(envelope.meta, HTTPResponseMeta)
                assert envelope.meta.status_code < 300
        await operations.close()
    assert refused == {}


FORM = "application/x-www-form-urlencoded"
ONE_OF = "path.id oneOf: Request path parameter id must match exactly one schema in oneOf"
UNION = {"properties": {"id": {"oneOf": [{"type": "integer"}, {"type": "string"}]}}}
BRANCHES = {"properties": {"filter": {"oneOf": [{"type": "object"}]}}}
LIST = {"properties": {"filters": {"type": "array", "items": {"type": "object"}}}}
BODY_ONE_OF = "body.b oneOf: Request body property b must match exactly one schema in oneOf"
NO_TYPES = "INVALID_CONTENT_TYPE: No supported content types, but request included a non-empty body"
BASE64 = r'body.attachments pattern: Request body property data must match pattern "^[\w\d+\/=]*$"'
UNSUPPORTED = " 415: Supported content types: application/octet-stream"
NUMBERS = "query.day enum: Request query parameter day.N must be equal to one of the allowed values: N, N"
ENCODED = "query required: Request query must have required property 'filter%Nbid%Nd'"
DEEP = "query.filter minItems: Request query parameter filter.id must NOT have fewer than N items"
RESERVED = "body.b None: Reserved characters used in request body"
BESIDE = {"requestBody": {"content": {"a/b": {"schema": {"$ref": "#/components/schemas/B", "required": ["b"]}}}}}
PROVED = [
    Rejection("a", "body.tags type: Request body property tags must be array", FORM, b"name=a&tags=b"),
    Rejection("a", "body.data type: Request body property data must be object", FORM, b"data=%7B%7D"),
    Rejection("a", 'body.day format: Request body property day must match format "date"', "application/json", b"{}"),
    Rejection("a", BASE64, schema={"properties": {"attachments": {"items": {"format": "byte"}}}}),
    Rejection("a", UNSUPPORTED, "application/x-tar", schema={"properties": {"Content-type": {}}}),
    Rejection("a: POST /v2/load_balancers (full_input)", BODY_ONE_OF),
    Rejection(
        "box: PUT /folders/{id}#unlink (full_input)", "body.link type: Request body property link must be object"
    ),
    Rejection("a", "query.filter oneOf: Request query parameter filter must match", schema=BRANCHES),
    Rejection("a", "query.filters type: Request query parameter filters.N must be object", schema=LIST),
    Rejection("a", "? required: Body parameter is required", "application/json", b"null"),
    Rejection("a", "body type: Request body must be boolean", "text/plain; charset=utf-8", b"true"),
    Rejection("a", "body required: it must have 'b'", FORM, b"b=", notes=["required property 'b' is not described"]),
    Rejection("a", ONE_OF, schema=UNION),
    Rejection("a", "header.accept enum: Request header accept must be equal to one of the allowed values"),
    Rejection("a", "header required: Request header must have required property 'authorization'"),
    Rejection("a", BODY_ONE_OF, schema={"properties": {"b": {"anyOf": [{}, {}]}}}),
    Rejection("a", NO_TYPES, "application/json", b"{}"),
    Rejection("a", "body type: Request body must be object", "application/xml", b"<a/>"),
    Rejection(
        "a: GET /users/{id}?key={key} (full_input)", "NO_PATH_MATCHED_ERROR: The route /users/a hasn't been found"
    ),
    Rejection("a", NUMBERS, schema={"properties": {"day": {"items": {"enum": ["1", "2"]}}}}, url="/a?x=1&day=2,1"),
    Rejection("a", "query required: Request query must have required property 'q'", url="/a?q=&b=1"),
    Rejection("a", "body type: Request body must be object", "text/json", b"{}"),
    Rejection("a", DEEP, url="/a?filter%5Bid%5D%5B%5D=1"),
    Rejection("a", "body required: Request body must have required property 'b'", described=BESIDE),
    Rejection("a", "body type: Request body must be string", FORM, b"a", {"properties": {"body": {"type": "string"}}}),
    Rejection("a", "header.content-type enum: must be equal to one of the allowed values: a/b, c/d", "a/b; x=1"),
    Rejection("a", ENCODED, url="/a?filter%5Bid%5D=1"),
    Rejection("a", "body anyOf: Request body must match", "a/b", b'{"ip":""}', {"anyOf": [{"format": "ipv4"}]}),
    Rejection("a", RESERVED, "multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="b"'),
]
UNPROVED = [
    Rejection("a", "body.tags type: Request body property tags must be array", FORM, b"name=a"),
    Rejection("a", "body.tags type: Request body property tags must be array", "application/json", b'{"tags": "b"}'),
    Rejection("a", "body.data type: Request body property data must be object", FORM, b"data=a"),
    Rejection("box: PUT /folders/{id} (full_input)", "body.link type: Request body property link must be object"),
    Rejection("a", "query.filter oneOf: Request query parameter filter must match"),
    Rejection("a", "query.filters type: Request query parameter filters.N must be object"),
    Rejection("a", "? required: Body parameter is required", "application/json", b""),
    Rejection("a", "body type: Request body must be boolean", "application/json", b'"true"'),
    Rejection("a", "body required: it must have 'b'", FORM, b"a="),
    Rejection("a", ONE_OF),
    Rejection("a", "header required: Request header must have required property 'x-key'"),
    Rejection("a", BODY_ONE_OF, schema={"properties": {"b": {"oneOf": [{}, {}]}}}),
    Rejection("a", BASE64, schema={"properties": {"attachments": {}}}),
    Rejection("a", BASE64.replace("=", ""), schema={"properties": {"attachments": {"format": "byte"}}}),
    Rejection("a", UNSUPPORTED, "application/x-tar", schema={"properties": {}}),
    Rejection("a", NO_TYPES, "text/plain", b"{}"),
    Rejection("a", "body type: Request body must be object", "application/json", b"[]"),
    Rejection("a: GET /users/{id} (full_input)", "NO_PATH_MATCHED_ERROR: The route /users/a hasn't been found"),
    Rejection("a", NUMBERS, schema={"properties": {"day": {"items": {"enum": ["1", "2"]}}}}, url="/a?day=3"),
    Rejection("a", "query required: Request query must have required property 'q'", url="/a?b=1"),
    Rejection("a", "body type: Request body must be object", "text/json", b"1"),
    Rejection("a", DEEP, url="/a?filter%5Bid%5D%5B0%5D=1"),
    Rejection("a", "body required: Request body must have required property 'c'", described=BESIDE),
    Rejection("a", "body type: Request body must be string", FORM, b"a", {"properties": {"body": {"type": "object"}}}),
    Rejection("a", "header.content-type enum: must be equal to one of the allowed values: a/b, c/d", "e/f"),
    Rejection("a", ENCODED, url="/a?filter%5Bother%5D=1"),
    Rejection("a", "body anyOf: Request body must match", "a/b", b'{"ip":"x"}', {"anyOf": [{"format": "ipv4"}]}),
    Rejection("a", RESERVED, FORM, b"b=,"),
]


def test_each_excuse_has_to_be_proved() -> None:
    assert [excuse_of(rejection) for rejection in PROVED] == EXCUSES
    assert [rejection for rejection in UNPROVED if excuse_of(rejection) is not None] == []


@pytest.mark.parametrize(("severity", "kind"), [("Warning", "accepted, with warnings"), ("Error", "judged invalid")])
def test_warnings_do_not_make_a_request_invalid(severity: str, kind: str) -> None:
    found = {"location": ["query", "sort"], "severity": severity, "code": "deprecated", "message": "it is deprecated"}
    problem = {"type": "https://stoplight.io/prism/errors#UNPROCESSABLE_ENTITY", "validation": [found]}
    assert read_outcome(422, {}, problem).kind == kind
