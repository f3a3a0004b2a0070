"""The catalogue cache: its contents, when it is used, and what it never contains."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from operations.config import Catalogue, load_catalogue, load_config, open_workspace, store_catalogue
from operations.config.cache import cache_path
from tests.config.files import write
from tests.sources.scanner.projects import greeting

DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "paths": {
        "/stock/{item}": {
            "get": {
                "operationId": "left",
                "summary": "What is left",
                "description": "How much is left.\n\nMore about it.",
                "tags": ["stock"],
                "parameters": [
                    {"name": "unit", "in": "query", "schema": {"type": "string"}},
                    {"name": "item", "in": "path", "required": True, "schema": {"type": "string"}},
                ],
                "responses": {"200": {"content": {"application/json": {"schema": {"type": "integer"}}}}},
            }
        },
    },
}
TEXT = """
    [sources.local]
    python = "ops"
    [sources.shop]
    openapi = "api.json"
    base_url = "${BASE:-http://localhost}"
    auth = { type = "bearer", token = "${TOKEN}" }
    """


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A project, and an environment with a separate cache directory."""
    write(tmp_path / "project", greeting(), "ops/hello.py")
    write(tmp_path / "project", json.dumps(DOCUMENT), "api.json")
    path = write(tmp_path / "project", TEXT)
    return path, {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TOKEN": "t0p-s3cret-t0ken"}


async def fill(path: Path, environ: Mapping[str, str], only: list[str] | None = None) -> Path:
    async with open_workspace(load_config(path, environ=environ), only=only) as workspace:
        stored = store_catalogue(workspace, environ=environ)
    assert stored is not None
    return stored


def read(path: Path, environ: Mapping[str, str]) -> Catalogue:
    catalogue = load_catalogue(path, environ=environ)
    assert catalogue is not None
    return catalogue


@pytest.mark.parametrize("text", ["{", json.dumps(DOCUMENT)], ids=["while half written", "after it was read"])
async def test_a_file_that_changes_while_its_source_is_opened_is_read_again(
    place: tuple[Path, dict[str, str]], text: str
) -> None:
    path, environ = place
    document = path.parent / "api.json"
    document.write_text(text)
    await fill(path, environ)
    assert read(path, environ).stale == []
    async with open_workspace(load_config(path, environ=environ)) as workspace:
        await asyncio.sleep(0.02)  # file times have the resolution of the system's timer
        document.write_text(json.dumps(DOCUMENT))
        store_catalogue(workspace, environ=environ)
    assert read(path, environ).stale == ["shop"]
    await fill(path, environ)
    assert read(path, environ).stale == []


async def test_a_catalogue_has_the_fields_of_a_listing(place: tuple[Path, dict[str, str]]) -> None:
    path, environ = place
    assert load_catalogue(path, environ=environ) is None
    await fill(path, environ)
    catalogue = read(path, environ)
    assert [(entry.id, entry.type, entry.source) for entry in catalogue.entries] == [
        ("hello.greet", "query", "local"),
        ("shop.left", "query", "shop"),
    ]
    left = catalogue.get("shop.left")
    assert left is not None
    assert (left.title, left.description, left.tags) == ("What is left", "How much is left.", ["stock"])
    assert left.fields == ["item", "unit"]
    assert catalogue.source_of("shop.left") == "shop"
    assert catalogue.source_of("nobody.s") is None
    schemas = catalogue.schemas("shop.left")
    assert schemas is not None
    assert schemas[0]["required"] == ["item"]
    assert schemas[1] == {"type": "integer"}
    spec = catalogue.spec("hello.greet")
    assert spec is not None
    assert (spec["name"], spec["namespace"]) == ("greet", "hello")
    assert catalogue.spec("nobody.s") is None
    assert catalogue.stale == []
    assert {name: source.operations for name, source in catalogue.sources.items()} == {"local": 1, "shop": 1}


async def test_it_is_private_and_holds_no_secret(place: tuple[Path, dict[str, str]]) -> None:
    path, environ = place
    stored = await fill(path, environ)
    assert stored == cache_path(path, environ)
    assert stored.stat().st_mode & 0o777 == 0o600
    assert stored.parent.stat().st_mode & 0o777 == 0o700
    assert b"t0p-s3cret-t0ken" not in stored.read_bytes()
    assert [name.name for name in stored.parent.iterdir()] == [stored.name]


async def test_the_cache_of_a_changed_configuration_is_not_used(place: tuple[Path, dict[str, str]]) -> None:
    path, environ = place
    await fill(path, environ)
    text = path.read_text()
    os.utime(path, (1, 1))
    assert load_catalogue(path, environ=environ) is not None
    path.write_text(text + "\n# a comment\n")
    assert load_catalogue(path, environ=environ) is None
    path.write_text(text)
    assert load_catalogue(path, environ=environ) is not None
    path.unlink()
    assert load_catalogue(path, environ=environ) is None


async def test_a_changed_variable_invalidates_the_cache_unless_it_is_secret(place: tuple[Path, dict[str, str]]) -> None:
    path, environ = place
    environ = {**environ, "BASE": "http://here"}
    await fill(path, environ)
    assert load_catalogue(path, environ={**environ, "TOKEN": "another"}) is not None
    assert load_catalogue(path, environ={**environ, "BASE": "http://elsewhere"}) is None


async def test_a_source_whose_files_changed_is_stale(place: tuple[Path, dict[str, str]]) -> None:
    path, environ = place
    await fill(path, environ)
    write(path.parent, greeting("other words"), "ops/hello.py")
    assert read(path, environ).stale == ["local"]
    await fill(path, environ, only=["local"])
    assert read(path, environ).stale == []
    write(path.parent, greeting(), "ops/more.py")
    assert read(path, environ).stale == ["local"]
    os.utime(path.parent / "api.json", (1, 1))
    assert read(path, environ).stale == ["local", "shop"]


async def test_a_changed_file_that_a_document_refers_to_invalidates_the_cache(
    place: tuple[Path, dict[str, str]],
) -> None:
    path, environ = place
    document = json.loads(json.dumps(DOCUMENT))
    operation = document["paths"]["/stock/{item}"]["get"]
    operation["parameters"].append({"$ref": "parts/parameters.json#/page"})
    operation["parameters"].append({"$ref": "parts/missing.json#/size"})
    write(path.parent, json.dumps(document), "api.json")
    page = {"name": "page", "in": "query", "schema": {"$ref": "more/number.json"}}
    write(path.parent, json.dumps({"page": page}), "parts/parameters.json")
    write(path.parent, '{"type": "integer"}', "parts/more/number.json")
    await fill(path, environ)
    assert read(path, environ).stale == []
    for name in ("parts/parameters.json", "parts/more/number.json"):
        os.utime(path.parent / name, (1, 1))
        assert read(path, environ).stale == ["shop"], name
        await fill(path, environ)
        assert read(path, environ).stale == []
    write(path.parent, json.dumps({"size": {**page, "name": "size"}}), "parts/missing.json")
    assert read(path, environ).stale == ["shop"]


async def test_unopened_sources_keep_their_cached_entries(place: tuple[Path, dict[str, str]]) -> None:
    path, environ = place
    await fill(path, environ)
    await fill(path, environ, only=["local"])
    catalogue = read(path, environ)
    assert [entry.id for entry in catalogue.entries] == ["hello.greet", "shop.left"]
    assert catalogue.schemas("shop.left") is not None
    (path.parent / "api.json").unlink()
    await fill(path, environ)
    catalogue = read(path, environ)
    assert [entry.id for entry in catalogue.entries] == ["hello.greet", "shop.left"]
    assert (catalogue.sources["shop"].state, catalogue.sources["shop"].operations) == ("failed", 1)
    assert "api.json: No such file" in str(catalogue.sources["shop"].problem)


async def test_a_damaged_file_is_as_none(place: tuple[Path, dict[str, str]]) -> None:
    path, environ = place
    stored = await fill(path, environ)
    whole = stored.read_bytes()
    for damaged in (
        b"",
        b"x",
        whole[:40],
        whole[:-1],
        whole[:60] + b"\xff" * 200,
        b"\x00" * len(whole),
        whole[:23] + b"\xff" * 8,
    ):
        stored.write_bytes(damaged)
        catalogue = load_catalogue(path, environ=environ)
        if catalogue is not None:
            # Only the specs at its end are missing.
            assert damaged == whole[:-1]
            assert catalogue.spec("shop.left") is None
    await fill(path, environ)
    assert load_catalogue(path, environ=environ) is not None


async def test_an_unusable_cache_directory_is_not_an_error(place: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    path, environ = place
    (tmp_path / "cache").write_text("a file where the folder should be")
    async with open_workspace(load_config(path, environ=environ)) as workspace:
        assert store_catalogue(workspace, environ=environ) is None


def test_reading_it_imports_nothing_of_the_sources() -> None:
    code = (
        "import sys, operations; from pathlib import Path; before = set(sys.modules);"
        "from operations.config.cache import load_catalogue; from operations.config.trust import find_config;"
        "load_catalogue(Path('/nowhere/operations.toml')); print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [name for name in run.stdout.split() if name.startswith("operations")] == [
        "operations.config",
        "operations.config.cache",
        "operations.config.trust",
        "operations.errors",
        "operations.local_files",
    ]
    assert not {"tomllib", "asyncio.subprocess", "importlib.metadata", "mcp", "pyreqwest"} & set(run.stdout.split())


def test_the_barrel_of_config_is_complete() -> None:
    import operations.config

    assert sorted(operations.config.__all__) == operations.config.__all__
    for name in operations.config.__all__:
        assert getattr(operations.config, name) is not None
    with pytest.raises(AttributeError, match="nothing_here"):
        operations.config.nothing_here  # noqa: B018
