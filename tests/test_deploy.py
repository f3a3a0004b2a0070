"""The files of `deploy/`: options exist, systemd accepts the units, the image builds where a container tool works."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
CONTAINERFILE = DEPLOY / "Containerfile"
_INSTRUCTIONS = {"FROM", "COPY", "RUN", "USER", "WORKDIR", "ENV", "EXPOSE", "ENTRYPOINT", "CMD"}


def read_unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser


def options_of(command: str) -> set[str]:
    usage = [sys.executable, "-m", "operations", command, "--help", "--json"]
    described = subprocess.run(usage, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", json.dumps(json.loads(described))))


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def test_every_unit_stops_within_its_grace_and_has_no_more_rights_than_it_needs() -> None:
    assert {unit.name for unit in UNITS} == {
        "operations-hub.service",
        "operations-serve.service",
        "operations-worker@.service",
    }
    for unit in UNITS:
        parsed = read_unit(unit)
        assert parsed.sections() == ["Unit", "Service", "Install"]
        service = parsed["Service"]
        assert service["User"] == "operations"
        assert (service["NoNewPrivileges"], service["ProtectSystem"]) == ("yes", "strict")
        grace = re.search(r"--grace (\d+)", service["ExecStart"])
        assert grace is not None
        assert int(service["TimeoutStopSec"]) > int(grace[1])


def test_units_and_image_use_commands_and_options_that_exist() -> None:
    commands = [read_unit(unit)["Service"]["ExecStart"].split()[1:] for unit in UNITS]
    commands += [json.loads(rest) for name, rest in instructions() if name == "CMD"]
    assert {words[0] for words in commands} == {"hub", "serve", "worker"}
    for name, *words in commands:
        assert {word for word in words if word.startswith("-")} <= options_of(name), name


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # The program of the unit is not installed here: another one replaces it.
    text = unit.read_text().replace("/opt/operations/bin/ops", sys.executable)
    (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / unit.name)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if unit.stem.partition("@")[0] in line]
    assert complaints == []


def test_the_containerfile_is_well_formed() -> None:
    stages: list[str] = []
    for name, rest in instructions():
        assert name in _INSTRUCTIONS
        if name == "FROM":
            stages.append(rest.partition(" AS ")[2])
        elif name in ("CMD", "ENTRYPOINT"):
            assert isinstance(json.loads(rest), list)
        elif name == "COPY" and rest.startswith("--from="):
            assert rest.removeprefix("--from=").split()[0] in stages[:-1]
    assert instructions()[0][0] == "FROM"
    assert ("USER", "operations") in instructions()
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    assert {".git", ".venv*", "**/node_modules"} <= set(ignored)


def test_the_steps_of_the_image_have_their_inputs() -> None:
    steps = " ".join(rest for name, rest in instructions() if name == "RUN")
    extras = re.findall(r"/source\[([\w,]+)\]", steps)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras
    assert set(",".join(extras).split(",")) <= declared.keys()
    assert "npm ci" in steps
    assert (ROOT / "console" / "package-lock.json").is_file()
    scripts = json.loads((ROOT / "console" / "package.json").read_text())["scripts"]
    assert set(re.findall(r"npm run (\w+)", steps)) <= scripts.keys()
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    needed = ("src", "console", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
    assert [name for name in needed if not (ROOT / name).exists() or any(fnmatch(name, each) for each in ignored)] == []


def container_tool() -> str | None:
    """Return a tool that can build images here."""
    for tool in ("podman", "docker", "buildah"):
        if shutil.which(tool) and subprocess.run([tool, "info"], capture_output=True, check=False).returncode == 0:
            return tool
    return None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_image_builds_and_runs() -> None:
    tool = container_tool()
    if tool is None:
        pytest.skip("no container tool works here; the Containerfile was only checked for form")
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    if any(subprocess.run([tool, "pull", base], capture_output=True, check=False).returncode for base in bases):
        pytest.skip("the base images cannot be fetched here; the Containerfile was only checked for form")
    build = [tool, "build", "--quiet", "-f", str(CONTAINERFILE), "-t", "operations-test", str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=850)
    done = subprocess.run(
        [tool, "run", "--rm", "operations-test", "--help"], check=True, capture_output=True, text=True
    )
    assert "worker" in done.stdout


def test_the_page_shows_the_files() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    shown = re.findall(r'^--8<-- "(deploy/[^"]+)"$', page, re.M)
    assert len(shown) == 3
    assert all((ROOT / name).is_file() for name in shown)
