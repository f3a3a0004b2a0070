"""Reading documents: formats, references, files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from operations import CallError, ErrorCode, OperationType
from operations.sources.openapi import (
    APIOperations,
    HTTPServiceConfig,
    from_openapi,
    from_openapi_file,
    from_openapi_url,
)
from operations.sources.openapi.documents import LazyObject, read_document
from operations.sources.openapi.yaml_text import read_yaml

CONFIG = HTTPServiceConfig(namespace="api", base_url="http://api.test")
INFO = {"title": "t", "version": "1"}


def load(document: dict[str, Any]) -> APIOperations:
    return from_openapi({"openapi": "3.1.0", "info": INFO, **document}, CONFIG)


def input_of(operations: APIOperations, index: int = 0) -> Any:
    return operations[index].spec.input_schema.document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 2020-01-01", {"a": "2020-01-01"}),
        ("a: yes\nb: =\nc: 0o17", {"a": "yes", "b": "=", "c": 15}),
        ("200: ok\ntrue: t\nnull: n\n1.5: f", {"200": "ok", "true": "t", "null": "n", "1.5": "f"}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: .inf", {"a": "inf"}),
        ("a: b\x80\x01c", {"a": "bc"}),
        (
            'a: {\n  "b": 1\n}\nc: 2020-01-01\nd: 1_000\ne: ~\nf: 1e3',
            {"a": {"b": 1}, "c": "2020-01-01", "d": "1_000", "e": None, "f": 1000.0},
        ),
        ("\ufeffa: 1", {"a": 1}),
    ],
)
def test_yaml_is_typed_by_its_newer_rules(text: str, value: Any) -> None:
    assert read_yaml(text) == value


def test_yaml_that_only_the_lenient_reader_takes_has_the_same_types() -> None:
    # A brace that closes in the column of its key is not strictly YAML, and common.
    opening = 'x:\n  a: {\n    "b": 1\n  }\n'
    text = opening + '  c: 2020-01-01\n  d: on\n  200: z\n  <<: {m: 1}\n  e: 0x1f\n  f: "1"\n  g: !!str 5\n  h: -7\n'
    assert read_yaml(text) == {
        "x": {"a": {"b": 1}, "c": "2020-01-01", "d": "on", "200": "z", "m": 1, "e": 31, "f": "1", "g": "5", "h": -7}
    }


@pytest.mark.parametrize("text", ["a: b: c", "a: *nowhere", "[" * 5_000, "a: [1", "? {a: 1}\n: 2"])
def test_malformed_yaml_is_one_clear_error(text: str) -> None:
    with pytest.raises(CallError, match="malformed YAML") as caught:
        read_yaml(text)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize("quirk", ["", "z: {\n}\n"])
def test_aliases_that_unfold_without_end_are_refused(quirk: str) -> None:
    rows = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    with pytest.raises(CallError, match="malformed YAML"):
        read_yaml("a0: &a0 [x, x, x]\n" + rows + quirk)


MANY = 20_000
CHAIN = {f"i{n}": {"$ref": f"#/components/pathItems/i{n + 1}"} for n in range(MANY // 10)}
MEDIA = {f"application/x{n}+json": {"schema": {"title": str(n)}} for n in range(MANY)}
QUADRATIC: dict[str, dict[str, Any]] = {
    "one name for every operation": {"paths": {f"/p{n}": {"get": {"operationId": "same"}} for n in range(MANY)}},
    "each path at the start of one chain of references": {
        "paths": {f"/p{n}": {"$ref": "#/components/pathItems/i0"} for n in range(MANY // 5)},
        "components": {"pathItems": CHAIN},
    },
    "a schema for each of many media types": {"paths": {"/a": {"post": {"requestBody": {"content": MEDIA}}}}},
}


@pytest.mark.parametrize("document", QUADRATIC.values(), ids=QUADRATIC.keys())
def test_documents_are_read_in_linear_time(document: dict[str, Any]) -> None:
    start = time.process_time()
    operations = load(document)
    if operations:
        input_of(operations)
    # A quadratic algorithm takes at least a minute.
    assert time.process_time() - start < 20


def test_names_that_repeat_are_numbered_in_order() -> None:
    ids = ["a", "a", "a_2", "a", "a_2"]
    operations = load({"paths": {f"/{n}": {"get": {"operationId": each}} for n, each in enumerate(ids)}})
    assert [each.spec.name for each in operations] == ["a", "a_2", "a_2_2", "a_3", "a_2_3"]


@pytest.mark.parametrize("merge", ["z: {\t<<: [*a, %s]}\n", "z: {\n}\ny: {<<: [*a, %s]}\n"])
def test_merged_mappings_that_unfold_without_end_are_refused(merge: str) -> None:
    members = ", ".join(f"k{n}: {n}" for n in range(MANY))
    start = time.process_time()
    with pytest.raises(CallError, match="malformed YAML"):
        read_yaml(f"a: &a {{{members}}}\n" + merge % ", ".join(["*a"] * MANY))
    assert time.process_time() - start < 20


@pytest.mark.parametrize("text", [b"{", b"[]", b"just text", b"", b"\x00\x01", b'{"a": 1}', b"openapi: 3.1.0"])
def test_a_document_that_is_not_openapi_is_one_error(text: bytes) -> None:
    with pytest.raises(CallError) as caught:
        from_openapi(text, CONFIG)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


def test_json_is_decoded_on_access() -> None:
    document = read_document(b'{"paths": {"/a": {"get": {"x": 1}}}, "info": {"v": 1}}', "d")
    assert isinstance(document, LazyObject)
    assert isinstance(document["paths"], LazyObject)
    assert isinstance(document["paths"]["/a"], LazyObject)
    assert document["paths"]["/a"]["get"] == {"x": 1}
    assert document["paths"]["/a"] is document["paths"]["/a"]
    assert (len(document), list(document), "info" in document, "nope" in document) == (
        2,
        ["paths", "info"],
        True,
        False,
    )


def test_names_come_from_ids_or_from_method_and_path_and_never_clash() -> None:
    operation: dict[str, Any] = {"responses": {}}
    operations = load(
        {
            "paths": {
                "/users/{id}/posts.json": {"get": operation, "post": operation},
                "/a": {"get": {"operationId": "do it!"}, "post": {"operationId": "do it?"}},
                "/b": {"get": {"operationId": "do_it_"}, "put": {"operationId": ""}, "x-other": 1},
                "x-paths": {"get": {}},
            }
        }
    )
    assert [found.spec.name for found in operations] == [
        *("get_users_id_posts_json", "post_users_id_posts_json"),
        *("do_it_", "do_it__2", "do_it__3", "put_b"),
    ]
    assert operations[3].spec.annotations["sourceName"] == "do it?"


def test_newer_documents_have_more_methods() -> None:
    paths: dict[str, Any] = {"/a": {"query": {}, "additionalOperations": {"COPY": {}}, "get": {}}}
    assert len(load({"paths": paths})) == 1
    newest = from_openapi({"openapi": "3.2.0", "info": INFO, "paths": paths}, CONFIG)
    assert [found.spec.annotations["method"] for found in newest] == ["GET", "QUERY", "COPY"]
    assert [found.spec.type for found in newest] == [OperationType.QUERY, OperationType.QUERY, OperationType.MUTATION]


def test_references_to_every_location_are_followed() -> None:
    operations = load(
        {
            "paths": {
                "/a": {"$ref": "#/components/pathItems/A"},
                "/b": {"get": {"parameters": [{"$ref": "#/paths/~1c/get/parameters/0"}]}},
                "/c": {"get": {"parameters": [{"name": "$ref", "in": "query", "schema": {"type": "integer"}}]}},
                "/d": {"post": {"requestBody": {"$ref": "#/components/requestBodies/D"}}},
            },
            "components": {
                "pathItems": {"A": {"get": {"operationId": "a"}}},
                "requestBodies": {
                    "D": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/D%20d"}}}}
                },
                "schemas": {
                    "D d": {
                        "type": "object",
                        "properties": {"$ref": {"type": "string"}, "next": {"$ref": "#/components/schemas/D%20d"}},
                    }
                },
            },
        }
    )
    assert operations[0].spec.name == "a"
    assert input_of(operations, 1)["properties"] == {"$ref": {"type": "integer"}}
    document = input_of(operations, 3)
    assert set(document["properties"]) == {"$ref", "next"}
    assert operations[3].spec.input_schema.check({"$ref": "x", "next": {"next": {"$ref": "y"}}})
    assert not operations[3].spec.input_schema.check({"next": {"next": {"$ref": 5}}})


@pytest.mark.parametrize(
    "reference",
    [
        "#/components/nope",
        "#/components/parameters/A",
        "other.yaml#/x",
        "http://127.0.0.1:9/x.json",
        "file:///etc/passwd",
    ],
)
def test_a_dangling_reference_breaks_one_operation(reference: str) -> None:
    parameters = {"A": {"$ref": "#/components/parameters/A"}}
    operations = load(
        {
            "paths": {"/a": {"get": {"parameters": [{"$ref": reference}]}}, "/b": {"get": {"operationId": "b"}}},
            "components": {"parameters": parameters},
        }
    )
    assert len(operations) == 2
    assert list(operations.diagnostics()) == ["api.get_a"]
    assert operations[0].spec.input_schema.is_unknown


@pytest.mark.parametrize("description", [None, [], "text", 5, {"parameters": [{}]}, {"parameters": [{"name": "x"}]}])
def test_a_description_that_is_none_breaks_one_operation(description: Any) -> None:
    operations = load({"paths": {"/a": {"get": description, "put": {"operationId": "b"}}}})
    assert [found.spec.name for found in operations] == ["get_a", "b"]
    assert set(operations.diagnostics()) <= {"api.get_a"}
    assert operations[0].spec.description == ""


@pytest.mark.parametrize("item", [None, "x", [], {"$ref": "#/nowhere"}])
def test_an_invalid_path_is_skipped_and_reported(item: Any) -> None:
    operations = load({"paths": {"/a": item, "/b": {"get": {"operationId": "b"}}}})
    assert [found.spec.name for found in operations] == ["b"]
    assert len(operations.diagnostics()[""]) == 1


def test_a_loader_resolves_external_references() -> None:
    asked: list[str] = []

    def loader(address: str) -> Any:
        asked.append(address)
        return {"schema": {"type": "integer"}, "wrapped": {"$ref": "#/schema"}}

    document = {
        "openapi": "3.1.0",
        "info": INFO,
        "paths": {
            "/a": {
                "get": {
                    "parameters": [
                        {"name": "n", "in": "query", "schema": {"$ref": "https://else.where/s.json#/wrapped"}}
                    ]
                }
            }
        },
    }
    operations = from_openapi(document, CONFIG, loader=loader)
    assert asked == []
    assert operations[0].spec.input_schema.check({"n": 1})
    assert not operations[0].spec.input_schema.check({"n": "x"})
    assert asked == ["https://else.where/s.json"]


async def test_only_files_in_the_documents_directory_are_read(tmp_path: Path) -> None:
    (tmp_path / "api" / "parts").mkdir(parents=True)
    (tmp_path / "outside.json").write_text('{"type": "string"}')
    (tmp_path / "api" / "parts" / "get.yaml").write_text(
        "operationId: got\nparameters:\n- $ref: params.yaml#/N\n"
        "- name: o\n  in: query\n  schema:\n    $ref: ../../outside.json\n"
    )
    (tmp_path / "api" / "parts" / "params.yaml").write_text(
        "N:\n  name: n\n  in: query\n  schema:\n    $ref: '#/Number'\nNumber:\n  type: integer\n"
    )
    (tmp_path / "api" / "main.yaml").write_text(
        "openapi: 3.0.3\ninfo: {title: t, version: '1'}\npaths:\n  /a:\n    get:\n      $ref: parts/get.yaml\n"
    )
    operations = await from_openapi_file(tmp_path / "api" / "main.yaml", CONFIG)
    assert operations[0].spec.name == "got"
    assert "outside.json is outside" in operations.diagnostics()[""][0]
    schema = operations[0].spec.input_schema
    assert schema.check({"n": 1, "o": 5})
    assert not schema.check({"n": "x"})
    allowed = await from_openapi_file(tmp_path / "api" / "main.yaml", CONFIG, root=tmp_path)
    assert allowed.diagnostics() == {}
    assert not allowed[0].spec.input_schema.check({"o": 5})


async def test_links_out_of_the_documents_directory_are_not_followed(tmp_path: Path) -> None:
    """A document that comes with links must not read the user's other files: their values could be sent to its API."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "keys.json").write_text('{"type": "string", "default": "the secret"}')
    directory = tmp_path / "api"
    directory.mkdir()
    (directory / "file.json").symlink_to("../private/keys.json")
    (directory / "below").symlink_to(tmp_path / "private")
    (directory / "own.json").write_text('{"type": "integer"}')
    (directory / "link.json").symlink_to("own.json")
    os.mkfifo(directory / "pipe")
    references = ["file.json", "below/keys.json", "pipe", "link.json"]
    parameters = [{"name": f"p{i}", "in": "query", "schema": {"$ref": each}} for i, each in enumerate(references)]
    paths = {"/a": {"get": {"parameters": parameters}}}
    (directory / "main.json").write_text(json.dumps({"openapi": "3.1.0", "info": INFO, "paths": paths}))
    (tmp_path / "linked").symlink_to(directory)
    for main in (directory / "main.json", tmp_path / "linked" / "main.json"):
        operations = await from_openapi_file(main, CONFIG)
        problems = "\n".join(operations.diagnostics()[""])
        assert problems.count("it is a link to a file outside the allowed directory (in Python, root=") == 2
        assert problems.count("it is a device or a pipe") == 1
        assert "the secret" not in str(input_of(operations))
        assert not operations[0].spec.input_schema.check({"p3": "x"})
    allowed = await from_openapi_file(directory / "main.json", CONFIG, root=tmp_path)
    assert len(allowed.diagnostics()[""]) == 1
    assert "the secret" in str(input_of(allowed))


