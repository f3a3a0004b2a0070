"""Editors' MCP configuration files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from operations.config import load_config
from operations.config.mcp_source import mcp_config
from operations.config.settings import MCPSettings
from operations.sources.mcp import MCPClientConfig
from tests.config.files import load, problems, write

CLAUDE = """
{
  "mcpServers": {
    "my files": {
      "command": "npx",
      "args": ["-y", "server", "${HOME_FOLDER:-/data}"],
      "env": {"PORT": 3000, "DEBUG": true, "KEY": "${KEY}"},
      "autoApprove": ["*"], "alwaysAllow": [], "timeout": 60000
    },
    "remote": {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${KEY}"}},
    "windsurf": {"serverUrl": "https://example.com/w"},
    "gemini": {"httpUrl": "https://example.com/g", "includeTools": ["a"], "excludeTools": ["b"]},
    "off": {"command": "x", "disabled": true, "env": {"X": "${NOT_SET}"}},
    "old": {"type": "sse", "url": "https://example.com/sse"}
  }
}
"""


def client(path: Path, name: str, **environ: str) -> MCPClientConfig:
    source = load_config(path, environ=environ).sources[name]
    assert isinstance(source.settings, MCPSettings)
    return mcp_config(source.settings, source.directory)


def test_the_form_that_most_editors_write(tmp_path: Path) -> None:
    path = write(tmp_path, CLAUDE, ".mcp.json")
    config = load_config(path, environ={"KEY": "k3y"})
    assert list(config.sources) == ["my files", "remote", "windsurf", "gemini", "old"]
    files = client(path, "my files", KEY="k3y")
    assert (files.command, files.args, files.cwd) == ("npx", ["-y", "server", "/data"], tmp_path)
    assert files.env == {"PORT": "3000", "DEBUG": "true", "KEY": "k3y"}
    assert client(path, "remote", KEY="k3y").headers == {"Authorization": "Bearer k3y"}
    assert client(path, "windsurf", KEY="k3y").url == "https://example.com/w"
    gemini = config.sources["gemini"].settings
    assert (gemini.allow, gemini.deny) == (["a"], ["b"])
    assert (client(path, "old", KEY="k3y").sse, client(path, "remote", KEY="k3y").sse) == (True, False)
    assert config.sources["remote"].line == 9


def test_the_form_of_vs_code(tmp_path: Path) -> None:
    write(tmp_path, "FROM_FILE=yes", ".env")
    path = write(
        tmp_path,
        """
        {
          // VS Code allows comments
          "inputs": [{"id": "key", "type": "promptString", "password": true}],
          "servers": {
            "a": {
              "type": "stdio",
              "command": "${workspaceFolder}/run",
              "args": ["${env:WHO}", "${userHome}"],
              "envFile": "${workspaceFolder}/.env",
            },
            "b": {"command": "x", "env": {"KEY": "${input:key}"}},
          },
        }
        """,
        ".vscode/mcp.json",
    )
    config = client(path, "a", WHO="ada")
    assert (config.command, config.args) == (f"{tmp_path}/run", ["ada", str(Path.home())])
    assert (config.env, config.cwd) == ({"FROM_FILE": "yes"}, tmp_path)
    problem = load_config(path, environ={"WHO": "x"}).sources["b"].problem
    where = f"{path}:11: servers.b.env.KEY"
    assert problem == f"{where}: unsupported variable ${{input:key}}: use an environment variable instead"


def test_they_are_included_beside_other_sources(tmp_path: Path) -> None:
    write(tmp_path, CLAUDE, ".cursor/mcp.json")
    config = load(tmp_path, "include = ['.cursor/mcp.json']\n[sources.local]\npython = 'x'", {"KEY": "k"})
    assert list(config.sources) == ["local", "my files", "remote", "windsurf", "gemini", "old"]
    assert config.sources["my files"].directory == tmp_path


def test_an_unset_variable_disables_its_source_and_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, CLAUDE, "mcp.json")
    found = {name: source.problem for name, source in load_config(path, environ={}).sources.items()}
    missing = "variable KEY is not set: set it, or write ${KEY:-default}"
    assert found["my files"] == f"{path}:6: mcpServers.my files.env.KEY: {missing}"
    assert found["remote"] == f"{path}:9: mcpServers.remote.headers.Authorization: {missing}"
    assert found["windsurf"] is None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("comand", "command"),
        ("evn", "env"),
        ("arg", "args"),
        ("header", "headers"),
        ("ulr", "url"),
        ("disable", "disabled"),
    ],
)
def test_a_key_that_is_misspelt_is_refused_with_the_right_one(typed: str, meant: str, tmp_path: Path) -> None:
    table = {"autoApprove": ["*"], "comment": "mine", "disabledTools": [], typed: "x"}
    if typed not in ("comand", "ulr"):
        table["command"] = "npx"
    path = write(tmp_path, json.dumps({"mcpServers": {"files": table}}, indent=1), "mcp.json")
    assert problems(path) == [f"mcp.json:9: mcpServers.files.{typed}: unknown key; did you mean {meant}?"]


def test_a_file_without_servers_is_rejected(tmp_path: Path) -> None:
    assert problems(write(tmp_path, '{"name": "x"}', "package.json")) == [
        "package.json:1: not an editor's MCP configuration: expected `mcpServers` or `servers`"
    ]
    assert problems(write(tmp_path, '{"servers":\n{"a": "npx"}}', "mcp.json")) == ["mcp.json:2: a: expected an object"]
    text = '{"servers": {\n"a": {"command": "x",\n"args": "a b"}}}'
    assert problems(write(tmp_path, text, "mcp.json")) == ["mcp.json:3: servers.a.args: expected a list, got a string"]
