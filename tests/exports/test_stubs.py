from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from operations import OperationContext, OperationRegistry, OperationType, build_env
from operations.exports.python_types import TypeWriter
from operations.exports.stubs import make_stubs, write_stubs
from operations.testing import stub_operation
from tests.documents import documents, github, manifest, registry_of

NAMES = [
    stub_operation("shop.quote", returns=lambda input: input),
    stub_operation("shop.repos/get-all", returns=lambda input: input),
    stub_operation("shop.a-b", returns="-"),
    stub_operation("shop.a/b", returns="/"),
    stub_operation("shop.c_d", returns="_"),
    stub_operation("shop.c-d", returns="-"),
    stub_operation("shop.import", returns=1),
    stub_operation("shop.7up", returns=1),
    stub_operation("shop.deep.find", returns=1),
    stub_operation("shop.deep", returns=1),
    stub_operation("my-shop.list", returns=1),
]


def check(tool: str, folder: Path, files: Sequence[str]) -> list[str]:
    """Return the errors that mypy or pyright reports, as `file:line`."""
    base = [sys.executable, "-m", tool]
    options = ["--strict", "--no-error-summary", "--cache-dir", str(folder / ".cache")] if tool == "mypy" else []
    if tool == "pyright":
        options = ["--pythonpath", sys.executable]
    done = subprocess.run([*base, *options, *files], cwd=folder, capture_output=True, text=True, check=False)
    return [
        f"{Path(found[1]).name}:{found[2]}"
        for found in re.finditer(r"^\s*(\S+?\.pyi?):(\d+)(?::\d+)?(?: -|:) error", done.stdout, re.M)
    ]


