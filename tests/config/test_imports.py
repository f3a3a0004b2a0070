"""Imports and changes of `sys.path` when a configuration is opened."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from operations.config import load_config, open_workspace
from tests.config.files import write
from tests.sources.scanner.projects import greeting


@pytest.fixture(autouse=True)
def import_path() -> Iterator[list[str]]:
    """The import path before; afterwards it is restored, with the modules that were imported."""
    path, modules = list(sys.path), set(sys.modules)
    yield path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


async def test_a_directory_changes_no_import_path(tmp_path: Path, import_path: list[str]) -> None:
    write(tmp_path, greeting(), "ops/hello.py")
    async with open_workspace(load_config(write(tmp_path, "[sources.a]\npython = 'ops'"))) as workspace:
        assert [spec.id for spec in workspace.registry.list()] == ["hello.greet"]
    assert sys.path == import_path


async def test_a_module_by_its_name_is_found_beside_the_file(tmp_path: Path, import_path: list[str]) -> None:
    write(tmp_path, "", "beside_pkg/__init__.py")
    write(tmp_path, "WORD = 'hi'", "beside_pkg/words.py")
    write(tmp_path, "from beside_pkg.words import WORD\n" + greeting(), "beside_pkg/greetings.py")
    path = write(tmp_path, "[sources.a]\npython = 'beside_pkg.greetings'")
    async with open_workspace(load_config(path)) as workspace:
        assert [spec.id for spec in workspace.registry.list()] == ["beside_pkg.greetings.greet"]
    assert sys.path == [*import_path, str(tmp_path)]


async def test_pythonpath_is_added_only_if_configured(tmp_path: Path, import_path: list[str]) -> None:
    write(tmp_path, "WORD = 'hi'", "project_words.py")
    write(tmp_path, "from project_words import WORD\n" + greeting(), "ops/hello.py")
    text = "[sources.a]\npython = './ops'\n"
    async with open_workspace(load_config(write(tmp_path, text))) as workspace:
        (skipped,) = workspace.reports[0].skipped
        assert f'set pythonpath = ["."] for this source to import from {tmp_path}' in skipped.reason
    assert sys.path == import_path
    async with open_workspace(load_config(write(tmp_path, f"{text}pythonpath = ['.']"))) as workspace:
        assert [spec.id for spec in workspace.registry.list()] == ["hello.greet"]
    assert sys.path == [str(tmp_path), *import_path]


SOURCES = """
[sources.own]
python = "./ops"

[sources.files]
command = "npx"

[sources.api]
openapi = "https://example.com/openapi.json"
"""


def test_a_call_of_a_python_operation_imports_no_other_kind_of_source(tmp_path: Path) -> None:
    write(tmp_path, greeting(), "ops/hello.py")
    write(tmp_path, SOURCES)
    code = (
        "import sys\nfrom operations.cli.main import main\n"
        "code = main(['call', 'hello.greet', 'who=Ada'])\n"
        "print(*sys.modules)\n"
        "sys.exit(code)"
    )
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "", "OPERATIONS_TRUST": "1"}
    cached = (
        "import asyncio\nfrom operations.config import *\n"
        "async def fill():\n"
        "    async with open_workspace(load_config('operations.toml'), only=['own']) as workspace:\n"
        "        store_catalogue(workspace)\n"
        "asyncio.run(fill())"
    )
    for program in (cached, code):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    result, imported = done.stdout.splitlines()
    assert result == '"hello Ada"'
    modules = imported.split()
    sources = [name for name in modules if name.startswith("operations.sources.")]
    assert sources
    assert [name for name in sources if not name.startswith("operations.sources.scanner")] == []
    unneeded = ("mcp", "mcp_types", "pydantic", "httpx2", "pyreqwest", "yaml", "starlette", "uvicorn", "picows", "jq")
    own = ("operations.serving", "operations.calls", "operations.exports", "operations.http", "operations.pubsub")
    assert [name for name in modules if name in unneeded or name.startswith(own)] == []


def test_help_imports_neither_asyncio_nor_msgspec() -> None:
    code = (
        "import sys\nfrom operations.cli.main import main\ncode = main(['--help'])\n"
        "print([name for name in ('asyncio', 'msgspec', 'jsonschema_rs', 'tomllib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
