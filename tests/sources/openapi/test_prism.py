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
from tests.sources.openapi.prism import prism

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
