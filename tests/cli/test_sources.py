"""Sources of every kind on the command line: working and failing ones, missing extras, secrets."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.asgi_server import serving
from tests.cli.conftest import make_project
from tests.cli.driving import Project
from tests.cli.test_processes import line_with

pytestmark = pytest.mark.slow
SECRET = "sk-very-secret-indeed"
MCP_SERVER = '''
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("text", version="1.0.0", log_level="WARNING")

@server.tool()
def count(text: str) -> dict[str, int]:
    """How many words."""
    return {"words": len(text.split())}

@server.tool()
def broken() -> str:
    """Always fails."""
    raise ToolError("it is broken")

@server.tool()
async def long(ctx: Context) -> str:
    """Reports its progress."""
    import asyncio
    for step in range(1, 6):
        await ctx.report_progress(step, 5, "working")
        await asyncio.sleep(0.3)
    return "done"

server.run("stdio")
'''


def document() -> dict[str, Any]:
    item = {
        "operationId": "get_item",
        "summary": "One item.",
        "parameters": [
            {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}},
            {"name": "expand", "in": "query", "schema": {"type": "boolean"}},
        ],
        "responses": {"200": {"description": "it", "content": {"application/json": {"schema": {"type": "object"}}}}},
    }
    add = {
        "operationId": "add_item",
        "requestBody": {
            "content": {
                "application/json": {
                    "schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
                }
            }
        },
        "responses": {"201": {"description": "made"}},
    }
    photo = {"operationId": "photo", "responses": {"200": {"description": "it", "content": {"image/png": {}}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Items", "version": "1"},
        "paths": {"/items/{id}": {"get": item}, "/items": {"post": add}, "/photo": {"get": photo}},
    }


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    async def get_item(request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {SECRET}":
            return JSONResponse({"message": "who are you?"}, 401)
        number = int(request.path_params["id"])
        if number > 9:
            return JSONResponse({"message": "no such item"}, 404)
        return JSONResponse({"id": number, "expand": request.query_params.get("expand")}, headers={"x-kept": "yes"})

    async def photo(request: Request) -> Response:
        return Response(b"\x89PNG\x00", media_type="image/png")

    routes = [Route("/items/{id}", get_item), Route("/photo", photo)]
    with serving(Starlette(routes=routes)) as url:
        yield url


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, api: str) -> Project:
    """A project with sources of every kind, one of them dead; its operations are cached."""
    project = make_project(tmp_path_factory.mktemp("mixed"))
    project.write("items.json", json.dumps(document()))
    project.write("text_server.py", MCP_SERVER)
    config = project.directory / "operations.toml"
    config.write_text(
        config.read_text()
        + f'''
[sources.text]
command = {json.dumps(sys.executable)}
args = ["text_server.py"]
env = {{ TOKEN = "${{ITEMS_TOKEN}}" }}

[sources.items]
openapi = "items.json"
base_url = "{api}"
auth = {{ type = "bearer", token = "${{ITEMS_TOKEN}}" }}
headers = {{ "x-api-key" = "{SECRET}" }}

[sources.dead]
command = "no-such-program-anywhere"
'''
    )
    project.environment["ITEMS_TOKEN"] = SECRET
    assert project.run("ls").code == 0
    return project


def test_a_dead_server_is_reported_and_the_others_work(mixed: Project) -> None:
    listed = mixed.run("ls")
    assert listed.code == 0
    assert "note: cannot open source dead" in listed.err
    ids = [line.split("\t")[0] for line in listed.out.splitlines()]
    assert {"shop.quote", "text.count", "items.get_item"} <= set(ids)
    assert mixed.run("call", "text.count", "text=one two").data == {"words": 2}
    assert mixed.run("call", "items.get_item", "id=7", "expand=true").data == {"id": 7, "expand": "true"}
    assert mixed.run("call", "shop.quote", "item=tea").code == 0
    needed = mixed.run("call", "dead.anything")
    assert needed.code == 6
    assert needed.err.count("cannot open source dead") == 1
    doctor = mixed.run("doctor")
    assert doctor.code == 6
    assert "✓ source text" in doctor.out
    assert "✗ source dead" in doctor.out
    found = {each["what"]: each["state"] for each in mixed.run("doctor", "--json", "--quiet").data}
    assert found["source shop"] == "ok"
    assert found["source dead"] == "bad"


def test_a_source_that_fails_is_the_reason_that_its_operations_are_missing(project: Project) -> None:
    module = "from operations import operation\n@operation(id='zoo.feed')\ndef feed() -> int: return 1\n"
    written = project.write("animals/zoo.py", module)
    config = project.directory / "operations.toml"
    config.write_text(f'{config.read_text()}\n[sources.mine]\npython = "./animals"\n')
    assert "zoo.feed" in project.run("ls").out
    written.unlink()
    written.parent.rmdir()
    called = project.run("call", "zoo.feed")
    assert called.code != 0
    assert called.err.count("cannot open source mine") == 1
    assert "unknown operation" not in called.err


def test_envelopes_keep_the_meta_of_their_sources(mixed: Project) -> None:
    http = mixed.run("call", "items.get_item", "id=7", "--envelope")
    assert http.data["meta"]["statusCode"] == 200
    assert http.data["meta"]["headers"]["x-kept"] == "yes"
    assert http.err.splitlines()[-1].startswith("http · 200 · application/json · ")
    mcp = mixed.run("call", "text.count", "text=a", "--envelope")
    assert mcp.data["meta"]["isError"] is False
    assert mcp.err.splitlines()[-1].startswith("mcp · ok · text · ")


def test_errors_of_sources_have_their_exit_codes(mixed: Project) -> None:
    broken = mixed.run("call", "text.broken")
    assert broken.code == 5
    assert "it is broken" in broken.out
    assert broken.err.splitlines()[-1].startswith("mcp · error · ")
    missing = mixed.run("call", "items.get_item", "id=99")
    assert missing.code == 5
    assert "404" in missing.err
    assert "no such item" in missing.err
    refused = mixed.run("call", "items.get_item", "id=1", env={"ITEMS_TOKEN": "another"})
    assert refused.code == 5
    assert "hint: the API rejected the credentials" in refused.err
    assert mixed.run("call", "items.get_item", "id=seven").code == 2


def test_progress_of_a_tool_is_shown_on_a_terminal(mixed: Project) -> None:
    mixed.run("ls")
    with mixed.terminal("call", "text.long") as terminal:
        terminal.until("/5 working")
        assert terminal.end() == 0
        assert "done" in terminal.shown


def test_bytes_of_an_api_go_to_a_file(mixed: Project) -> None:
    assert mixed.run("call", "items.photo", "-o", "photo.png").code == 0
    assert (mixed.directory / "photo.png").read_bytes() == b"\x89PNG\x00"


def test_a_dry_run_and_curl_show_the_request(mixed: Project, api: str) -> None:
    done = mixed.run("call", "items.add_item", "name=tea", "--dry-run")
    assert done.data["method"] == "POST"
    assert done.data["url"] == f"{api}/items"
    curl = mixed.run("show", "items.add_item", "name=tea", "--curl")
    assert curl.out.startswith(f"curl -X POST {api}/items")
    assert """--data-raw '{"name":"tea"}'""" in curl.out
    assert "x-api-key: [redacted]" in curl.out
    refused = mixed.run("show", "shop.quote", "--curl")
    assert refused.code == 2
    assert "shop.quote has no HTTP request\nhint: --curl needs an operation of an OpenAPI source" in refused.err


def test_secrets_are_never_printed(mixed: Project) -> None:
    for words in (
        ["config", "show"],
        ["doctor"],
        ["ls", "--refresh"],
        ["show", "items.get_item"],
        ["show", "items.get_item", "id=1", "--curl"],
        ["show", "items.get_item", "--json"],
        ["call", "items.get_item", "id=99", "--debug"],
        ["call", "items.get_item", "id=1", "--dry-run"],
        ["call", "items.get_item", "id=1", "--envelope"],
        ["call", "text.broken", "--debug"],
    ):
        done = mixed.run(*words)
        assert SECRET not in done.out + done.err, words
    cached = [path.read_bytes() for path in (mixed.directory / ".cache").rglob("*") if path.is_file()]
    assert cached
    assert not any(SECRET.encode() in content for content in cached)


REPEATING = '''
import os
from operations import operation

@operation(id="code.repeat", type="query")
async def repeat() -> None:
    """Fail with the secret."""
    raise RuntimeError("the key " + os.environ["BUS_SECRET"] + " is wrong")
'''


def test_secrets_are_not_shown_when_others_repeat_them(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.environment["BUS_SECRET"] = SECRET
    project.write("code/repeating.py", REPEATING)
    project.write("api.json", '{"openapi": "3.1.0", "info": {"title": "a", "version": "1"}, "paths": {}}')
    project.write(
        "operations.toml",
        '[sources.code]\npython = "./code"\n'
        '[sources.said]\ncommand = "sh"\nargs = ["-c", "echo $KEY; echo $KEY >&2; exit 1"]\n'
        'env = { KEY = "${BUS_SECRET}" }\n'
        '[sources.api]\nopenapi = "./api.json"\n'
        'base_url = "http://ada:${BUS_SECRET}@127.0.0.1:9/v1?key=${BUS_SECRET}"\n',
    )
    for words in (["doctor"], ["ls"], ["call", "code.repeat"], ["call", "said.anything"], ["config", "show"]):
        for more in ([], ["--debug"]):
            done = project.run(*words, *more)
            assert SECRET not in done.out + done.err, (words, more)
    assert "the key [redacted] is wrong" in project.run("call", "code.repeat").err


@pytest.mark.parametrize(
    ("module", "extra", "operation"), [("mcp", "mcp", "text.count"), ("pyreqwest", "openapi", "items.photo")]
)
def test_a_missing_extra_is_named_and_affects_no_other_source(
    module: str, extra: str, operation: str, mixed: Project, blocked: list[str], tmp_path: Path
) -> None:
    own = {"XDG_CACHE_HOME": str(tmp_path)}
    names = f"{module},httpx2"
    assert mixed.run(names, "call", "shop.quote", "item=tea", program=blocked, env=own).code == 0
    done = mixed.run(names, "call", operation, "text=a" if extra == "mcp" else "{}", program=blocked, env=own)
    assert done.code == 2
    assert f"operations[{extra}]" in done.err
    failed = mixed.run(names, "call", operation, "{}", "--json", program=blocked, env=own)
    assert json.loads(failed.err.splitlines()[-1])["code"] == "NOT_INSTALLED"
    doctor = mixed.run(names, "doctor", program=blocked, env=own)
    assert f"pip install 'operations[{extra}]'" in doctor.out


def test_the_configuration_is_shown_and_has_a_schema(mixed: Project) -> None:
    assert mixed.run("config", "path").out == f"{mixed.directory / 'operations.toml'}\n"
    shown = mixed.run("config", "show").data
    assert set(shown["sources"]) == {"shop", "other", "text", "items", "dead"}
    schema = mixed.run("config", "schema").data
    assert "sources" in schema["properties"]


def test_init_makes_an_operation_that_can_be_called(tmp_path: Path) -> None:
    project = Project(tmp_path)
    done = project.run("init")
    assert done.code == 0
    assert "ops call hello.greet name=Ada" in done.out
    assert project.run("call", "hello.greet", "name=Ada").data == {"greeting": "Hello, Ada!"}
    again = project.run("init")
    assert (again.code, "hint: add a source with 'ops add'" in again.err) == (2, True)
    assert project.run("init", "elsewhere").code == 0
    assert project.run("-c", "elsewhere", "call", "hello.greet", "name=Bob", "shout=yes").data == {
        "greeting": "HELLO, BOB!"
    }


def test_sources_are_added_checked_and_listed(tmp_path: Path, api: str) -> None:
    project = Project(tmp_path)
    project.write("items.json", json.dumps(document()))
    project.write("text_server.py", MCP_SERVER)
    project.write(
        "code/numbers.py", "from operations import operation\n@operation(id='n.one')\ndef one() -> int: return 1\n"
    )
    done = project.run("add", "py", "own", "code")
    assert (done.code, "1 operation" in done.out) == (0, True)
    done = project.run("add", "mcp", "text", "--", sys.executable, "text_server.py")
    assert (done.code, "7 operations" in done.out) == (0, True)  # three tools, and four for resources and prompts
    done = project.run("add", "openapi", "items", "items.json", "--base-url", api, "--token-variable", "ITEMS_TOKEN")
    assert done.code == 2
    assert "items was not added" in done.err
    assert "variable ITEMS_TOKEN is not set" in done.err
    assert "[sources.items]" not in (project.directory / "operations.toml").read_text()
    project.environment["ITEMS_TOKEN"] = SECRET
    done = project.run("add", "openapi", "items", "items.json", "--base-url", api, "--token-variable", "ITEMS_TOKEN")
    assert (done.code, "3 operations" in done.out) == (0, True)
    assert SECRET not in (project.directory / "operations.toml").read_text()
    assert project.run("call", "n.one").data == 1
    assert project.run("call", "text.count", "text=a b c").data == {"words": 3}
    assert project.run("call", "items.get_item", "id=1").data["id"] == 1
    assert project.run("add", "py", "own", "code").code == 2
    dead = project.run("add", "mcp", "dead", "--", "no-such-program-anywhere")
    assert dead.code == 6
    assert "error: dead was not added: it cannot be opened" in dead.err
    assert "hint: no-such-program-anywhere is not in PATH: install it; --no-check adds it anyway" in dead.err
    assert "dead" not in (project.directory / "operations.toml").read_text()
    assert dead.out == ""
    missing = project.run("add", "openapi", "absent", "absent.json")
    assert (missing.code, "cannot read" in missing.err) == (2, True)
    spaced = project.run("add", "py", "my own", "code")
    assert "Next: ops ls --source 'my own'" in spaced.out
    assert project.run("add", "mcp", "nothing").code == 2


def test_a_failed_source_is_reported_once_when_its_namespace_is_called(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(
        "operations.toml",
        '[sources.foo]\ncommand = "no-such-program-anywhere"\n[sources.own]\npython = "./code"\n',
    )
    project.write("code/own.py", "open('opened', 'w').close()\n")
    done = project.run("call", "foo.x")
    assert done.code == 6
    assert len([line for line in done.err.splitlines() if "foo" in line]) == 1
    assert not (tmp_path / "opened").exists()


def test_doctor_probes_the_documents_server(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("api.json", json.dumps({**document(), "servers": [{"url": "http://127.0.0.1:9/v1"}]}))
    project.write("operations.toml", '[sources.items]\nopenapi = "./api.json"\n')
    done = project.run("doctor", env=dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), ""))
    assert done.code == 6
    assert "http://127.0.0.1:9/v1 cannot be reached" in done.out


def test_access_rules_that_match_no_operation_are_reported(project: Project) -> None:
    config = project.directory / "operations.toml"
    config.write_text(config.read_text() + '\n[access]\n"shop.*" = ["shop"]\n"shpo.quote" = ["shop"]\n')
    checked = project.run("doctor")
    assert checked.code == 0
    assert "access         'shpo.quote' matches no operation" in checked.out
    assert "'shop.*'" not in checked.out
    with project.start("serve", "--http", "127.0.0.1:0") as process:
        warning = line_with(process, "matches no operation")
        process.terminate()
        assert process.wait(60) == 0
    assert "note: the access rule 'shpo.quote' matches no operation: compare it with the ids of 'ops ls'" in warning


def test_a_failed_source_hides_which_rules_match_nothing(project: Project) -> None:
    config = project.directory / "operations.toml"
    broken = '\n[sources.gone]\ncommand = "no-such-program"\n[access]\n"gone.*" = ["x"]\n'
    config.write_text(config.read_text() + broken)
    assert "matches no operation" not in project.run("doctor").out


def test_scan_lists_operations_and_skipped_files(project: Project) -> None:
    project.write("shop/bad.py", "import no_such_module\n")
    done = project.run("scan", "shop")
    assert "shop.quote  query  shop/selling.py" in done.out
    assert "bad.py" in done.err
    data = project.run("scan", "shop", "--json").data
    assert {each["id"] for each in data["operations"]} >= {"shop.quote", "shop.ticks"}
    assert len(data["skipped"]) == 1
    assert project.run("scan", "nowhere").code in (2, 3)


def test_scan_watches(project: Project) -> None:
    with project.terminal("scan", "other", "--watch") as terminal:
        terminal.until("+ other.double")
        project.write(
            "other/more.py", "from operations import operation\n@operation(id='n.one')\ndef one() -> int: return 1\n"
        )
        terminal.until("+ n.one")
        (project.directory / "other" / "more.py").unlink()
        terminal.until("- n.one")
        terminal.press("\x03")
        assert terminal.end() == 130


def test_an_unset_variable_fails_its_own_source(project: Project) -> None:
    more = (
        '\n[sources.museum]\nurl = "http://127.0.0.1:9/mcp"\nheaders = { Authorization = "Bearer ${MUSEUM_TOKEN}" }\n'
    )
    text = (project.directory / "operations.toml").read_text()
    path = project.write("operations.toml", text + more)
    line = path.read_text().split("\n").index('headers = { Authorization = "Bearer ${MUSEUM_TOKEN}" }') + 1
    problem = f"{path}:{line}: sources.museum.headers.Authorization: variable MUSEUM_TOKEN is not set"
    done = project.run("ls", "--refresh")
    assert done.code == 0
    assert "shop.quote\t" in done.out
    assert problem in done.err
    assert project.run("call", "shop.quote", "item=tea").data["total"] == 2.5
    done = project.run("call", "museum.paint")
    assert done.code == 2
    assert problem in done.err
    doctor = project.run("doctor")
    assert doctor.code == 2
    assert problem in doctor.out
    assert "source shop" in doctor.out
    # The cache knows that it depends on the variable.
    assert "is not set" not in project.run("ls", env={"MUSEUM_TOKEN": "t0k3n"}).err


def test_an_unset_variable_fails_its_own_transport(project: Project) -> None:
    more = '\n[transports.bus]\nurl = "redis://:${BUS_PASSWORD}@127.0.0.1:1"\n[hub]\nhost = "${HUB_HOST}"\n'
    text = (project.directory / "operations.toml").read_text()
    project.write("operations.toml", text + more)
    assert project.run("ls").code == 0
    for words in (["worker"], ["call", "shop.quote", "--url", "bus"]):
        done = project.run(*words)
        assert done.code == 2
        assert (
            "transports.bus.url: variable BUS_PASSWORD is not set: set it, or write ${BUS_PASSWORD:-default}"
            in done.err
        )
    done = project.run("hub")
    assert (done.code, "hub.host: variable HUB_HOST is not set" in done.err) == (2, True)
    doctor = project.run("doctor")
    assert doctor.code == 2
    assert "✗ transport bus" in doctor.out
    assert "✗ hub" in doctor.out


def test_of_two_transports_none_is_chosen_because_the_other_lacks_a_variable(project: Project) -> None:
    more = '\n[transports.one]\nurl = "redis://${HOST}"\n[transports.two]\nurl = "redis://127.0.0.1:1"\n'
    text = (project.directory / "operations.toml").read_text()
    project.write("operations.toml", text + more)
    done = project.run("worker")
    assert done.code == 2
    assert "choose one with --url: two, one" in done.err


def test_a_missing_extra_is_tried_again_once_it_is_installed(project: Project, blocked: list[str]) -> None:
    project.write("text_server.py", MCP_SERVER)
    text = (project.directory / "operations.toml").read_text()
    server = f'\n[sources.text]\ncommand = "{sys.executable}"\nargs = ["text_server.py"]\n'
    project.write("operations.toml", text + server)
    for _ in range(2):
        done = project.run("mcp", "ls", program=blocked)
        assert done.code == 0
        assert "shop.quote\t" in done.out
        assert "text.count" not in done.out
        assert 'pip install "operations[mcp]"' in done.err
        assert "--refresh" not in done.err
    done = project.run("ls")
    assert "text.count\t" in done.out
    assert done.err == ""


KEY = {"type": "apiKey", "in": "header", "name": "X-Shop-Key"}
BEARER = {"type": "http", "scheme": "bearer"}
AUTHORIZATION = {"type": "apiKey", "in": "header", "name": "Authorization"}


@pytest.mark.parametrize(
    ("schemes", "kind", "header"),
    [
        ({"key": KEY}, "api_key", ["x-shop-key", SECRET]),
        ({"key": KEY, "user": BEARER}, "bearer", ["authorization", f"Bearer {SECRET}"]),
        ({"key": AUTHORIZATION}, "bearer", ["authorization", f"Bearer {SECRET}"]),
        ({}, "bearer", ["authorization", f"Bearer {SECRET}"]),
    ],
)
def test_an_added_api_gets_the_credentials_that_it_declares(
    tmp_path: Path, schemes: dict[str, Any], kind: str, header: list[str]
) -> None:
    async def get_item(request: Request) -> Response:
        return JSONResponse({"headers": request.headers.items()})

    project = Project(tmp_path)
    security: list[dict[str, list[str]]] = [{name: []} for name in schemes]
    project.write(
        "items.json", json.dumps({**document(), "components": {"securitySchemes": schemes}, "security": security})
    )
    project.environment["ITEMS_TOKEN"] = SECRET
    with serving(Starlette(routes=[Route("/items/{id}", get_item)])) as url:
        added = project.run(
            "add", "openapi", "items", "items.json", "--base-url", url, "--token-variable", "ITEMS_TOKEN"
        )
        assert added.code == 0, added.err
        assert f'auth = {{ type = "{kind}", token = "${{ITEMS_TOKEN}}" }}' in (tmp_path / "operations.toml").read_text()
        assert header in project.run("call", "items.get_item", "id=1").data["headers"]
