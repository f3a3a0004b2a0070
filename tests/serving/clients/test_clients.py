"""Third-party clients read the served document and call the operations that it describes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from operations import (
    AccessControl,
    CallError,
    ErrorCode,
    Identity,
    Operation,
    OperationContext,
    OperationRegistry,
    operation,
)
from operations.identity.tokens import Principal, StaticTokens
from operations.jobs import Jobs
from operations.serving import Limits, app
from operations.sources.openapi import HTTPServiceConfig, from_openapi_file
from tests.serving.clients.shop import registry
from tests.serving.http_server import running_in_thread

HERE = Path(__file__).parent
NODE = HERE / "node"
TOOLS = Path(f"{sys.prefix}-clients") / "bin"
DOCUMENTS = os.environ.get("OPERATIONS_TEST_DOCUMENTS")


def run(*command: str | Path, cwd: Path | None = None, seconds: float = 300) -> str:
    """Run a program; if it fails, fail the test with its whole output."""
    environment = {**os.environ, "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-8000:]}{done.stderr[-8000:]}"
    return done.stdout


def tool(name: str) -> Path:
    """A program in the environment of the clients; a missing one fails the test that needs it."""
    path = TOOLS / name
    assert path.exists(), f"{name} is not installed: `make clients` does it"
    return path


def generator(name: str) -> Path:
    """A program from npm; a missing one fails the test that needs it."""
    path = NODE / "node_modules" / ".bin" / name
    assert path.exists(), f"{name} is not installed: `make clients` does it"
    return path


def fuzz(folder: Path, url: str, *options: str, seconds: float = 300) -> int:
    """Run schemathesis with every check in a separate directory; returns the number of requests that it made."""
    command: tuple[str | Path, ...] = (tool("schemathesis"), "run", url, "--checks", "all", "--no-color", *options)
    told = run(*command, cwd=folder, seconds=seconds)
    found = re.search(r"(\d+) generated", told)
    assert found is not None, told
    return int(found[1])


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    operations = registry()
    with running_in_thread(app(operations, jobs=Jobs(operations))) as url:
        yield url


@pytest.fixture
def document(shop: str, tmp_path: Path) -> Path:
    path = tmp_path / "shop.json"
    run("curl", "-sSf", "-o", path, f"{shop}/openapi.json")
    return path


def test_curl_reads_a_stream(shop: str) -> None:
    told = run("curl", "-sSNf", "-H", "Accept: text/event-stream", f"{shop}/shop/watch?item=4&events=2")
    events = [block for block in told.split("\n\n") if "data:" in block]
    assert [json.loads(event.partition("data: ")[2]) for event in events[:2]] == [
        {"id": 4, "name": f"item {n}", "price": {"amount": float(n), "currency": "EUR"}, "colour": None, "tags": []}
        for n in range(2)
    ]
    assert events[2].startswith("event: operations.complete")


@pytest.mark.slow
def test_a_short_run_of_schemathesis_finds_nothing(shop: str, tmp_path: Path) -> None:
    assert fuzz(tmp_path, f"{shop}/openapi.json", "-n", "3", "--seed", "1") > 100


@pytest.mark.clients
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("version", "seed"), [("3.1", 1), ("3.2", 2)])
def test_schemathesis_finds_nothing(shop: str, tmp_path: Path, version: str, seed: int) -> None:
    assert fuzz(tmp_path, f"{shop}/openapi.json?version={version}", "-n", "60", "--seed", str(seed)) > 1000


@operation(namespace="closed", type="query", access_control=AccessControl(required_scopes=["admin"]))
async def reveal(value: int) -> int:
    """Return a value, for callers with the scope."""
    return value


@pytest.mark.clients
@pytest.mark.timeout(400)
@pytest.mark.parametrize("anonymous", [True, False])
def test_schemathesis_finds_nothing_behind_credentials(tmp_path: Path, anonymous: bool) -> None:
    tokens = StaticTokens({"a-token": Principal(Identity("user", scopes=["admin"]))})
    protected = registry()
    protected.register(reveal)
    served = app(protected, authenticator=tokens, allow_anonymous=anonymous, limits=Limits(failures=10**9))
    with running_in_thread(served) as url:
        shown = ("-H", "Authorization: Bearer a-token", "--include-path-regex", "closed|find|buy|watch")
        assert fuzz(tmp_path, f"{url}/openapi.json", "-n", "20", "--seed", "1", *shown) > 100


@pytest.mark.clients
@pytest.mark.parametrize("version", ["3.1", "3.2"])
def test_redocly_finds_no_error(shop: str, tmp_path: Path, version: str) -> None:
    run("curl", "-sSf", "-o", tmp_path / "shop.json", f"{shop}/openapi.json?version={version}")
    run(generator("redocly"), "lint", tmp_path / "shop.json")


@pytest.mark.clients
def test_a_client_of_openapi_python_client_calls_and_streams(shop: str, document: Path, tmp_path: Path) -> None:
    command = ("generate", "--path", document, "--meta", "none", "--output-path", tmp_path / "shop_client")
    assert "WARNING" not in run(tool("openapi-python-client"), *command)
    # The generated client is in the working directory.
    code = f"import sys; sys.path.insert(0, '.'); exec(open({str(HERE / 'call_python.py')!r}).read())"
    told = run(tool("python"), "-c", code, shop, "shop_client", cwd=tmp_path)
    assert json.loads(told) == {
        "found": [200, "chair", 2, "EUR"],
        "asked": [200, 1],
        "refused": [409, "REFUSED"],
        "depth": 2,
        "events": 4,
        "ended": True,
    }


@pytest.mark.clients
def test_typed_clients_in_typescript_call_and_stream(shop: str, document: Path) -> None:
    generated = NODE / "generated"
    generated.mkdir(exist_ok=True)
    run(generator("openapi-typescript"), document, "-o", generated / "shop.d.ts", cwd=NODE)
    run(generator("openapi-ts"), "-i", document, "-o", generated / "hey", cwd=NODE)
    run(generator("tsc"), cwd=NODE)
    assert json.loads(run("node", NODE / "built" / "call_fetch.js", shop)) == {
        "found": [200, "chair", 2],
        "asked": [200, 1],
        "refused": [409, "REFUSED"],
        "invalid": [422, "/name"],
        "events": 4,
        "ended": True,
    }
    assert json.loads(run("node", NODE / "built" / "call_hey.js", shop)) == {
        "found": [200, "chair", 2],
        "asked": [200, "red"],
        "refused": [409, "REFUSED"],
        "depth": 2,
        "stored": {"size": 3},
        "names": ["item 0", "item 1", "item 2"],
        "ended": "operations.complete",
        "asked_stream": 2,
    }


@pytest.mark.clients
def test_the_documentation_page_lists_calls_and_streams(shop: str) -> None:
    assert json.loads(run("node", NODE / "read_page.mjs", shop)) == {
        "title": "operations",
        "listed": len(registry().operations),
        "matches": 1,
        "hostile": {"text": "<img src=x onerror=alert(1)><script>alert(2)</script>", "images": 0},
        "sample": {"name": "", "limit": 10, "colours": None, "cheap": False},
        "called": True,
        "streamed": ["item 0", "item 1", "item 2"],
        "refused": True,
        "token": "Bearer a token",
        "elsewhere": 0,
        "console_errors": [],
    }


FORMATS = {
    "date-time": "2020-01-01T00:00:00Z",
    "date": "2020-01-01",
    "uri": "http://x.test/",
    "uri-template": "http://x.test/",
    "email": "a@x.test",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "hostname": "x.test",
    "ipv4": "127.0.0.1",
}


def walk(value: Any, schema: Any, definitions: Any, visit: Callable[[Any, Any], Any]) -> Any:
    """Return a value with each part replaced by `visit(part, schema)`."""
    if isinstance(schema, bool):
        return value
    for part in [*schema.get("allOf", ()), *schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        value = walk(value, part, definitions, visit)
    if "$ref" in schema:
        value = walk(value, definitions[schema["$ref"].removeprefix("#/$defs/")], definitions, visit)
    if isinstance(value, dict):
        members = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        return {key: walk(item, members.get(key, others), definitions, visit) for key, item in value.items()}
    if isinstance(value, list):
        return [walk(item, schema.get("items", True), definitions, visit) for item in value]
    return visit(value, schema)


def formatted(value: Any, schema: Any) -> Any:
    """A string of the format that its schema requires."""
    return FORMATS.get(schema.get("format", ""), value) if isinstance(value, str) else value


def refuse_misformatted(value: Any, schema: Any) -> Any:
    """Refuse values that the API itself would refuse: formats and sizes are not checked before."""
    kind = schema.get("format")
    too_large = kind == "int64" and isinstance(value, int) and not -(2**63) <= value < 2**63
    if too_large or (isinstance(value, str) and kind in FORMATS and not CHECKERS[kind].is_valid(value)):
        raise CallError(ErrorCode.EXECUTION_ERROR, "the API refuses this", {"statusCode": 422})
    return value


CHECKERS = {
    kind: jsonschema_rs.validator_for({"type": "string", "format": kind}, validate_formats=True) for kind in FORMATS
}


def answering(imported: Operation[Any]) -> Operation[Any]:
    """An imported operation that returns a small valid result instead of calling its API."""
    spec = imported.spec

    async def handle(input: Any, context: OperationContext) -> Any:
        for schema, value, visit in (
            (spec.input_schema.document, input, refuse_misformatted),
            (spec.output_schema.document, spec.output_schema.cast(None, "total"), formatted),
        ):
            result = walk(value, schema, schema.get("$defs", {}) if isinstance(schema, dict) else {}, visit)
        return result

    return Operation(spec=spec, handler=handle)


@pytest.fixture
def github(tmp_path: Path) -> OperationRegistry:
    if not DOCUMENTS:
        pytest.skip("OPERATIONS_TEST_DOCUMENTS names no folder: GitHub's document is not here and was not served")
    with tarfile.open(Path(DOCUMENTS) / "documents.tar.xz") as archive:
        archive.extract("specs/github-api.json", tmp_path, filter="data")
    logging.getLogger("operations.schema").setLevel(logging.ERROR)
    config = HTTPServiceConfig(namespace="github")
    loaded = asyncio.run(from_openapi_file(tmp_path / "specs" / "github-api.json", config))
    return OperationRegistry(map(answering, loaded))


@pytest.mark.clients
@pytest.mark.timeout(900)
def test_tools_read_a_document_of_the_size_of_githubs(github: OperationRegistry, tmp_path: Path) -> None:
    with running_in_thread(app(github, limits=Limits(rate=None))) as url:
        run("curl", "-sSf", "-o", tmp_path / "github.json", f"{url}/openapi.json")
        run(generator("redocly"), "lint", "--max-problems", "20", tmp_path / "github.json", seconds=600)
        run(generator("openapi-typescript"), tmp_path / "github.json", "-o", tmp_path / "github.d.ts", cwd=NODE)
        made = fuzz(tmp_path, f"{url}/openapi.json", "-n", "1", "--seed", "1", "--max-time", "120", seconds=800)
    assert made > 100