async def test_files_may_be_read_from_any_file_system() -> None:
    files = {
        "/main.json": json.dumps({"openapi": "3.1.0", "info": INFO, "paths": {"/a": {"$ref": "a.json"}}}),
        "/a.json": '{"get": {"operationId": "x"}}',
    }

    class Files:
        async def read(self, path: str) -> str:
            return files[path]

    operations = await from_openapi_file("main.json", CONFIG, Files())
    assert [found.id for found in operations] == ["api.x"]


async def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CallError, match=r"cannot read .*: No such file"):
        await from_openapi_file(tmp_path / "nope.yaml", CONFIG)


@pytest.mark.parametrize("document", [None, 5, []])
def test_a_value_that_is_not_a_document_is_reported(document: Any) -> None:
    with pytest.raises(
        CallError, match=f"invalid document: expected a mapping, str or bytes, not {type(document).__name__}"
    ):
        from_openapi(document, CONFIG)


async def test_errors_name_the_file_or_the_address(tmp_path: Path) -> None:
    class Files:
        def read(self, path: str) -> Any:
            return {"/empty.json": None}[path]

    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(CallError, match=r"/other\.json: not an OpenAPI document"):
        await from_openapi_file(tmp_path / "other.json", CONFIG)
    with pytest.raises(CallError, match=r"cannot read missing\.json: no such file"):
        await from_openapi_file("missing.json", CONFIG, Files())
    with pytest.raises(CallError, match=r"cannot read .*empty\.json: the file system returned NoneType"):
        await from_openapi_file("empty.json", CONFIG, Files())
    with pytest.raises(CallError, match=r"'api\.json' is not an http or https URL: use from_openapi_file for files"):
        await from_openapi_url("api.json?key=secret", CONFIG)


