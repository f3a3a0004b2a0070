"""Documents of the public set against a mock server that checks each request against the same document."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from operations import CallError, HTTPResponseMeta, OperationRegistry
from operations.sources.openapi import HTTPAuth, HTTPServiceConfig, from_openapi_file
from tests.node_peers import npm_binary
from tests.sources.openapi.inputs import fitting_input

FOLDER = os.environ.get("OPERATIONS_TEST_DOCUMENTS")
DOCUMENTS = ["petstore.yaml", "museum.yaml", "readme-train-travel.yaml"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def prism(document: Path) -> Iterator[str]:
    """A mock of the document's API on a free port."""
    port = free_port()
    command = [npm_binary("prism"), "mock", "--host", "127.0.0.1", "--port", str(port), "--errors", str(document)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "is listening on" in line:
                break
        else:
            raise AssertionError("prism ended before it listened")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate()


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
    with prism(document) as url:
        auth = {
            "petstore_auth": HTTPAuth(type="bearer", token="t"),
            "api_key": HTTPAuth(type="api_key", token="k"),
            "MuseumPlaceholderAuth": HTTPAuth(type="basic", username="u", password="p"),
            "OAuth2": HTTPAuth(type="bearer", token="t"),
        }
        operations = await from_openapi_file(document, HTTPServiceConfig(namespace="mock", base_url=url, auth=auth))
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
