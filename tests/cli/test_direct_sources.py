"""Sources as a user calls them: uploads, images, questions, credentials, and servers without a configuration file."""

from __future__ import annotations

import base64
import email.message
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from operations import Identity, OperationRegistry, operation
from operations.identity import Principal, StaticTokens
from operations.serving import app
from tests.asgi_server import serving
from tests.cli.driving import Project

pytestmark = pytest.mark.slow
TOKEN = "t0ken-of-the-pets"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
SERVER = f"""
from mcp.server.mcpserver import Context, Image, MCPServer
from pydantic import BaseModel

import sys
server = MCPServer("drawing", version="1.0.0", log_level="INFO" if len(sys.argv) > 1 else "WARNING")
PNG = {PNG!r}

class Size(BaseModel):
    width: int
    name: str = "sketch"

@server.tool(structured_output=False)
def draw() -> list:
    return ["a drawing", Image(data=PNG, format="png")]

@server.tool()
async def measure(ctx: Context) -> str:
    answer = await ctx.elicit("How wide?", Size)
    return f"{{answer.action}}: {{answer.data.width if answer.action == 'accept' else '-'}}"

if len(sys.argv) > 1:
    server.run("sse", port=int(sys.argv[1]))
else:
    server.run("stdio")
"""


def document(url: str) -> dict[str, Any]:
    card = {"title": "a card", "type": "object", "properties": {"number": {"type": "string", "pattern": "^[0-9]+$"}}}
    cash = {"title": "cash", "type": "object", "properties": {"coins": {"type": "integer", "minimum": 1}}}
    owner = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "born": {"type": "string", "format": "date"}},
        "required": ["name"],
    }
    pet = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 30},
            "owner": owner,
            "paid": {"oneOf": [card, cash]},
            "toys": {"type": "array", "maxItems": 3, "items": {"type": "string"}},
        },
        "required": ["name", "owner"],
    }
    answer = {"200": {"description": "it", "content": {"application/json": {"schema": {"type": "object"}}}}}
    file = {"type": "string", "format": "binary"}
    upload = {"type": "object", "properties": {"photo": file, "note": {"type": "string"}}, "required": ["photo"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pets", "version": "1"},
        "servers": [{"url": url}],
        "security": [{"token": []}],
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "paths": {
            "/me": {"get": {"operationId": "me", "summary": "Who calls.", "responses": answer}},
            "/pets": {
                "post": {
                    "operationId": "add_pet",
                    "requestBody": {"required": True, "content": {"application/json": {"schema": pet}}},
                    "responses": answer,
                }
            },
            "/photos": {
                "post": {
                    "operationId": "add_photo",
                    "security": [],
                    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": upload}}},
                    "responses": answer,
                }
            },
            "/logo": {
                "put": {
                    "operationId": "set_logo",
                    "security": [],
                    "requestBody": {"required": True, "content": {"image/*": {"schema": file}}},
                    "responses": answer,
                }
            },
        },
    }


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    async def me(request: Request) -> Response:
        is_known = request.headers.get("authorization") == f"Bearer {TOKEN}"
        return JSONResponse({"id": 1} if is_known else {"error": "no"}, 200 if is_known else 401, {"x-served-by": "me"})

    async def photo(request: Request) -> Response:
        async with request.form() as form:
            file: Any = form["photo"]
            return JSONResponse({"name": file.filename, "type": file.content_type, "bytes": len(await file.read())})

    async def refuse(request: Request) -> Response:
        errors = [{"field": "name", "reason": "taken"}] if (await request.json())["name"] == "Rex" else []
        return JSONResponse({"title": "invalid pet", "errors": errors}, 422)

    async def logo(request: Request) -> Response:
        return JSONResponse({"type": request.headers["content-type"], "bytes": len(await request.body())})

    async def described(request: Request) -> Response:
        return JSONResponse(document(str(request.base_url)))

    routes = [
        Route("/me", me),
        Route("/photos", photo, methods=["POST"]),
        Route("/pets", refuse, methods=["POST"]),
        Route("/logo", logo, methods=["PUT"]),
        Route("/openapi.json", described),
    ]
    with serving(Starlette(routes=routes)) as url:
        yield url


@pytest.fixture
def pets(tmp_path: Path, api: str) -> Project:
    """A project with an API and an MCP server, cached."""
    project = Project(tmp_path)
    project.write("server.py", SERVER)
    project.write(
        "operations.toml",
        f"""
[sources.pets]
openapi = "{api}/openapi.json"

[sources.art]
command = {json.dumps(sys.executable)}
args = ["server.py"]
protocol = "legacy"
""",
    )
    assert project.run("ls").code == 0
    return project


def with_token(project: Project, token: str) -> Project:
    config = project.directory / "operations.toml"
    auth = 'auth = { type = "bearer", token = "${PETS_TOKEN}" }'
    config.write_text(config.read_text().replace('/openapi.json"\n', f'/openapi.json"\n{auth}\n'))
    project.environment["PETS_TOKEN"] = token
    return project


def test_an_upload_keeps_its_name_and_type(pets: Project) -> None:
    (pets.directory / "cat.png").write_bytes(PNG)
    assert pets.run("call", "pets.add_photo", "photo@cat.png").data == {
        "name": "cat.png",
        "type": "image/png",
        "bytes": len(PNG),
    }
    typed = pets.run("call", "pets.add_photo", "photo@cat.png;type=image/x-cat;filename=my.cat").data
    assert (typed["name"], typed["type"]) == ("my.cat", "image/x-cat")
    missing = pets.run("call", "pets.add_photo", "photo@dog.png")
    assert (missing.code, "dog.png: no such file" in missing.err) == (2, True)
    assert pets.run("call", "pets.add_photo", "photo@cat.png;colour=red").code == 2


@pytest.mark.parametrize("size", [len(PNG), 3_000_000])
def test_a_curl_command_sends_the_files_of_a_body(pets: Project, size: int) -> None:
    photo = (PNG * (size // len(PNG) + 1))[:size]
    (pets.directory / "cat's.png").write_bytes(photo)
    (pets.directory / "FILE").write_bytes(photo)  # the command has this name in place of large content
    command = pets.run("show", "pets.add_photo", "photo@cat's.png", "note=a\\b", "--curl").out
    write, _, curl = command.partition(" | curl -X POST ")
    assert curl.rstrip().endswith("--data-binary @-")
    sent = subprocess.run(["sh", "-c", write], cwd=pets.directory, capture_output=True, check=True).stdout
    kind = re.search(r"(?i)-H '(content-type: [^']+)'", curl)
    assert kind is not None
    parts = email.message_from_bytes(kind[1].encode() + b"\r\n\r\n" + sent).get_payload()
    assert isinstance(parts, list)
    messages = [part for part in parts if isinstance(part, email.message.Message)]
    by_name: dict[Any, Any] = {part.get_param("name", header="content-disposition"): part for part in messages}
    assert by_name["photo"].get_payload(decode=True) == photo
    assert by_name["note"].get_payload() == "a\\b"


def test_an_image_is_summarised_on_a_terminal_and_decoded_into_a_file(pets: Project) -> None:
    with pets.terminal("call", "art.draw") as terminal:
        assert terminal.end() == 0
        assert "a drawing\n" in terminal.shown
        assert f"[image/png, {len(PNG)} bytes: write it to a file with -o FILE]" in terminal.shown
    assert pets.run("call", "art.draw", "-o", "drawing.png").code == 0
    assert (pets.directory / "drawing.png").read_bytes() == PNG
    piped = pets.run("call", "art.draw").data
    assert base64.b64decode(piped[1]["data"]) == PNG


def test_show_has_nested_fields_ranges_formats_variants_and_credentials(pets: Project) -> None:
    shown = pets.run("show", "pets.add_pet").out
    for line in (
        "credentials: token",
        "  * name         string",
        "  * owner        object",
        "    * name       string    at most 20 characters",
        "      born       string    date",
        "    age          integer   0 to 30",
        "      either     object    a card",
        "          number  string",
        "pattern ^[0-9]+$",
        "      or         object    cash",
        "at least 1",
        "    toys         string[]  at most 3 items",
    ):
        assert " ".join(line.split()) in " ".join(shown.split()), (line, shown)
    assert "credentials" not in pets.run("show", "pets.add_photo").out


def test_help_of_a_call_is_about_the_operation(pets: Project) -> None:
    done = pets.run("call", "pets.add_pet", "--help")
    assert done.code == 0
    assert done.out.startswith("usage  ops call pets.add_pet name=… owner=… [age=…]")
    assert "at most 20 characters" in done.out
    assert "usage  ops call [options] OPERATION" in pets.run("call", "--help").out
    assert pets.run("call", "pets.ad_pet", "--help").code == 3


def test_a_dry_run_is_readable(pets: Project) -> None:
    words = ("call", "pets.add_pet", "name=Rex", "owner.name=Ada", "--dry-run")
    assert pets.run(*words).data["body"] == {"name": "Rex", "owner": {"name": "Ada"}}
    with pets.terminal(*words) as terminal:
        assert terminal.end() == 0
        assert "POST http://127.0.0.1:" in terminal.shown
        assert "Content-Type: application/json\n" in terminal.shown
        assert '\n\n{\n  "name": "Rex",\n' in terminal.shown


def test_the_body_of_an_error_is_shown_unless_the_message_contains_it(pets: Project) -> None:
    told = f"error: POST /pets returned 422 {HTTPStatus(422).phrase}: invalid pet\n"
    assert pets.run("call", "pets.add_pet", "name=Tom", "owner.name=Ada").err == told
    body = '  {"title":"invalid pet","errors":[{"field":"name","reason":"taken"}]}\n'
    assert pets.run("call", "pets.add_pet", "name=Rex", "owner.name=Ada").err == told + body


def test_a_dry_run_of_an_upload_is_readable(pets: Project) -> None:
    (pets.directory / "cat.png").write_bytes(PNG)
    words = ("call", "pets.add_photo", "photo@cat.png", "note=hello", "--dry-run")
    head, file, rest = pets.run(*words).data["body"]
    assert 'name="photo"; filename="cat.png"' in head
    assert file == {"path": "cat.png", "size": len(PNG)}
    assert "hello" in rest
    with pets.terminal(*words) as terminal:
        assert terminal.end() == 0
        assert f"Content-Type: image/png\n\n(cat.png, {len(PNG)} bytes)\n" in terminal.shown


def test_a_file_is_a_whole_body_with_its_type(pets: Project) -> None:
    (pets.directory / "cat.png").write_bytes(PNG)
    assert "\n  ops call pets.set_logo body@FILE\n" in pets.run("show", "pets.set_logo").out
    assert pets.run("call", "pets.set_logo", "body@cat.png").data == {"type": "image/png", "bytes": len(PNG)}
    assert pets.run("call", "pets.set_logo", "body@cat.png;type=image/gif").data["type"] == "image/gif"


def test_missing_credentials_are_distinguished_from_refused_ones(pets: Project) -> None:
    missing = pets.run("call", "pets.me")
    assert missing.code == 5
    assert "hint: source pets has no credentials for this operation (token): set its auth" in missing.err
    assert 'for example auth = { type = "bearer", token = "${PETS_TOKEN}" }\n' in missing.err
    doctor = pets.run("doctor")
    assert doctor.code == 0
    assert "- source pets" in doctor.out
    assert "2 of 4 operations require credentials that are not configured" in doctor.out
    with_token(pets, "another-token-1")
    refused = pets.run("call", "pets.me")
    assert "hint: the API rejected the credentials" in refused.err
    doctor = pets.run("doctor")
    assert doctor.code == 6
    assert "the API refused the credentials: GET /me returned 401" in doctor.out
    assert "another-token-1" not in doctor.out
    pets.environment["PETS_TOKEN"] = TOKEN
    assert "✓ source pets    the API accepts the credentials: GET /me" in pets.run("doctor").out


@pytest.mark.parametrize(
    ("schemes", "needed", "expected"),
    [
        (
            {"shop key": {"type": "apiKey", "in": "header", "name": "X-Key"}},
            {"shop key": []},
            'auth = { type = "api_key", token = "${SHOP_TOKEN}" }',
        ),
        (
            {"person": {"type": "http", "scheme": "basic"}},
            {"person": []},
            'auth = { type = "basic", username = "${SHOP_USERNAME}", password = "${SHOP_PASSWORD}" }',
        ),
        (
            {
                "shop key": {"type": "apiKey", "in": "header", "name": "X-Key"},
                "machine": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "/t", "scopes": {}}}},
                "other": {"type": "http", "scheme": "bearer"},
            },
            {"shop key": [], "machine": []},
            'security = { "shop key" = { type = "api_key", token = "${SHOP_SHOP_KEY_TOKEN}" }, machine = { type = '
            '"oauth2", client_id = "${SHOP_MACHINE_CLIENT_ID}", client_secret = "${SHOP_MACHINE_CLIENT_SECRET}" } }',
        ),
        (
            {"certificate": {"type": "mutualTLS"}},
            {"certificate": []},
            'auth = { type = "bearer", token = "${SHOP_TOKEN}" }, or type = "api_key" for an API key',
        ),
    ],
)
def test_missing_credentials_are_those_of_the_document(
    project: Project, api: str, schemes: Any, needed: Any, expected: str
) -> None:
    described = {**document(api), "security": [needed], "components": {"securitySchemes": schemes}}
    project.write("shop.json", json.dumps(described))
    project.write("operations.toml", '[sources.shop]\nopenapi = "shop.json"\n')
    assert f"for example {expected}\n" in project.run("call", "shop.me").err
    assert f"for example {expected}" in project.run("doctor").out