def test_paths_that_are_not_an_object_are_reported() -> None:
    assert load({"paths": []}).diagnostics() == {"": ["`paths` is list, not an object"]}


def test_a_schema_found_by_its_id_is_not_reported_as_unsupported() -> None:
    def taking(address: str) -> Any:
        content = {"application/json": {"schema": {"$ref": address}}}
        return {"post": {"operationId": address[-4:], "requestBody": {"required": True, "content": content}}}

    pet = {"$id": "https://schemas.test/pets", "type": "object", "properties": {"age": {"type": "integer"}}}
    paths = {"/a": taking("https://schemas.test/pets"), "/b": taking("https://schemas.test/none")}
    operations = load({"paths": paths, "components": {"schemas": {"Pet": pet}}})
    assert list(operations.diagnostics()) == ["api.none"]
    assert not operations[0].spec.input_schema.check({"body": {"age": "old"}})


SURROGATES = r"""{"openapi": "3.1.0", "info": {"title": "t", "version": "1\ud800"}, "paths": {"/a": {"get": {
    "operationId": "a", "description": "d\udc00 \ud83d\ude00 \\ud800", "tags": ["\ud800"],
    "parameters": [{"name": "p\ud800", "in": "query", "schema": {"enum": ["\ud800", "b"], "maximum": 1e999}}]
}}, "/b": {"get": {"operationId": "b"}}}}"""


@pytest.mark.parametrize("read", [str, json.loads, lambda text: f"# YAML\n{text}"], ids=["JSON", "mapping", "YAML"])
def test_lone_surrogates_are_replaced_so_that_every_operation_can_be_listed(read: Any) -> None:
    operations = from_openapi(read(SURROGATES), CONFIG)
    specs = [operation.spec for operation in operations]
    assert [spec.name for spec in specs] == ["a", "b"]
    assert specs[0].description == "d\ufffd \U0001f600 \\ud800"
    assert list(input_of(operations)["properties"]) == ["p\ufffd"]
    for spec in specs:
        msgspec.json.encode(spec.to_dict())
