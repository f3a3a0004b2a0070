"""`ops serve` and `ops keys`, started as a user starts them."""

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

from operations.config import describe_config, load_config
from operations.config.redaction import redact
from operations.errors import CallError
from tests.serving.mcp.wire import message

OPS = [sys.executable, "-m", "operations"]
MODULE = '''
from operations import operation

@operation(type="query")
async def quote(item: str) -> str:
    """Return a price."""
    return f"{item}: 3"

@operation(type="mutation")
async def order(item: str) -> str:
    """Order an item."""
    return item
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(MODULE)
    (tmp_path / "operations.toml").write_text('[sources.shop]\npython = "shop.py"\n[serve]\nkeys = "keys.json"\n')
    return tmp_path


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "OPERATIONS_TOKEN"}
    return {**kept, "OPERATIONS_TRUST": "1"}


def ops(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OPS, *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [*OPS, "serve", "--http", "0", "--json", *words]
    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"], process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def fetch(url: str, key: str | None = None, data: bytes | None = None, *, client: str | None = None) -> tuple[int, Any]:
    headers = {"content-type": "application/json", **({"x-api-key": key} if key else {})}
    headers |= {"x-forwarded-for": client} if client else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_keys_are_made_listed_and_revoked(folder: Path) -> None:
    made = ops(folder, "keys", "new", "robot", "--scope", "read", "--expires", "30d")
    key = made.stdout.strip()
    assert key.startswith("ops_")
    listed = json.loads(ops(folder, "keys", "ls", "--json").stdout)
    assert [(each["identity"], each["scopes"]) for each in listed] == [("robot", ["read"])]
    assert key.split("_", 2)[2] not in ops(folder, "keys", "ls").stdout
    by_name = ops(folder, "keys", "revoke", "robot")
    assert by_name.returncode == 3
    assert f"hint: pass the id of a key of robot: {listed[0]['id']}" in by_name.stderr
    assert ops(folder, "keys", "revoke", listed[0]["id"]).returncode == 0
    assert ops(folder, "keys", "revoke", listed[0]["id"]).returncode == 3
    assert ops(folder, "keys", "new", "robot", "--expires", "soon").returncode == 2
    (folder / "operations.toml").write_text('[sources.shop]\npython = "shop.py"\n')
    assert "--keys FILE" in ops(folder, "keys", "ls").stderr


def test_a_key_has_the_actions_of_its_resources(folder: Path) -> None:
    words = [
        word for each in ("7=read", "7=close", "8:a=b=read", "7=read") for word in ("--resource", f"account:{each}")
    ]
    key = ops(folder, "keys", "new", "ada", "--scope", "greet", *words).stdout.strip()
    resources = {"account:7": ["read", "close"], "account:8:a=b": ["read"]}
    assert [each["resources"] for each in json.loads(ops(folder, "keys", "ls", "--json").stdout)] == [resources]
    assert "  greet account:7=read account:7=close account:8:a=b=read  " in ops(folder, "keys", "ls").stdout
    with (folder / "operations.toml").open("a") as file:
        file.write('[access]\n"*" = { resource_type = "account", resource_action = "close" }\n')
    reader = ops(folder, "keys", "new", "eve", "--resource", "account:7=read").stdout.strip()
    with serving(folder) as (url, _):
        assert fetch(f"{url}/shop/quote?item=tea", key) == (200, "tea: 3")
        assert fetch(f"{url}/shop/quote?item=tea", reader)[0] == 403


@pytest.mark.parametrize(
    "text", ["account", "account:7", "account=read", "account:=read", ":7=read", "account:7=", "a:7=b,c"]
)
def test_a_resource_of_another_form_is_refused(folder: Path, text: str) -> None:
    refused = ops(folder, "keys", "new", "ada", f"--resource={text}")
    assert refused.returncode == 2
    expected = "TYPE:ID=ACTION with one action, such as account:7=read"
    assert f"invalid --resource {text!r}: expected {expected}" in refused.stderr
    assert not (folder / "keys.json").exists()


def test_a_registry_is_served_and_calls_are_printed(folder: Path) -> None:
    key = ops(folder, "keys", "new", "robot").stdout.strip()
    with serving(folder, "--read-only") as (url, process):
        assert fetch(f"{url}/shop/quote?item=tea", key) == (200, "tea: 3")
        elsewhere = ops(folder, "ls", "--url", url.replace("http:", "ws:"))
        assert elsewhere.returncode == 4
        assert "refused the connection: HTTP status 403\nhint: set OPERATIONS_TOKEN" in elsewhere.stderr
        assert "; the address of a server of 'ops serve' ends with /ws" in elsewhere.stderr
        assert fetch(f"{url}/shop/quote?item=tea")[0] == 401
        assert fetch(f"{url}/shop/order", key, b'{"item": "tea"}')[0] == 404
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert (told["event"], told["operationId"], told["caller"]) == ("called", "shop.quote", "robot")
    assert process.returncode == 0


@pytest.mark.parametrize(("proxies", "status"), [('["127.0.0.1"]', 200), ("[]", 429)])
def test_limits_by_address_count_the_clients_of_a_configured_proxy(folder: Path, proxies: str, status: int) -> None:
    with (folder / "operations.toml").open("a") as file:
        file.write(f"proxies = {proxies}\n[serve.limits]\nfailures = 2\n")
    key = ops(folder, "keys", "new", "reporter").stdout.strip()
    with serving(folder) as (url, _):
        for attempt in range(3):
            fetch(f"{url}/shop/quote?item=tea", f"wrong-{attempt}", client="198.51.100.1")
        assert fetch(f"{url}/shop/quote?item=tea", key, client="198.51.100.1")[0] == 429
        assert fetch(f"{url}/shop/quote?item=tea", key, client="198.51.100.2")[0] == status


def test_serving_elsewhere_is_refused_without_credentials(folder: Path) -> None:
    (folder / "operations.toml").write_text('[sources.shop]\npython = "shop.py"\n')
    refused = ops(folder, "serve", "--http", "0.0.0.0:0")
    assert refused.returncode == 2
    assert "--insecure" in refused.stderr
    assert "opening" not in refused.stderr
    nameless = ops(folder, "serve", "--http", "0.0.0.0:0", "--insecure")
    assert nameless.returncode == 2
    assert "no host names configured for 0.0.0.0" in nameless.stderr
    assert "opening" not in nameless.stderr
    taken = ops(folder, "serve", "--http", "127.0.0.1:x")
    assert taken.returncode == 2
    assert "expected host:port" in taken.stderr
    assert "--insecure" not in taken.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('public_url = "api.example.com"', "expected an address"),
        ('origins = ["*"]', "expected an origin"),
        ('[serve.issuer]\nurl = "https://a.example"', "expected an audience or a public_url"),
        ('[serve.jwt]\nkey = "k"\nalgorithms = ["HS256"]', "expected an audience or a public_url"),
        ('tokens = [{token = "a", identity = "x"}, {token = "a", identity = "y"}]', "duplicate token"),
        ("[serve.limits]\nbody_bytes = 0", "body_bytes"),
        ('colour = "red"', "colour"),
    ],
)
def test_the_table_is_checked(folder: Path, text: str, message: str) -> None:
    (folder / "operations.toml").write_text(f'[sources.shop]\npython = "shop.py"\n[serve]\n{text}\n')
    with pytest.raises(CallError, match=message):
        load_config(folder)


def test_a_table_that_lacks_a_variable_is_not_used(folder: Path) -> None:
    (folder / "operations.toml").write_text('[sources.shop]\npython = "shop.py"\n[serve]\nkeys = "${NO_SUCH_VAR}"\n')
    config = load_config(folder, environ={})
    assert config.serve is None
    assert "NO_SUCH_VAR" in config.unusable["serve"]


def test_secrets_of_the_table_are_hidden(folder: Path) -> None:
    (folder / "operations.toml").write_text(
        '[serve]\ntokens = [{token = "tok-123456789", identity = "x"}]\nkeys = "keys.json"\n'
        '[serve.jwt]\nkey = "jwt-123456789"\nalgorithms = ["HS256"]\naudience = "https://a.example"\n'
    )
    config = load_config(folder)
    described = str(describe_config(config))
    assert "123456789" not in described
    assert "keys.json" in described
    assert redact("saw tok-123456789 and jwt-123456789", config).count("123456789") == 0


def ask_stdio(folder: Path, *messages: dict[str, Any], **variables: str) -> subprocess.CompletedProcess[str]:
    lines = "".join(json.dumps(each) + "\n" for each in messages)
    command = [*OPS, "serve", "--mcp", "--quiet"]
    env = {**environment(), **variables}
    return subprocess.run(
        command, cwd=folder, env=env, input=lines, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_token_decides_who_calls_over_standard_input(folder: Path) -> None:
    with (folder / "operations.toml").open("a") as file:
        file.write('[access]\n"shop.order" = ["write"]\n')
    reader, writer = (ops(folder, "keys", "new", "robot", "--scope", each).stdout.strip() for each in ("read", "write"))
    order = message("tools/call", {"name": "shop.order", "arguments": {"item": "tea"}})
    local = json.loads(ask_stdio(folder, order).stdout)
    assert local["result"]["content"][0]["text"] == "tea"
    allowed = json.loads(ask_stdio(folder, order, OPERATIONS_TOKEN=writer).stdout)
    assert allowed["result"]["content"][0]["text"] == "tea"
    denied = json.loads(ask_stdio(folder, order, OPERATIONS_TOKEN=reader).stdout)
    assert denied["error"]["message"] == "Unknown tool: shop.order"
    refused = ask_stdio(folder, order, OPERATIONS_TOKEN="ops_wrong")
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "the token in OPERATIONS_TOKEN was refused" in refused.stderr


def test_calls_run_as_jobs_if_configured(folder: Path) -> None:
    (folder / "operations.toml").write_text('[sources.shop]\npython = "shop.py"\n[serve]\njobs = "memory"\n')
    with serving(folder) as (url, _):
        headers = {"content-type": "application/json", "prefer": "respond-async, wait=20"}
        sent = urllib.request.Request(f"{url}/shop/order", b'{"item": "tea"}', headers)
        with urllib.request.urlopen(sent, timeout=30) as response:
            assert (json.loads(response.read()), response.headers["preference-applied"]) == ("tea", "respond-async")
    answer = json.loads(ask_stdio(folder, message("server/discover")).stdout)
    assert "io.modelcontextprotocol/tasks" in answer["result"]["capabilities"]["extensions"]


@pytest.mark.parametrize("source", ["file", "nothing"])
def test_mcp_is_served_from_a_file_to_a_file(folder: Path, source: str) -> None:
    call = json.dumps(message("tools/call", {"name": "shop.quote", "arguments": {"item": "tea"}}, id="a"))
    (folder / "in").write_text(call + "\n" if source == "file" else "")
    given = folder / "in" if source == "file" else Path(os.devnull)
    with given.open("rb") as stdin, (folder / "out").open("wb") as stdout:
        done = subprocess.run(
            [*OPS, "serve", "--mcp"],
            cwd=folder,
            env=environment(),
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in (folder / "out").read_text().splitlines()]
    assert [each["id"] for each in answers] == (["a"] if source == "file" else [])