def test_verbose_prints_requests_and_responses_without_secrets(pets: Project) -> None:
    with_token(pets, TOKEN)
    done = pets.run("call", "pets.me", "-v")
    assert done.data == {"id": 1}
    lines = done.err.splitlines()
    assert lines[0].startswith("> GET http://127.0.0.1:")
    assert "> Authorization: [redacted]" in lines
    assert "< 200" in lines
    assert "< x-served-by: me" in lines
    assert TOKEN not in done.err
    records = [json.loads(line) for line in pets.run("call", "pets.me", "-v", "--json").err.splitlines()]
    sent = [record["request"]["headers"] for record in records if "request" in record]
    assert ["Authorization", "[redacted]"] in sent[-1]


def test_a_servers_question_is_answered_on_the_terminal(pets: Project) -> None:
    with pets.terminal("call", "art.measure") as terminal:
        terminal.until("art: How wide?")
        terminal.until("Width: ")
        terminal.press("many\n\n")
        terminal.until("Width: ")
        terminal.press("7\n\n")
        assert terminal.end() == 0
        assert "accept: 7" in terminal.shown
    unasked = pets.run("call", "art.measure")
    assert unasked.code == 5
    assert "licitation" in unasked.out + unasked.err


@pytest.mark.parametrize("kind", ["stdio", "sse"])
def test_a_server_is_used_without_a_configuration(tmp_path: Path, kind: str) -> None:
    project = Project(tmp_path)
    del project.environment["OPERATIONS_TRUST"]
    script = project.write("server.py", SERVER)
    if kind == "stdio":
        check_direct(project, f"{sys.executable} {script}")
        return
    from tests.ports import free_ports

    (port,) = free_ports(1)
    with project.start(str(script), str(port), program=sys.executable) as server:
        assert server.stderr is not None
        while b"running on" not in (line := server.stderr.readline()):
            assert line, "the server ended"
        try:
            check_direct(project, f"http://127.0.0.1:{port}/sse")
            words = ("--mcp", f"http://127.0.0.1:{port}/sse", "--header", f"X-Token: {TOKEN}", "-v")
            shown = project.run("call", "mcp.draw", *words).err.splitlines()
            assert f"> GET http://127.0.0.1:{port}/sse" in shown
            assert "< 200" in shown
            assert {line for line in shown if line.lower().startswith("> x-token")} == {"> x-token: [redacted]"}
        finally:
            server.terminate()