@pytest.mark.parametrize("tool", ["mypy", "pyright"])
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_checkers_find_planted_mistakes_in_calls_of_github(tool: str, tmp_path: Path) -> None:
    stubs = make_stubs((await github()).list())
    assert stubs.unreachable == {}
    assert sum(map(len, stubs.files.values())) < 1_200_000
    write_stubs(stubs, tmp_path / "operations_env")
    (tmp_path / "good.py").write_text(
        "from operations import OperationContext\n"
        "from operations.config import Workspace\n"
        "from operations_env import Env\n\n"
        "async def good(context: OperationContext, workspace: Workspace) -> str:\n"
        "    env: Env = context.env\n"
        "    other: Env = workspace.env\n"
        "    found = await env.github.repos_get(owner='a', repo='b')\n"
        "    name: str = found.data['full_name']\n"
        "    await other.github.issues_create(owner='a', repo='b', title='t', labels=['x'])\n"
        "    await env['github']['repos/get']({'owner': 'a', 'repo': 'b'})\n"
        "    return name\n"
    )
    (tmp_path / "bad.py").write_text(
        "from operations_env import Env\n\n"
        "async def bad(env: Env) -> None:\n"
        "    await env.github.repos_get(owner=1, repo='b')\n"
        "    await env.github.repos_get(owner='a')\n"
        "    await env.github.repos_get(owner='a', repo='b', nme=1)\n"
        "    print((await env.github.repos_get(owner='a', repo='b')).data['ful_name'])\n"
        "    await env.github.repos_gte(owner='a', repo='b')\n"
    )
    assert check(tool, tmp_path, ["good.py", "bad.py", "operations_env"]) == [f"bad.py:{line}" for line in range(4, 9)]


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_stubs_of_every_document_pass(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = documents()
    caplog.set_level(logging.ERROR, "operations.schema")
    registry = OperationRegistry()
    for entry in manifest():
        namespace = re.sub(r"[^a-z0-9]", "_", entry["name"])
        registry.register_all((await registry_of(folder / entry["file"], namespace)).operations.values())
    write_stubs(make_stubs(registry.list()), tmp_path / "operations_env")
    assert check("mypy", tmp_path, ["operations_env"]) == []
    assert check("pyright", tmp_path, ["operations_env"]) == []


def test_the_same_operations_give_the_same_files() -> None:
    specs = [made.spec for made in NAMES]
    assert make_stubs(specs).files == make_stubs(reversed(specs)).files


def test_one_file_changes_when_one_namespace_does(tmp_path: Path) -> None:
    folder = tmp_path / "operations_env"
    one, two = stub_operation("a.x").spec, stub_operation("b.y").spec
    assert write_stubs(make_stubs([one, two]), folder) == ["__init__.py", "__init__.pyi", "a.pyi", "b.pyi"]
    assert write_stubs(make_stubs([one, two]), folder) == []
    assert write_stubs(make_stubs([one, two, stub_operation("b.z").spec]), folder) == ["b.pyi"]
    assert write_stubs(make_stubs([one]), folder) == ["__init__.pyi", "b.pyi"]
    assert not (folder / "b.pyi").exists()


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    with pytest.raises(FileExistsError, match=r"mine\.py was not written by ops stubs"):
        write_stubs(make_stubs([]), tmp_path)


def test_names_that_collide_or_are_not_identifiers_are_listed() -> None:
    stubs = make_stubs(made.spec for made in NAMES)
    assert set(stubs.unreachable) == {"shop.a-b", "shop.a/b", "shop.c-d", "shop.import", "shop.7up", "shop.deep"}
    text = stubs.files["shop.pyi"]
    assert "shop.7up" in text
    assert "async def repos_get_all(" in text
    assert "deep: shop__deep.Namespace" in text
    assert "def my_shop(self)" in stubs.files["__init__.pyi"]
    for name, content in stubs.files.items():
        ast.parse(content, name)


async def test_env_has_the_names_of_the_stubs() -> None:
    registry = OperationRegistry(NAMES)
    env: Any = build_env(registry, OperationContext())
    assert (await env.shop.repos_get_all(x=1)).data == {"x": 1}
    assert (await env.shop.c_d()).data == "_"
    assert (await env["shop"]["a/b"]()).data == "/"
    assert (await env.my_shop.list()).data == 1
    assert (await env.shop.deep.find()).data == 1
    assert "repos_get_all" in dir(env.shop)


def method(input_schema: Any, output_schema: Any = True, kind: OperationType = OperationType.QUERY) -> str:
    spec = stub_operation("a.do", input_schema=input_schema, output_schema=output_schema, type=kind).spec
    return next(line for line in make_stubs([spec]).files["a.pyi"].splitlines() if "def do" in line).strip()


def test_parameters() -> None:
    schema = {
        "type": "object",
        "properties": {"b": {"type": "integer"}, "a": {"enum": ["x", None]}, "from": {"type": "string"}},
        "required": ["a"],
    }
    assert method(schema).startswith(
        "async def do(self, input: dict[str, Any] = ..., /, *, a: Literal['x'] | None, b: int = ...) ->"
    )
    assert "(self, input_data: dict[str, Any] = ..., /, *, input: Any = ...)" in method(
        {"properties": {"input": {}, "a b": {}}}
    )
    assert "(self)" in method({"type": "object", "additionalProperties": False})
    assert "input: list[str] = ..., /" in method({"type": "array", "items": {"type": "string"}})
    assert "-> AsyncIterator[ResponseEnvelope[int]]" in method(True, {"type": "integer"}, OperationType.SUBSCRIPTION)


@pytest.mark.parametrize(
    ("schema", "annotation"),
    [
        ({"type": ["string", "null"]}, "str | None"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"additionalProperties": {"type": "number"}, "type": "object"}, "dict[str, float]"),
        (
            {"anyOf": [{"type": "null"}, {"type": "integer"}, {"enum": ["a | b", "c'd"]}]},
            "int | Literal['a | b', \"c'd\"] | None",
        ),
        ({"enum": [1.5, "x"]}, "str | float"),
        ({"const": True}, "Literal[True]"),
        ({}, "Any"),
        ({"anyOf": [{"type": "string"}, {}]}, "Any"),
        ({"type": "string", "format": "binary"}, "str | bytes"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}, "list[Any]"),
    ],
)
def test_annotations(schema: dict[str, Any], annotation: str) -> None:
    assert TypeWriter().annotate(schema, "x") == annotation


def test_records() -> None:
    types = TypeWriter(["Tree"])
    tree = {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "description": 'A "tree"\\',
                "properties": {"left": {"$ref": "#/$defs/tree"}, "size": {"type": "integer"}},
                "required": ["size"],
            }
        },
    }
    assert types.annotate(tree, "x") == "Tree2"
    assert types.annotate(tree, "y") == "Tree2"
    assert types.records["Tree2"].splitlines() == [
        'Tree2 = TypedDict("Tree2", {',
        "    'left': NotRequired[Tree2],",
        "    'size': int,",
        "})",
        '"""A \'tree\'/"""',
    ]
    assert types.annotate({"type": "object", "properties": {"": {}}}, "empty") == "dict[str, Any]"
    odd = {"properties": {"a-b": {"type": "string"}, "": {}}}
    assert types.annotate(odd, "odd") == "Odd"
    assert types.records["Odd"] == "Odd = TypedDict(\"Odd\", {\n    'a-b': str,\n}, total=False)\n"
    assert types.annotate(odd, "other") == "Odd"


