"""Every document of the public set loads with the expected operations, and each can build a request."""

from __future__ import annotations

import json
import logging
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from operations import CallError, OperationContext, OperationRegistry
from operations.sources.openapi import HTTPCallOptions, HTTPServiceConfig, from_openapi_file

FOLDER = os.environ.get("OPERATIONS_TEST_DOCUMENTS")
DRY = OperationContext(metadata={"http": HTTPCallOptions(dry_run=True)})


def manifest() -> list[dict[str, Any]]:
    if not FOLDER:
        return []
    listed: list[dict[str, Any]] = json.loads((Path(FOLDER) / "manifest.json").read_text())["specs_list"]
    return listed


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not FOLDER:
        pytest.skip("OPERATIONS_TEST_DOCUMENTS names no folder: the public documents are not here and were not run")
    directory = tmp_path_factory.mktemp("documents")
    with tarfile.open(Path(FOLDER) / "documents.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory


def test_the_documents_of_the_corpus_exist() -> None:
    if not FOLDER:
        pytest.skip("OPERATIONS_TEST_DOCUMENTS names no folder: the public documents are not here and were not run")
    assert len(manifest()) > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("entry", manifest(), ids=lambda entry: entry["name"])
async def test_a_document_loads_and_every_operation_builds_a_request(
    entry: dict[str, Any], documents: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "operations.schema")
    config = HTTPServiceConfig(namespace="api", base_url="http://api.test/v1")
    operations = await from_openapi_file(documents / entry["file"], config)
    assert len(operations) == entry["expected_operations"]
    assert len({operation.id for operation in operations}) == len(operations)
    registry = OperationRegistry(operations)
    failed: dict[str, str] = {}
    told = operations.diagnostics().items()
    impossible = {id for id, notes in told if any(note.startswith("no input is valid") for note in notes)}
    assert len(impossible) <= entry["expected_operations"] / 10
    for operation in operations:
        if operation.id in impossible:
            continue
        input = operation.spec.input_schema.cast({}, "total")
        try:
            if operation.handler is not None:
                envelope = await registry.execute(operation.id, input, DRY)
            else:
                envelope = await anext(registry.subscribe(operation.id, input, DRY))
        except CallError as error:
            failed[operation.id] = str(error)
            continue
        assert envelope.data["url"].startswith("http://api.test/v1/")
        assert "{" not in envelope.data["url"]
    assert failed == {}


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_githubs_own_examples_are_normalised_without_an_exception(documents: Path) -> None:
    file = documents / "specs" / "github-api.json"
    document = json.loads(file.read_bytes())
    operations = await from_openapi_file(file, HTTPServiceConfig(namespace="api"))
    normalised = 0
    for operation in operations:
        described = document["paths"][operation.spec.annotations["path"]][operation.spec.annotations["method"].lower()]
        for example in _examples(document, described):
            schema = operation.spec.output_schema
            cast = schema.cast(example)
            assert schema.cast(cast) == cast
            assert schema.check(schema.cast(example, "total"))
            normalised += 1
    assert normalised > 700


def _examples(document: dict[str, Any], described: dict[str, Any]) -> list[Any]:
    """The examples of the answer that the output schema is taken from."""
    for status in ("200", "201"):
        response = described.get("responses", {}).get(status)
        if response is not None:
            found = response.get("content", {}).get("application/json", {}).get("examples", {}).values()
            return [_target(document, example).get("value") for example in found]
    return []


def _target(document: Any, node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    for key in node["$ref"].removeprefix("#/").split("/"):
        document = document[key.replace("~1", "/").replace("~0", "~")]
    target: dict[str, Any] = document
    return target
