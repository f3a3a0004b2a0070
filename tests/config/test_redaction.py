"""Secrets are never shown."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from operations.config import describe_config, load_config
from operations.config.redaction import redact, secret_values
from tests.config.files import load

SECRETS = st.text("abcdefghijklmnopqrstuvwxyzABCDEF0123456789-_.~", min_size=8, max_size=24).map(lambda s: f"Zq{s}qZ")

PLACES = {
    "header": "url = 'https://x'\nheaders = {{ X-Custom = '{}' }}",
    "cookie": "openapi = 'x'\nheaders = {{ Cookie = 'sid={}; lang=en' }}",
    "bearer": "url = 'https://x'\nauth = {{ type = 'bearer', token = '{}' }}",
    "basic": "openapi = 'x'\nauth = {{ type = 'basic', username = 'ada', password = '{}' }}",
    "oauth2": "openapi = 'x'\nauth = {{ type = 'oauth2', client_id = 'id', client_secret = '{}' }}",
    "scheme": "openapi = 'x'\nsecurity = {{ main = {{ type = 'api_key', token = '{}' }} }}",
    "oauth": "url = 'https://x'\noauth = {{ client_id = 'id', client_secret = '{}' }}",
    "env": "command = 'x'\nenv = {{ PLAIN = '{}' }}",
    "flag": "command = 'x'\nargs = ['--api-key', '{}', 'shown']",
    "joined flag": "command = 'x'\nargs = ['--token={}', 'shown']",
    "header flag": "command = 'x'\nargs = ['--header', 'Authorization: Bearer {}']",
    "assignment": "command = 'x'\nargs = ['env', 'API_KEY={}']",
    "url user": "url = 'https://ada:{}@host/mcp'",
    "url query": "url = 'https://host/mcp?a=b&api_key={}'",
    "proxy": "openapi = 'x'\nproxy = 'http://ada:{}@proxy:80'",
    "option": "entry_point = 'x'\noptions = {{ nested = {{ password = '{}' }} }}",
    "dsn": "entry_point = 'x'\noptions = {{ address = 'postgres://ada:{}@db/x' }}",
}


def shown(path: Path, environ: dict[str, str]) -> str:
    """Everything of a configuration that may be printed."""
    config = load_config(path, environ=environ)
    values: list[object] = [config, describe_config(config), config.hub, *config.transports.values()]
    for source in config.sources.values():
        values += [source, source.settings, *(getattr(source.settings, name, None) for name in ("auth", "oauth"))]
    text = "\n".join(f"{value!r}\n{value!s}" for value in values)
    return text + json.dumps(describe_config(config))


@given(st.sampled_from(sorted(PLACES)), SECRETS, st.booleans())
def test_a_secret_is_never_shown(place: str, secret: str, from_variable: bool) -> None:
    written = PLACES[place].format("${S_VALUE}" if from_variable else secret)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "operations.toml"
        path.write_text(f"[sources.a]\n{written}\n")
        text = shown(path, {"S_VALUE": secret})
        config = load_config(path, environ={"S_VALUE": secret})
        assert secret not in text
        assert ("${S_VALUE}" in text) is from_variable
        assert secret not in redact(f"cannot connect with {secret}!", config)


@given(SECRETS)
def test_secrets_of_the_hub_and_of_transports_are_not_shown(secret: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "operations.toml"
        path.write_text(
            f"[[hub.tokens]]\ntoken='{secret}'\nidentity='ada'\n[hub.jwt]\nkey='{secret}x'\nalgorithms=['HS256']\n"
            f"[transports.a]\nurl='redis://:{secret}@host'\ntoken='{secret}'\noptions={{password='{secret}'}}\n"
        )
        assert secret not in shown(path, {})
        assert "ada" in shown(path, {})


def test_values_that_are_not_secret_are_shown(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [sources.a]
        url = "https://${HOST:-localhost}/mcp?page=1"
        timeout = 3
        auth = { type = "api_key", header_name = "X-Key", token = "literal" }
        headers = { Authorization = "Bearer ${TOKEN}", Mixed = "prefix-${TOKEN:-fallback}" }
        [sources.b]
        command = "npx"
        args = ["-y", "server", "--port", "${PORT:-80}", "https://host/path"]
        rename = { get_token = "token" }
        [access]
        "auth.tokens" = ["auth"]
        """,
        {"TOKEN": "t0ken-value"},
    )
    assert describe_config(config) == {
        "path": str(tmp_path / "operations.toml"),
        "sources": {
            "a": {
                "kind": "mcp",
                "url": "https://${HOST:-localhost}/mcp?page=1",
                "timeout": 3,
                "auth": {"type": "api_key", "header_name": "X-Key", "token": "[redacted]"},
                "headers": {"Authorization": "${TOKEN}", "Mixed": "[redacted] ${TOKEN}"},
            },
            "b": {
                "kind": "mcp",
                "command": "npx",
                "args": ["-y", "server", "--port", "${PORT:-80}", "https://host/path"],
                "rename": {"get_token": "token"},
            },
        },
        "access": {"auth.tokens": ["auth"]},
    }
    assert repr(config) == f"Config(path='{tmp_path}/operations.toml', sources=['a', 'b'])"
    assert {"t0ken-value"} <= set(secret_values(config))
    assert msgspec.json.encode(describe_config(config))