def test_equal_records_are_one_and_follow_those_that_they_use() -> None:
    def user(name: str) -> dict[str, Any]:
        return {"type": "object", "description": name, "properties": {"id": {"type": "integer"}}}

    def tree(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"next": {"$ref": f"#/$defs/{name}"}, "size": {"type": "integer"}}}

    types = TypeWriter()
    issue = {
        "$ref": "#/$defs/issue",
        "$defs": {
            "issue": {
                "type": "object",
                "properties": {
                    name: {"$ref": f"#/$defs/{name}"} for name in ("author", "closer", "tree", "list", "author_2")
                },
            },
            "author": user("Who opened it."),
            "closer": user("Who closed it."),
            "author_2": {"type": "object", "properties": {"id": {"type": "string"}}},
            "tree": tree("tree"),
            "list": {**tree("list"), "properties": {**tree("list")["properties"], "tree": {"$ref": "#/$defs/tree"}}},
        },
    }
    assert types.annotate(issue, "x") == "Issue"
    assert list(types.records) == ["Author", "Tree", "List", "Author2", "Issue"]
    assert "'closer': Author," in types.records["Issue"]
    assert "'author_2': Author2," in types.records["Issue"]
    assert "'next': List," in types.records["List"]
    assert "Who opened it." in types.records["Author"]


TYPES = ("str", "int", "list", "dict", "bool", "float", "bytes", "Any", "Literal", "NotRequired", "AsyncIterator")
TREE = {
    "type": "object",
    "properties": {
        "list": {"type": "array", "items": {"type": "integer"}},
        "dict": {"type": "object"},
        "kind": {"enum": ["list", "dict"]},
        "next": {"$ref": "#"},
    },
    "required": ["list"],
}


@pytest.mark.parametrize("tool", ["mypy", "pyright"])
def test_operations_and_namespaces_may_have_the_names_of_types(tool: str, tmp_path: Path) -> None:
    names = (*TYPES, "ResponseEnvelope", "Namespace", "TreeInput", "property", "print", "match", "type")
    made = [stub_operation(f"shop.{name}", input_schema=TREE, output_schema=TREE) for name in names]
    made.append(stub_operation("shop.watch", output_schema=TREE, type=OperationType.SUBSCRIPTION))
    spaces = (*TYPES, "Env", "env", "__init__", "_shop", "Shop", "property", "typing", "operations", "shop.list")
    made += [stub_operation(f"{name}.get", input_schema=TREE, output_schema=TREE) for name in spaces]
    stubs = make_stubs(each.spec for each in made)
    assert set(stubs.unreachable) == {"__init__.*", "_shop.*", "property.*", "shop.list"}
    assert len({name.lower() for name in stubs.files}) == len(stubs.files)
    write_stubs(stubs, tmp_path / "operations_env")
    (tmp_path / "use.py").write_text(
        "from operations_env import Env\n\n"
        "async def use(env: Env) -> list[int]:\n"
        "    found = await env.shop.dict(list=[1], kind='list')\n"
        "    await env.Env.get(list=[])\n"
        "    await env.typing.get(list=['1'])\n"
        "    await env.shop.Any(list=[1], next={'list': 'x'})\n"
        "    await env.shop.list.get(list=[1], kind='_list')\n"
        "    return found.data['list']\n"
    )
    assert check(tool, tmp_path, ["use.py", "operations_env"]) == [f"use.py:{line}" for line in (6, 7, 8)]


def test_hostile_descriptions_stay_in_their_docstrings() -> None:
    hostile = 'x"""\nimport os\n"""'
    schema = {"type": "object", "properties": {'a"): pass #': {"enum": ['"""\n']}}, "description": hostile}
    made = stub_operation("a.b", description=hostile, input_schema=schema, output_schema=schema, title=hostile)
    text = make_stubs([made.spec]).files["a.pyi"]
    tree = ast.parse(text)
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
