"""The wheel installs into an empty environment, imports there, and its command runs there."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent

FLAWED = {
    "pyjwt": "2.13.0",  # accepts several spellings of one token; a deeply nested header raises RecursionError
    "python-multipart": "0.0.28",  # takes seconds for a Content-Type of many semicolons
}


@pytest.mark.parametrize(("name", "version"), FLAWED.items())
def test_versions_of_libraries_with_known_flaws_are_not_installed(name: str, version: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    required = [Requirement(each) for extra in extras.values() for each in extra]
    found = [each for each in required if each.name == name]
    assert found
    assert not any(each.specifier.contains(version) for each in found)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wheel_installs_into_an_empty_environment_and_imports(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert "operations/py.typed" in zipfile.ZipFile(wheel).namelist()
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "empty"], check=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    code = (
        "import asyncio, operations\n"
        "@operations.operation\n"
        "async def add(a: int, b: int) -> int: return a + b\n"
        "registry = operations.OperationRegistry([add])\n"
        "print(asyncio.run(registry.execute(add, {'a': 1, 'b': 2})).data)\n"
    )
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "3\n"
    ops = str(tmp_path / "empty" / "bin" / "ops")
    subprocess.run([ops, "--help"], check=True, capture_output=True, cwd=tmp_path)
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    subprocess.run([ops, "init"], check=True, capture_output=True, cwd=tmp_path, env=environment)
    call = [ops, "call", "hello.greet", "name=Ada"]
    done = subprocess.run(call, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout == '{"greeting":"Hello, Ada!"}\n'
    freeze = [python, "-m", "pip", "freeze"]
    installed = subprocess.run(freeze, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    names = {re.split("==| @", line)[0].replace("_", "-") for line in installed.splitlines()}
    assert names == {"jsonschema-rs", "msgspec", "operations"}
