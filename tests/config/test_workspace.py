"""open_workspace over real sources: Python modules, MCP servers, an API, another package's source."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from operations import CallError, Operation, operation
from operations.config import SourceReport, Workspace, load_config, open_workspace
from operations.sources import entry_points
from tests.asgi_server import serving
from tests.config.files import write
from tests.sources.mcp.peers import HOSTILE, children, everything_over_http, node_server
from tests.sources.scanner.projects import greeting
from tests.waiting import until

DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "paths": {
        "/stock/{item}": {
            "get": {
                "operationId": "left",
                "parameters": [{"name": "item", "in": "path", "required": True, "schema": {"type": "string"}}],
                "responses": {"200": {"content": {"application/json": {"schema": {"type": "object"}}}}},
            }
        },
        "/orders": {"post": {"operationId": "order", "responses": {"200": {}}}},
    },
}


async def stock(request: Request) -> Response:
    seen = {name: request.headers.get(name) for name in ("authorization", "x-team")}
    return JSONResponse({"item": request.path_params["item"], **seen})


async def document(request: Request) -> Response:
    return JSONResponse(DOCUMENT)


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    with serving(Starlette(routes=[Route("/stock/{item}", stock), Route("/openapi.json", document)])) as url:
        yield url


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    processes = children()
    yield
    await until(lambda: children() <= processes)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@contextlib.asynccontextmanager
async def opened(directory: Path, text: str, only: list[str] | None = None, **environ: str) -> AsyncIterator[Workspace]:
    config = load_config(write(directory, text), environ=environ)
    async with asyncio.timeout(60), open_workspace(config, only=only) as workspace:
        yield workspace


def reports(workspace: Workspace) -> dict[str, SourceReport]:
    return {report.name: report for report in workspace.reports}


async def test_one_registry_of_every_kind_of_source(tmp_path: Path, api: str) -> None:
    write(tmp_path, greeting(), "ops/hello.py")
    write(tmp_path, json.dumps(DOCUMENT), "api.json")
    text = f"""
        [sources.local]
        python = "ops"

        [sources.tools]
        command = "{sys.executable}"
        args = ["{HOSTILE}", "tools"]
        allow = ["echo"]

        [sources.shop]
        openapi = "api.json"
        base_url = "{api}"
        auth = {{ type = "bearer", token = "${{TOKEN}}" }}
        headers = {{ X-Team = "blue" }}
        rename = {{ "left" = "stock" }}

        [access]
        "shop.*" = ["shop"]
        """
    seen: list[str] = []
    config = load_config(write(tmp_path, text), environ={"TOKEN": "t0k3n"})
    async with open_workspace(config, on_progress=lambda report: seen.append(report.name)) as workspace:
        assert sorted(seen) == ["local", "shop", "tools"]
        assert [(report.name, report.state, report.operations) for report in workspace.reports] == [
            ("local", "ready", 1),
            ("tools", "ready", 1),
            ("shop", "ready", 2),
        ]
        ids = [spec.id for spec in workspace.registry.list()]
        assert ids == ["hello.greet", "shop.order", "shop.stock", "tools.echo"]
        execute = workspace.registry.execute
        assert (await execute("hello.greet", {"who": "Ada"})).data == "hello Ada"
        assert (await execute("tools.echo", {"a": 1})).data[0]["text"] == '{"a": 1}'
        answer = (await execute("shop.stock", {"item": "tea"})).data
        assert answer == {"item": "tea", "authorization": "Bearer t0k3n", "x-team": "blue"}
        spec = workspace.registry.get_spec("shop.order")
        assert spec is not None
        assert spec.access_control.required_scopes == ("shop",)
        assert workspace.source_of("shop.stock") == "shop"
        assert workspace.source_of("nobody.s") is None


@pytest.mark.slow
async def test_dead_sources_are_reported_and_the_others_work(tmp_path: Path, api: str) -> None:
    write(tmp_path, greeting(), "ops/hello.py")
    write(tmp_path, "raise ValueError('broken')", "ops/broken.py")
    write(tmp_path, "not: [an api", "bad.yaml")
    text = f"""
        [sources.good]
        python = "ops"
        [sources.nocommand]
        command = "no-such-program-here"
        [sources.dies]
        command = "{sys.executable}"
        args = ["{HOSTILE}", "dies"]
        [sources.slow]
        command = "{sys.executable}"
        args = ["-c", "import time; time.sleep(600)"]
        open_timeout = 0.5
        [sources.refused]
        url = "http://127.0.0.1:9/mcp"
        [sources.nofile]
        openapi = "nothere.json"
        [sources.badfile]
        openapi = "bad.yaml"
        [sources.nodocument]
        openapi = "{api}/nothing"
        [sources.nopackage]
        python = "no_such_package_here"
        [sources.nobody]
        entry_point = "nobody-brings-this"
        """
    async with opened(tmp_path, text) as workspace:
        found = reports(workspace)
        assert [name for name, report in found.items() if report.state == "ready"] == ["good"]
        assert (await workspace.registry.execute("hello.greet", {"who": "x"})).data == "hello x"
        assert [Path(skip.path).name for skip in found["good"].skipped] == ["broken.py"]
        for name, report in found.items():
            if name != "good":
                assert report.problem, name
                assert "\n" not in report.problem
        assert found["nocommand"].hint == "no-such-program-here is not in PATH: install it"
        assert found["slow"].problem == "did not open within 0.5 seconds"
        assert "nothere.json: No such file" in str(found["nofile"].problem)
        assert "no_such_package_here" in str(found["nopackage"].problem)
        assert "unknown source 'nobody-brings-this'" in str(found["nobody"].problem)
        assert "404" in str(found["nodocument"].problem)


async def test_names_that_collide_are_reported_and_the_first_of_the_file_has_them(tmp_path: Path) -> None:
    # The first one of the file is the slower one.
    same = "from operations import operation\n{}\n@operation('x.y', type='query')\nasync def f() -> str: return '{}'\n"
    write(tmp_path, same.format("import time; time.sleep(0.2)", "first"), "a/one.py")
    write(tmp_path, same.format("", "second") + greeting(), "b/two.py")
    async with opened(tmp_path, "[sources.first]\npython = 'a'\n[sources.second]\npython = 'b'") as workspace:
        assert (await workspace.registry.execute("x.y")).data == "first"
        second = reports(workspace)["second"]
        assert (second.state, second.operations) == ("ready", 1)
        assert [skip.path for skip in second.skipped] == ["x.y"]
        assert "already registered by source first" in second.skipped[0].reason


async def test_only_the_sources_asked_for_are_opened(tmp_path: Path) -> None:
    write(tmp_path, greeting(), "ops/hello.py")
    text = "[sources.a]\npython = 'ops'\n[sources.b]\ncommand = 'no-such-program'"
    async with opened(tmp_path, text, only=["a"]) as workspace:
        assert [report.name for report in workspace.reports] == ["a"]
    with pytest.raises(CallError, match="unknown source 'c'"):
        async with opened(tmp_path, text, only=["c"]):
            pass


async def test_changed_tools_of_a_server_are_filtered_and_renamed(tmp_path: Path) -> None:
    text = f"""
        [sources.live]
        command = "{sys.executable}"
        args = ["{HOSTILE}", "tools"]
        rename = {{ "*" = "mine_*" }}
        deny = ["slow*"]
        """
    async with opened(tmp_path, text) as workspace:
        registry = workspace.registry
        names = {spec.name for spec in registry.list(namespace="live")}
        assert all(name.startswith("mine_") for name in names)
        assert not any("slow" in name for name in names)
        await registry.execute("live.mine_grow")
        await until(lambda: "live.mine_grown" in registry)
        assert "live.grown" not in registry
        assert (await registry.execute("live.mine_grown")).data[0]["text"] == "grown"
        assert workspace.source_of("live.mine_grown") == "live"
        await registry.execute("live.mine_shrink")
        await until(lambda: "live.mine_grown" not in registry)


@pytest.mark.slow
async def test_npm_servers_over_stdio_and_http(tmp_path: Path) -> None:
    async with everything_over_http() as url:
        text = f"""
            [sources.everything]
            command = "{node_server("mcp-server-everything")}"
            args = ["stdio"]
            allow = ["echo"]
            [sources.remote]
            url = "{url}"
            namespace = "far.away"
            allow = ["echo", "get-*"]
            """
        async with opened(tmp_path, text) as workspace:
            assert {report.state for report in workspace.reports} == {"ready"}
            for operation_id in ("everything.echo", "far.away.echo"):
                envelope = await workspace.registry.execute(operation_id, {"message": "hi"})
                assert envelope.data[0]["text"] == "Echo: hi"


async def test_secrets_are_not_in_reports(tmp_path: Path) -> None:
    text = """
        [sources.a]
        url = "http://127.0.0.1:9/mcp?api_key=${KEY}"
        [sources.b]
        python = "ops"
        """
    write(tmp_path, "import os\nraise ValueError('cannot log in with t0p-s3cret-key')", "ops/x.py")
    async with opened(tmp_path, text, KEY="t0p-s3cret-key") as workspace:
        assert "t0p-s3cret-key" not in repr(workspace.reports)
        assert "[redacted]" in reports(workspace)["b"].skipped[0].reason


async def test_unsupported_editor_variables_are_reported_on_opening(tmp_path: Path) -> None:
    path = write(tmp_path, '{"servers": {"a": {"command": "x", "env": {"K": "${input:k}"}}}}', ".vscode/mcp.json")
    async with open_workspace(load_config(path, environ={})) as workspace:
        report = workspace.reports[0]
        assert (report.state, report.hint) == ("failed", None)
        assert str(report.problem).startswith(f"{path}:1: servers.a.env.K: unsupported variable ${{input:k}}")


@pytest.mark.slow
async def test_leaving_while_sources_are_opened_closes_them(tmp_path: Path) -> None:
    command = f"command = '{sys.executable}'\nargs = ['-c', 'import time; time.sleep(600)']\n"
    config = load_config(write(tmp_path, f"[sources.a]\n{command}[sources.b]\n{command}"), environ={})

    async def use() -> None:
        async with open_workspace(config):
            raise AssertionError("it never opens")

    before = children()
    task = asyncio.create_task(use())
    await until(lambda: len(children() - before) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


closed: list[str] = []


@operation("crm.ping", type="query")
async def ping() -> str:
    return "pong"


def plain_source(**options: Any) -> list[Operation[Any]]:
    return [ping]


async def async_source(region: str) -> AsyncIterator[Operation[Any]]:
    assert region == "us"
    yield ping


@contextlib.asynccontextmanager
async def live_source(region: str = "eu") -> AsyncIterator[list[Operation[Any]]]:
    # A task group must be left by the task that entered it.
    async with asyncio.TaskGroup() as group:
        task = group.create_task(asyncio.Event().wait())
        yield [ping]
        task.cancel()
    closed.append(region)


@contextlib.contextmanager
def blocking_source() -> Iterator[list[Operation[Any]]]:
    yield [ping]
    closed.append("blocking")


def wrong_source() -> list[str]:
    return ["not an operation"]


def exiting_source() -> None:
    raise SystemExit(3)


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        "plain": "plain_source",
        "async": "async_source",
        "live": "live_source",
        "blocking": "blocking_source",
        "wrong": "wrong_source",
        "exiting": "exiting_source",
        "constant": "DOCUMENT",
        "missing": "nothing_here",
    }
    entries = EntryPoints(
        EntryPoint(name, f"{__name__}:{function}", entry_points.GROUP) for name, function in names.items()
    )
    monkeypatch.setattr(entry_points, "entry_points", lambda **chosen: entries.select(**chosen))


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("name", ["plain", "async", "live", "blocking"])
async def test_sources_of_other_packages(tmp_path: Path, name: str) -> None:
    closed.clear()
    options = "options = { region = 'us' }\n" if name in ("async", "live", "plain") else ""
    async with opened(tmp_path, f"[sources.x]\nentry_point = '{name}'\nnamespace = 'my'\n{options}") as workspace:
        assert workspace.reports[0].problem is None
        assert (await workspace.registry.execute("my.crm.ping")).data == "pong"
        assert closed == []
    assert closed == {"live": ["us"], "blocking": ["blocking"]}.get(name, [])


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("wrong", "invalid source: expected operations, not str"),
        ("exiting", "SystemExit: 3"),
        ("constant", "is not a function"),
        ("missing", "nothing_here): AttributeError"),
        ("async", "invalid options of async_source: missing option 'region'; accepted: region (required)"),
    ],
)
async def test_sources_of_other_packages_that_fail(tmp_path: Path, name: str, problem: str) -> None:
    async with opened(tmp_path, f"[sources.x]\nentry_point = '{name}'") as workspace:
        assert problem in str(workspace.reports[0].problem)


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("async", "async_source: unknown option 'regoin'; missing option 'region'; accepted: region (required)"),
        ("live", "live_source: unknown option 'regoin'; accepted: region"),
        ("blocking", "blocking_source: unknown option 'regoin'; accepted: none"),
        ("plain", None),
    ],
)
async def test_an_option_that_a_source_does_not_accept_is_named(
    tmp_path: Path, name: str, problem: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    text = f"[sources.x]\nentry_point = '{name}'\noptions = {{ regoin = 'us' }}"
    async with opened(tmp_path, text) as workspace:
        report = workspace.reports[0]
        assert report.problem == (problem and f"invalid options of {problem}")
        assert report.fault == (problem and "configuration")
    logged = [record.getMessage() for record in caplog.records if record.name == "operations.config"]
    assert logged == ([] if problem is None else [f"cannot open source x: {report.problem}"])


async def test_a_failed_source_is_logged_unless_the_caller_gets_the_reports(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "[sources.gone]\ncommand = 'no-such-program-here'", "operations.toml")
    config = load_config(tmp_path / "operations.toml")
    async with open_workspace(config):
        (record,) = caplog.records
        hint = "no-such-program-here is not in PATH: install it"
        assert (record.levelname, hint in record.getMessage()) == ("WARNING", True)
        assert record.getMessage().startswith("cannot open source gone: ")
    caplog.clear()
    given: list[SourceReport] = []
    async with open_workspace(config, on_progress=given.append):
        assert [report.name for report in given] == ["gone"]
    assert caplog.records == []


@pytest.mark.usefixtures("packages")
def test_the_sources_that_are_installed_are_listed() -> None:
    assert entry_points.list_sources()[:2] == ["async", "blocking"]


async def test_a_path_in_place_of_a_configuration_is_refused_with_what_to_call() -> None:
    with pytest.raises(CallError, match=r"takes a Config, not str: use load_config\(path\)"):
        async with open_workspace("operations.toml"):  # type: ignore[arg-type]
            pass
