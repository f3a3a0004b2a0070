"""The OpenAPI document: what it holds, for whom, and how it is cached."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from operations import AccessControl, Identity, Operation, OperationRegistry, OperationSpec, from_schema, operation
from operations.schema import deferred_schema
from operations.serving.admission import Caller
from operations.serving.exposure import Exposure
from operations.serving.http.document import PAGES, DocumentCache, DocumentEndpoint
from operations.serving.http.path_items import Version
from operations.serving.http.shared_components import TOKENS, Security
from tests.serving.clients import shop


class User(msgspec.Struct):
    name: str


class Secret(msgspec.Struct):
    value: str


@operation(namespace="open", type="query")
async def greet(user: User) -> str:
    """Greet a user."""
    return user.name


@operation(namespace="closed", type="query", access_control=AccessControl(required_scopes=["admin"]))
async def reveal(user: User) -> Secret:
    return Secret(user.name)


@operation(namespace="closed", access_control=AccessControl(required_scopes=["a"], required_scopes_any=["b", "c"]))
async def change(value: int) -> int:
    return value


def named(name: str, schema: Any) -> Operation[Any]:
    spec = OperationSpec(namespace="n", name=name, type="query", output_schema=schema)  # type: ignore[arg-type]
    return Operation(spec=spec, handler=lambda input, context: None)


def documents(*operations: Operation[Any], **options: Any) -> DocumentCache:
    return DocumentCache(Exposure(OperationRegistry(operations)), title="t", version="1", **options)


async def read(documents: DocumentCache, identity: Identity | None = None, version: Version = "3.1") -> dict[str, Any]:
    document: dict[str, Any] = json.loads((await documents.get(identity, version)).body)
    return document


def references(document: Any) -> set[str]:
    return set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(document)))


async def test_a_document_lists_only_operations_that_its_reader_may_call() -> None:
    made = documents(greet, reveal, change)
    anonymous = await read(made)
    assert list(anonymous["paths"]) == ["/open/greet"]
    assert "Secret" not in anonymous["components"]["schemas"]
    assert anonymous["tags"] == [{"name": "open"}]
    admin = await read(made, Identity("a", scopes=["admin"]))
    assert list(admin["paths"]) == ["/closed/reveal", "/open/greet"]
    assert {"User", "Secret"} <= admin["components"]["schemas"].keys()


async def test_names_of_components_do_not_reveal_hidden_operations() -> None:
    hidden = OperationSpec(
        namespace="a",
        name="hidden",
        type="query",  # type: ignore[arg-type]
        access_control=AccessControl(required_scopes=["x"]),
        output_schema={"$ref": "#/$defs/User", "$defs": {"User": {"type": "boolean"}}},  # type: ignore[arg-type]
    )
    shown = named("shown", {"$ref": "#/$defs/User", "$defs": {"User": {"type": "string"}}})
    made = documents(Operation(spec=hidden, handler=lambda input, context: None), shown)
    everything = await read(made, Identity("i", scopes=["x"]))
    own = {name for name in everything["components"]["schemas"] if name.startswith("User")}
    assert len(own) == 2
    assert "User" in own
    part = await read(made)
    assert [name for name in part["components"]["schemas"] if name.startswith("User")] == ["User"]
    assert part["components"]["schemas"]["User"] == {"type": "string"}


async def test_every_reference_has_a_target_and_every_schema_a_reader() -> None:
    versions: tuple[Version, ...] = ("3.1", "3.2")
    for version in versions:
        document = await read(documents(*shop.registry().operations.values()), version=version)
        assert references(document) == document["components"]["schemas"].keys()
        for kind in ("responses", "headers"):
            used = set(re.findall(rf'"#/components/{kind}/([^"]+)"', json.dumps(document)))
            assert used <= document["components"][kind].keys()


async def test_queries_have_get_and_mutations_have_not() -> None:
    document = await read(documents(*shop.registry().operations.values()))
    find, buy = document["paths"]["/shop/find"], document["paths"]["/shop/buy"]
    assert find["post"]["operationId"] == "shop.find"
    assert find["get"]["operationId"] == "shop.find:get"
    assert find["get"]["x-operations"] == {"alias": "shop.find"}
    assert [each["name"] for each in find["get"]["parameters"]] == ["name", "limit", "colours", "cheap"]
    assert find["get"]["parameters"][0] == {
        "name": "name",
        "in": "query",
        "required": True,
        "schema": {"type": "string"},
    }
    assert "get" not in buy
    assert document["paths"]["/shop.trees/grow/once"]["get"]["parameters"][0]["content"] == {
        "application/json": {"schema": {"$ref": "#/components/schemas/Node"}}
    }


async def test_errors_of_the_operation_have_their_status_and_details() -> None:
    document = await read(documents(*shop.registry().operations.values()))
    responses = document["paths"]["/shop/buy"]["post"]["responses"]
    problem = responses["409"]["content"]["application/problem+json"]["schema"]["anyOf"]
    assert problem[0]["properties"]["code"]["const"] == "REFUSED"
    assert problem[0]["properties"]["details"]["required"] == ["reason"]
    sold_out = responses["404"]["content"]["application/problem+json"]["schema"]
    assert sold_out["properties"]["code"]["const"] == "SOLD_OUT"
    assert responses["default"] == {"$ref": "#/components/responses/Problem"}


async def test_an_input_that_contains_itself_becomes_a_component_named_after_its_operation() -> None:
    schema = {"type": "object", "properties": {"child": {"$ref": "#"}}}
    spec = OperationSpec(namespace="n", name="a/b", type="query", input_schema=schema, output_schema=schema)  # type: ignore[arg-type]
    document = await read(documents(Operation(spec=spec, handler=lambda input, context: None)))
    item = document["paths"]["/n/a/b"]
    assert list(item) == ["post"]
    reference = {"$ref": "#/components/schemas/n.a_b"}
    assert item["post"]["requestBody"]["content"]["application/json"]["schema"] == reference
    assert item["post"]["responses"]["200"]["content"]["application/json"]["schema"] == reference
    assert document["components"]["schemas"]["n.a_b"] == {"type": "object", "properties": {"child": reference}}


async def test_bytes_are_binary_and_streams_are_events() -> None:
    made = documents(*shop.registry().operations.values())
    document = await read(made)
    assert list(document["paths"]["/files/load"]["post"]["responses"]["200"]["content"]) == ["application/octet-stream"]
    body = document["paths"]["/files/store"]["post"]["requestBody"]["content"]
    assert list(body) == ["application/json", "application/octet-stream"]
    watch = document["paths"]["/shop/watch"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    assert watch["schema"]["oneOf"][0]["properties"]["data"]["contentSchema"] == {"$ref": "#/components/schemas/Item"}
    newer = (await read(made, version="3.2"))["paths"]["/shop/watch"]["get"]["responses"]["200"]["content"]
    assert newer["text/event-stream"] == {"itemSchema": watch["schema"]}


async def test_documents_without_streams_describe_no_events() -> None:
    document = await read(documents(greet))
    assert not [name for name in document["components"]["schemas"] if name.startswith("Stream")]


async def test_security_lists_the_scopes() -> None:
    two = {**TOKENS.schemes, "other": {"type": "mutualTLS"}}
    identity = Identity("i", scopes=["a", "b"])
    document = await read(documents(greet, change, security=TOKENS), identity)
    assert document["paths"]["/open/greet"]["post"]["security"] == []
    assert document["paths"]["/closed/change"]["post"]["security"] == [{"bearer": ["a", "b"]}, {"bearer": ["a", "c"]}]
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    strict = await read(documents(greet, security=Security(two, anonymous=False)))
    assert strict["paths"]["/open/greet"]["post"]["security"] == [{"bearer": []}, {"other": []}]
    none = await read(documents(greet, security=Security()))
    assert "securitySchemes" not in none["components"]
    assert "401" not in none["paths"]["/open/greet"]["post"]["responses"]


async def test_dotted_namespaces_have_parents_in_3_2() -> None:
    document = await read(documents(*shop.registry().operations.values()), version="3.2")
    assert {"name": "shop.trees", "parent": "shop"} in document["tags"]
    assert document["openapi"] == "3.2.0"
    assert document["$self"] == "/openapi.json?version=3.2"


async def test_booleans_become_objects_and_base64_has_its_older_format() -> None:
    schema = {
        "type": "object",
        "properties": {"a": True, "b": False, "c": {"type": "string", "contentEncoding": "base64"}},
    }
    document = await read(documents(named("x", schema)))
    content = document["paths"]["/n/x"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert content["properties"] == {
        "a": {},
        "b": {"not": {}},
        "c": {"type": "string", "contentEncoding": "base64", "format": "byte"},
    }


async def test_request_and_response_keywords_of_another_document_are_left_out() -> None:
    schema = {
        "type": "object",
        "properties": {
            "number": {"$ref": "#/$defs/Number"},
            "secret": {"type": "string", "writeOnly": True, "examples": [{"$ref": "#/components/examples/x"}, "y"]},
        },
        "required": ["number"],
        "$defs": {"Number": {"type": "integer", "readOnly": True}},
    }
    spec = OperationSpec(namespace="n", name="x", type="query", input_schema=schema, output_schema=schema)  # type: ignore[arg-type]
    document = await read(documents(Operation(spec=spec, handler=lambda input, context: None)))
    told = document["paths"]["/n/x"]["post"]
    taken = told["requestBody"]["content"]["application/json"]["schema"]["properties"]
    given = told["responses"]["200"]["content"]["application/json"]["schema"]["properties"]
    assert taken["secret"] == {"type": "string", "writeOnly": True, "examples": ["y"]}
    assert given["secret"] == {"type": "string", "examples": ["y"]}
    shared = document["components"]["schemas"]
    assert shared[taken["number"]["$ref"].rpartition("/")[2]] == {"type": "integer"}
    assert shared[given["number"]["$ref"].rpartition("/")[2]] == {"type": "integer", "readOnly": True}


async def test_a_text_that_looks_like_a_reference_stays_as_it_is() -> None:
    text = '"$ref":"#/components/schemas/' + "0" * 32 + '"'
    document = await read(documents(named("x", {"const": {"$ref": f"#/components/schemas/{'0' * 32}"}, "title": text})))
    schema = document["paths"]["/n/x"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema == {"const": {"$ref": f"#/components/schemas/{'0' * 32}"}, "title": text}


async def test_values_without_a_json_form_are_written_as_strings() -> None:
    spec = OperationSpec(
        namespace="n",
        name="x",
        type="query",  # type: ignore[arg-type]
        description="half \ud83d",
        annotations={"class": Secret, "set": {1}, "\ud800": 1},
    )
    document = await read(documents(greet, Operation(spec=spec, handler=lambda input, context: None)))
    told = document["paths"]["/n/x"]["post"]
    assert told["description"] == "half ?"
    assert told["x-operations"]["annotations"] == {"class": repr(Secret), "set": "{1}", "?": 1}


async def test_an_operation_that_cannot_be_described_does_not_hide_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> Any:
        raise RuntimeError("no schema today")

    document = await read(documents(greet, named("x", deferred_schema(fail))))
    assert list(document["paths"]) == ["/open/greet"]
    assert "n.x is left out of the OpenAPI document" in caplog.text


async def test_documents_are_cached_until_the_registry_changes() -> None:
    registry = OperationRegistry([greet])
    made = DocumentCache(Exposure(registry), title="t", version="1")
    first = await made.get(None)
    assert await made.get(None) is first
    assert await made.get(Identity("somebody", scopes=["other"])) is first
    registry.register(change)
    second = await made.get(Identity("i", scopes=["a", "b"]))
    assert b"closed/change" in second.body
    registry.unregister("closed.change")
    third = await made.get(None)
    assert third.body == first.body
    assert third.etag == first.etag


async def test_one_identity_never_gets_the_document_of_another() -> None:
    made = documents(greet, reveal)
    admin, guest = Identity("a", scopes=["admin"]), Identity("g", scopes=["guest"])
    for identity, seen in ((admin, True), (guest, False), (None, False), (admin, True)):
        assert (b"reveal" in (await made.get(identity)).body) is seen


async def test_the_cache_is_bounded() -> None:
    one = len((await documents(greet, reveal).get(None)).body)
    made = documents(greet, reveal, max_bytes=one * 3)
    kept = [await made.get(None, "3.1", f"/mount{number}") for number in range(10)]
    assert await made.get(None, "3.1", "/mount9") is kept[9]
    assert await made.get(None, "3.1", "/mount0") is not kept[0]
    tiny = documents(greet, max_bytes=10)
    assert (await tiny.get(None)).body == (await documents(greet).get(None)).body


async def test_concurrent_requests_share_one_build() -> None:
    made = documents(*shop.registry().operations.values())
    first, *others = await asyncio.gather(*(made.get(None) for _ in range(5)))
    assert all(other is first for other in others)


async def test_a_build_that_is_cancelled_does_not_stop_the_others() -> None:
    made = documents(*shop.registry().operations.values())
    first = asyncio.ensure_future(made.get(None))
    second = asyncio.ensure_future(made.get(None))
    await asyncio.sleep(0)
    first.cancel()
    assert b"shop.find" in (await second).body


async def test_building_a_document_does_not_block_the_loop() -> None:
    turns = 0
    made = documents(*(named(f"o{number}", {"type": "object", "title": str(number)}) for number in range(2000)))
    task = asyncio.ensure_future(made.get(None))
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 5


def test_operations_that_a_stream_and_a_call_share_describe_both() -> None:
    async def stream(input: Any, context: Any) -> AsyncIterator[int]:
        yield 1

    spec = OperationSpec(namespace="n", name="both", type="query", output_schema=from_schema({"type": "integer"}))  # type: ignore[arg-type]
    both: Operation[Any] = Operation(spec=spec, handler=lambda input, context: 1, stream=stream)
    document = asyncio.run(read(documents(both)))
    post = document["paths"]["/n/both"]["post"]
    assert list(post["responses"]["200"]["content"]) == ["application/json", "text/event-stream"]
    assert post["x-operations"]["ways"] == ["call", "stream"]


async def ask(
    endpoint: DocumentEndpoint, path: str, method: str = "GET", **more: Any
) -> tuple[int, dict[bytes, bytes], bytes]:
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], **more}
    await endpoint(scope, receive, send, Caller(None, None, headers=dict(scope["headers"])))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


@pytest.fixture
def endpoint() -> DocumentEndpoint:
    return DocumentEndpoint(documents(greet))


async def test_the_endpoint_answers_with_validators(endpoint: DocumentEndpoint) -> None:
    status, headers, body = await ask(endpoint, "/openapi.json")
    assert status == 200
    assert json.loads(body)["openapi"] == "3.1.0"
    assert headers[b"vary"] == b"Authorization, X-API-Key"
    assert headers[b"cache-control"] == b"private, no-cache"
    tagged = [(b"if-none-match", b'"x", W/' + headers[b"etag"])]
    status, again, body = await ask(endpoint, "/openapi.json", headers=tagged)
    assert (status, body, again[b"etag"]) == (304, b"", headers[b"etag"])
    status, headers, body = await ask(endpoint, "/openapi.json", "HEAD")
    assert (status, body) == (200, b"")


async def test_the_endpoint_knows_two_versions_and_its_methods(endpoint: DocumentEndpoint) -> None:
    assert json.loads((await ask(endpoint, "/openapi.json", query_string=b"version=3.2"))[2])["openapi"] == "3.2.0"
    status, headers, body = await ask(endpoint, "/openapi.json", query_string=b"version=2.0")
    assert status == 400
    assert headers[b"content-type"] == b"application/problem+json"
    assert b"3.1 or 3.2" in body
    status, headers, _ = await ask(endpoint, "/openapi.json", "DELETE")
    assert (status, headers[b"allow"]) == (405, b"GET, HEAD, OPTIONS")
    assert (await ask(endpoint, "/openapi.json", "OPTIONS"))[0] == 204


async def test_a_mounted_application_names_its_own_server(endpoint: DocumentEndpoint) -> None:
    body = (await ask(endpoint, "/api/openapi.json", root_path="/api"))[2]
    assert json.loads(body)["servers"] == [{"url": "/api"}]


def test_the_page_loads_nothing_from_elsewhere() -> None:
    assert PAGES.keys() == {"/docs", "/~/docs.js", "/~/docs.css"}
    for page in PAGES.values():
        assert b"unsafe" not in dict(page.response().headers)[b"content-security-policy"]
        assert b"://" not in page.body
        assert b"innerHTML" not in page.body
    assert not re.findall(rb"<script(?![^>]*\bsrc=)|\son\w+=|<style|style=", PAGES["/docs"].body)
