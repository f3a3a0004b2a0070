"""The console as `ops serve` and `ops hub` start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from operations.cli.main import main
from operations.serving.app import ServedApp

OPS = [sys.executable, "-m", "operations"]
MODULE = '''
from operations import operation

@operation(type="query")
async def quote(item: str) -> str:
    """Return a price."""
    return f"{item}: 3"
'''
CONFIGURATION = """
[sources.shop]
python = "shop.py"

[sources.gone]
command = "/nothing/is/here"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(MODULE)
    (tmp_path / "operations.toml").write_text(CONFIGURATION)
    return tmp_path


@contextmanager
def running(folder: Path, event: str, *words: str, token: str = "") -> Iterator[dict[str, Any]]:
    """A long-running command; yields the first event that it prints."""
    kept = {name: value for name, value in os.environ.items() if name != "OPERATIONS_TOKEN"}
    environment = {**kept, "OPERATIONS_TRUST": "1", **({"OPERATIONS_TOKEN": token} if token else {})}
    command = [*OPS, *words, "--json"]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield next(found for line in process.stdout if (found := json.loads(line))["event"] == event)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def fetch(url: str, token: str = "") -> tuple[int, bytes]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_served_configuration_has_a_console_with_its_sources(folder: Path) -> None:
    with running(folder, "serving", "serve", "--http", "0") as event:
        api = f"{event['url']}/console/api"
        assert fetch(f"{event['url']}/console/")[0] == 200
        catalogue = json.loads(fetch(f"{api}/catalogue")[1])
        states = {each["name"]: each for each in catalogue["sources"]}
        assert (states["shop"]["kind"], states["shop"]["state"], states["shop"]["count"]) == ("python", "ready", 1)
        assert states["gone"]["state"] == "failed"
        assert states["gone"]["reason"]
        assert catalogue["operations"][0]["source"] == "shop"
        assert fetch(f"{event['url']}/shop/quote?item=tea")[0] == 200
        assert len(json.loads(fetch(f"{api}/calls")[1])["calls"]) == 1
        assert b'operation="shop.quote"' in fetch(f"{event['url']}/metrics")[1]


@pytest.mark.parametrize("way", ["option", "setting"])
def test_the_console_can_be_left_out(folder: Path, way: str) -> None:
    words = ["--no-console"] if way == "option" else []
    if way == "setting":
        (folder / "operations.toml").write_text(f"{CONFIGURATION}\n[serve]\nconsole = false\nmetrics = false\n")
    with running(folder, "serving", "serve", "--http", "0", *words) as event:
        assert fetch(f"{event['url']}/console/")[0] == 404
        assert fetch(f"{event['url']}/metrics")[0] == (404 if way == "setting" else 200)


def test_the_only_token_is_that_of_an_operator(folder: Path) -> None:
    with running(folder, "serving", "serve", "--http", "0", token="s3cret") as event:
        api = f"{event['url']}/console/api"
        assert fetch(f"{api}/session")[0] == 401
        session = json.loads(fetch(f"{api}/session", "s3cret")[1])
        assert session["identity"]["id"] == "operator"
        assert "audit" in session["features"]
        assert fetch(f"{event['url']}/metrics")[0] == 401
        assert fetch(f"{event['url']}/metrics", "s3cret")[0] == 200


def test_a_hub_has_a_console_with_its_workers(folder: Path) -> None:
    words = ("hub", "--port", "0", "--console", "127.0.0.1:0", "--serve")
    with running(folder, "console", *words, token="s3cret") as event:
        page = event["url"]
        assert fetch(page)[0] == 200
        assert fetch(f"{page}api/session")[0] == 401
        session = json.loads(fetch(f"{page}api/session", "s3cret")[1])
        assert session["server"]["kind"] == "hub"
        workers = json.loads(fetch(f"{page}api/workers", "s3cret")[1])["workers"]
        assert [each["name"] for each in workers] == ["hub"]


def test_the_console_of_a_hub_waits_for_running_calls_as_long_as_the_option_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ServedApp] = []

    class Unwilling:
        def __init__(self, application: ServedApp, address: str) -> None:
            made.append(application)

        async def __aenter__(self) -> None:
            raise OSError("enough was seen")

        async def __aexit__(self, *raised: object) -> None: ...

    monkeypatch.setattr("operations.serving.server.HTTPServer", Unwilling)
    monkeypatch.setenv("OPERATIONS_TOKEN", "s3cret")
    monkeypatch.chdir(folder)
    assert main(["hub", "--port", "0", "--console", "127.0.0.1:0", "--grace", "7", "--trust"]) == 6
    assert made[0].settings.limits.drain_seconds == 7


def test_a_console_that_cannot_listen_is_an_error(folder: Path) -> None:
    environment = {**os.environ, "OPERATIONS_TRUST": "1", "OPERATIONS_TOKEN": "s3cret"}
    command = [*OPS, "hub", "--port", "0", "--console", "0.0.0.0:0"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "console_hosts" in done.stderr
