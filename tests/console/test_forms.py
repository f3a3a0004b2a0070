"""The forms of real operations: each creates an input that the server accepts, or reports what is missing.

The forms are filled headless, by the page's own code, for all of GitHub's operations and a sample of the others.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from operations import OperationRegistry, Schema
from operations.sources.openapi import HTTPServiceConfig, from_openapi_file
from tests.documents import documents, github, manifest

CONSOLE = Path(__file__).parent.parent.parent / "console"
SAMPLE = 500
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _fill(schemas: dict[str, Schema], folder: Path) -> list[dict[str, Any]]:
    """Return the inputs that the page's forms create for these schemas."""
    npx = shutil.which("npx")
    if npx is None or not (CONSOLE / "node_modules" / "vitest").exists():
        pytest.skip("the console's tools are not installed: `make console` does it, or `npm ci` in console")
    given, wanted = folder / "schemas.json", folder / "inputs.jsonl"
    given.write_text(json.dumps([{"id": id, "schema": schema.document} for id, schema in schemas.items()]))
    environment = {**os.environ, "CONSOLE_SCHEMAS": str(given), "CONSOLE_INPUTS": str(wanted)}
    command = [npx, "vitest", "run", "tests/corpus.test.ts"]
    done = subprocess.run(command, cwd=CONSOLE, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in wanted.read_text().splitlines()]


def _check(schemas: dict[str, Schema], filled: list[dict[str, Any]]) -> tuple[int, list[str]]:
    """Return how many examples the server accepts, and the ids whose example only the form accepts."""
    accepted, silent = 0, []
    assert [each["id"] for each in filled] == list(schemas)
    for each in filled:
        if schemas[each["id"]].check(each["input"]):
            accepted += 1
        elif not each["problems"]:
            silent.append(each["id"])
    return accepted, silent


async def test_every_github_form_gives_an_input_or_lists_the_missing_fields(tmp_path: Path) -> None:
    registry = await github()
    schemas = {spec.id: spec.input_schema for spec in registry.list()}
    accepted, silent = _check(schemas, _fill(schemas, tmp_path))
    assert len(schemas) == 1_223
    assert silent == []
    assert accepted >= 1_200


async def test_the_forms_of_other_documents_do_too(tmp_path: Path) -> None:
    folder = documents()
    schemas: dict[str, Schema] = {}
    for number, listed in enumerate(manifest()):
        if listed["file"].endswith("github-api.json"):
            continue
        config = HTTPServiceConfig(namespace=f"d{number}", base_url="http://api.test")
        try:
            operations = await from_openapi_file(folder / listed["file"], config)
        except Exception:  # noqa: BLE001  # some documents are broken on purpose, and tested elsewhere
            continue
        schemas |= {spec.id: spec.input_schema for spec in OperationRegistry(operations).list()}
    chosen = random.Random(23).sample(sorted(schemas), SAMPLE)
    sample = {id: schemas[id] for id in chosen}
    accepted, silent = _check(sample, _fill(sample, tmp_path))
    assert silent == []
    assert accepted >= 440
