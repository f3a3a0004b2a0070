"""The public API documents of the tests: those of OPERATIONS_TEST_DOCUMENTS, and two that `make tests` fetches."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from operations import OperationRegistry
from operations.sources.openapi import HTTPServiceConfig, from_openapi_file

FOLDER = os.environ.get("OPERATIONS_TEST_DOCUMENTS")
FETCHED = Path(sys.prefix) / "documents"
STRIPE = Path(os.environ.get("OPERATIONS_TEST_STRIPE", FETCHED / "stripe.com.json"))


def manifest() -> list[dict[str, Any]]:
    """Return the listed documents; none if the directory is not configured."""
    if not FOLDER:
        return []
    listed: list[dict[str, Any]] = json.loads((Path(FOLDER) / "manifest.json").read_text())["specs_list"]
    return listed


@cache
def _extracted() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="operations-documents-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(Path(str(FOLDER)) / "documents.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def documents() -> Path:
    """Return the directory of the documents; skip the test, with the reason, if they are missing."""
    if not FOLDER:
        pytest.skip("OPERATIONS_TEST_DOCUMENTS names no folder: the public documents are not here and were not run")
    return _extracted()


def any_github() -> Path:
    """Return GitHub's document, which may be the older one that `make tests` fetches; skip the test without either."""
    fetched = FETCHED / "api.github.com.json"
    return fetched if not FOLDER and fetched.exists() else documents() / "specs" / "github-api.json"


async def github() -> OperationRegistry:
    """Return a registry of GitHub's operations."""
    return await registry_of(documents() / "specs" / "github-api.json", "github")


def has_stripe() -> bool:
    """Whether Stripe's document is here."""
    return STRIPE.exists()


async def stripe() -> OperationRegistry:
    """Return a registry of Stripe's operations."""
    if not has_stripe():
        pytest.skip(f"no Stripe API document at {STRIPE} (`make tests` fetches it): its questions were not asked")
    return await registry_of(STRIPE, "stripe")


async def registry_of(file: Path, namespace: str) -> OperationRegistry:
    """Return a registry of the operations of a document."""
    config = HTTPServiceConfig(namespace=namespace, base_url="http://api.test/v1")
    return OperationRegistry(await from_openapi_file(file, config))