def check_direct(project: Project, server: str) -> None:
    listed = project.run("ls", "--mcp", server)
    assert listed.code == 0, listed.err
    assert [line.split("\t")[0] for line in listed.out.splitlines()][:2] == ["mcp.draw", "mcp.measure"]
    assert project.run("call", "mcp.draw", "--mcp", server, "-o", "it.png").code == 0
    assert (project.directory / "it.png").read_bytes() == PNG
    assert "mcp.draw" in project.run("show", "mcp.draw", "--mcp", server).out
    assert not list(project.directory.glob("*.toml"))
    assert not list(project.directory.glob(".cache/operations/*"))


def test_an_api_is_used_without_a_configuration(tmp_path: Path, api: str) -> None:
    project = Project(tmp_path)
    project.environment["PETS_TOKEN"] = TOKEN
    header = "Authorization: Bearer ${PETS_TOKEN}"
    at = ("--openapi", f"{api}/openapi.json")
    assert project.run("call", "api.me", *at, "--header", header).data == {"id": 1}
    assert "has no credentials" in project.run("call", "api.me", *at).err
    assert project.run("call", "api.me", *at, "--header", "Authorization: Bearer ${UNSET}").code == 2
    assert project.run("search", "calls", *at).out.startswith("api.me\t")
    # The server of the command line comes before the variable's transport.
    assert project.run("ls", *at, env={"OPERATIONS_URL": "ws://127.0.0.1:9/"}).code == 0


