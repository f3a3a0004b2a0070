"""Ids that two sources have: the first source in the file gets them, whichever was opened last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.driving import Project

pytestmark = pytest.mark.slow


def greeter(source: str, *, name: str = "greet") -> str:
    return f"""
from operations import OperationContext, operation

@operation(id="hello.{name}", type="query")
async def greet() -> str:
    return "{source}"

@operation(id="{source}.relay", type="query")
async def relay(context: OperationContext) -> str:
    return (await context.env.hello.greet()).data
"""


def config(*names: str) -> str:
    return "".join(f'[sources.{name}]\npython = "./{name}"\n\n' for name in names)


@pytest.fixture
def two(tmp_path: Path) -> Project:
    """A project with a source, and the code of a second one that has the same id."""
    made = Project(tmp_path)
    made.write("operations.toml", config("own"))
    made.write("own/code.py", greeter("own"))
    made.write("extra/code.py", greeter("extra"))
    return made


def owner(project: Project, operation_id: str = "hello.greet") -> tuple[str, str]:
    """Return the source that `ops ls` shows for an id, and what a call of it returns."""
    listed = {entry["id"]: entry["source"] for entry in project.run("ls", "--json").data}
    return listed[operation_id], project.run("call", operation_id, "--json").data


def test_an_added_source_does_not_take_the_ids_of_others(two: Project) -> None:
    two.run("ls")
    added = two.run("add", "py", "extra", "./extra")
    assert "hello.greet was skipped: duplicate id hello.greet: already registered by source own" in added.err
    assert "1 operation\n" in added.out
    assert owner(two) == ("own", "own")
    # The only open source is extra, whose own hello.greet is hidden.
    assert two.run("call", "extra.relay", "--json").data == "own"


def test_an_id_in_the_namespace_of_an_api_belongs_to_the_first_source_without_a_cache(two: Project) -> None:
    document = {"openapi": "3.1.0", "info": {"title": "A", "version": "1"}, "paths": {"/greet": {"get": {}}}}
    document["paths"]["/greet"]["get"] = {"operationId": "greet", "responses": {}}  # type: ignore[index]
    two.write("api.json", json.dumps(document))
    api = '[sources.hello]\nopenapi = "./api.json"\nbase_url = "http://127.0.0.1:1"\n\n'
    two.write("operations.toml", config("own") + api)
    assert two.run("call", "hello.greet", "--json").data == "own"
    two.write("operations.toml", api + config("own"))
    assert two.run("call", "hello.greet", "--json").code == 6


def test_editing_a_file_does_not_change_the_owner_of_an_id(two: Project) -> None:
    two.write("operations.toml", config("own", "extra"))
    for name in ("extra", "own"):
        assert owner(two) == ("own", "own")
        two.write(f"{name}/code.py", greeter(name) + "# edited\n")
    assert owner(two) == ("own", "own")
    assert two.run("ls", "--refresh", "--json").data == two.run("ls", "--json").data


def test_a_free_id_goes_to_the_next_source(two: Project) -> None:
    two.write("operations.toml", config("own", "extra"))
    assert owner(two) == ("own", "own")
    two.write("own/code.py", greeter("own", name="other"))
    assert owner(two) == ("extra", "extra")
    two.write("own/code.py", greeter("own"))
    assert two.run("call", "hello.greet", "--json").data == "own"
    assert owner(two) == ("own", "own")
    assert two.run("rm", "own").code == 0
    assert owner(two) == ("extra", "extra")
