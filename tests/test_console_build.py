"""The build hook: npm builds the console into the wheel; without npm there is a wheel without a console."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NPM = """#!/bin/sh
echo "$@" >> "$PWD/../npm.log"
if [ "$1" = run ]; then
    mkdir -p ../src/operations/serving/console/assets/assets
    echo '<script src="/console/assets/a-1.js"></script>' > ../src/operations/serving/console/assets/index.html
    echo 1 > ../src/operations/serving/console/assets/assets/a-1.js
fi
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small project with the hook, the settings and the layout of ours."""
    folder = tmp_path / "checkout"
    package = folder / "src" / "operations" / "serving" / "console"
    package.mkdir(parents=True)
    (folder / "src" / "operations" / "__init__.py").write_text('__version__ = "1"\n')
    (folder / "src" / "_operations_entry.py").write_text("")
    (package / "__init__.py").write_text("")
    (folder / "console").mkdir()
    (folder / "console" / "package.json").write_text("{}")
    (folder / ".gitignore").write_text("src/operations/serving/console/assets/\n")
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def build(checkout: Path, *kinds: str, npm: bool) -> tuple[Path, str]:
    """Build with a stand-in for npm, or without any; returns the folder of the results and what was printed."""
    programs = checkout.parent / "programs"
    programs.mkdir(exist_ok=True)
    if npm:
        (programs / "npm").write_text(NPM)
        (programs / "npm").chmod(0o755)
    else:
        (programs / "npm").unlink(missing_ok=True)
    for name in ("sh", "mkdir", "git"):
        if (found := shutil.which(name)) and not (programs / name).exists():
            (programs / name).symlink_to(found)
    target = checkout.parent / "dist"
    command = [sys.executable, "-m", "build", *kinds, "--no-isolation", "--outdir", str(target), str(checkout)]
    environment = {**os.environ, "PATH": str(programs)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return target, done.stdout + done.stderr


def names_in(target: Path) -> list[str]:
    (wheel,) = target.glob("*.whl")
    return [name for name in zipfile.ZipFile(wheel).namelist() if "/assets/" in name]


def test_npm_builds_the_console_into_the_wheel(checkout: Path) -> None:
    target, _ = build(checkout, "--wheel", npm=True)
    prefix = "operations/serving/console/assets"
    assert sorted(names_in(target)) == [f"{prefix}/assets/a-1.js", f"{prefix}/index.html"]
    assert (checkout / "npm.log").read_text().splitlines() == ["ci", "run build"]
    build(checkout, "--wheel", npm=True)
    assert len((checkout / "npm.log").read_text().splitlines()) == 2  # what is current is not built again


def test_without_npm_there_is_a_warning_and_a_wheel(checkout: Path) -> None:
    target, printed = build(checkout, "--wheel", npm=False)
    assert names_in(target) == []
    assert "npm is not installed" in printed


def test_a_wheel_of_the_source_archive_needs_no_node(checkout: Path) -> None:
    target, _ = build(checkout, "--sdist", npm=True)
    (archive,) = target.glob("*.tar.gz")
    unpacked = checkout.parent / "unpacked"
    shutil.unpack_archive(archive, unpacked, filter="data")
    (source,) = unpacked.iterdir()
    assert not (source / "console").exists()
    target, printed = build(source, "--wheel", npm=False)
    assert "operations/serving/console/assets/index.html" in names_in(target)
    assert "npm is not installed" not in printed


def test_nothing_built_is_committed() -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "ls-files", "src/operations/serving/console/assets"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert listed.stdout == ""