def test_a_typo_opens_no_source(pets: Project) -> None:
    config = pets.directory / "operations.toml"
    config.write_text(config.read_text() + "[sources.own]\npython = './own'\n")
    mark = pets.directory / "imported"
    pets.write(
        "own/code.py",
        f"open({str(mark)!r}, 'a').write('x')\nfrom operations import operation\n"
        "@operation(id='own.greet')\ndef greet() -> int: return 1\n",
    )
    assert pets.run("ls").code == 0
    imports = mark.read_text()
    done = pets.run("call", "own.great")
    assert done.code == 3
    assert "did you mean own.greet" in done.err
    assert mark.read_text() == imports
    assert "if the operation is new, run 'ops ls --refresh'" in pets.run("call", "art.drew").err


def test_a_typo_in_the_id_of_an_installed_source_says_how_to_find_new_operations(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(
        "clock.py",
        "from operations import operation\n"
        "def source():\n"
        "    @operation(id='clock.tokyo')\n"
        "    def now() -> str: return 'noon'\n"
        "    return [now]\n",
    )
    project.write("clock-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: clock\nVersion: 1.0\n")
    project.write("clock-1.0.dist-info/entry_points.txt", "[operations.sources]\nclock = clock:source\n")
    project.write("operations.toml", "[sources.times]\nentry_point = 'clock'\n")
    installed = {"PYTHONPATH": str(project.directory)}
    assert project.run("call", "clock.tokyo", env=installed).out.strip() == '"noon"'
    assert project.run("ls", env=installed).out.startswith("clock.tokyo")
    done = project.run("call", "clock.tokio", env=installed)
    assert "did you mean clock.tokyo?" in done.err
    assert "if the operation is new, run 'ops ls --refresh'" in done.err


def test_errors_about_missing_credentials_name_the_option(tmp_path: Path) -> None:
    @operation(id="shop.quote", type="query")
    async def quote(item: str) -> str:
        return f"{item}: 2.5"

    tokens = StaticTokens({TOKEN: Principal(Identity("ada"))})
    project = Project(tmp_path)
    with serving(app(OperationRegistry([quote]), authenticator=tokens, hosts=["127.0.0.1"])) as url:
        for words in (("--mcp", f"{url}/mcp"), ("--openapi", f"{url}/openapi.json")):
            missing = project.run("ls", *words)
            assert missing.code == 6
            assert "401" in missing.err
            assert "hint: pass a token with --header 'Authorization: Bearer ${TOKEN}'" in missing.err
            wrong = project.run("ls", *words, "--header", "Authorization: Bearer other")
            assert wrong.code == 6
            assert "hint: check --header" in wrong.err
        refused = project.run("ls", "--mcp", f"{url}/mcp").err.splitlines()[0]
        assert refused.endswith("HTTP 401: credentials are required")
        project.environment["TOKEN"] = TOKEN
        header = ("--header", "Authorization: Bearer ${TOKEN}")
        called = project.run("call", "api.shop.quote", "item=tea", "--openapi", f"{url}/openapi.json", *header)
        assert called.out.strip() == '"tea: 2.5"', called.err
        called = project.run("call", "mcp.shop.quote", "item=tea", "--mcp", f"{url}/mcp", *header)
        assert called.out.strip() == '"tea: 2.5"', called.err


def test_errors_of_a_source_of_the_command_line_name_its_option(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for words, expected in (
        (("--mcp", "http://127.0.0.1:9/mcp", "--header", "A: ${UNSET}"), "--header A: variable UNSET is not set"),
        (("--openapi", "http://127.0.0.1:9/x", "--header", "A.B: ${"), "--header A.B: unclosed ${"),
        (("--mcp", "run ${UNSET}"), "--mcp: variable UNSET is not set"),
        (("--openapi", "${UNSET}.json"), "--openapi: variable UNSET is not set"),
        (("--openapi", ""), "missing document: expected a path or URL"),
    ):
        failed = project.run("ls", *words)
        assert failed.code == 2
        assert expected in failed.err
        assert "command-line" not in failed.err
        assert "doctor" not in failed.err
        assert "fix the file" not in failed.err


def test_a_source_of_the_command_line_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for words, reason in ((("--mcp", "no-such-server"), "install it"), (("--openapi", "none.json"), "none.json")):
        failed = project.run("ls", *words)
        assert failed.code != 0
        assert f"error: cannot open {words[0]}: " in failed.err
        assert reason in failed.err
