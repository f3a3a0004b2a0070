"""The tour of `make run`: the commands that a new user would type, run one after the other in this directory.

The tour starts the weather API and the server of the last step on free loopback ports, and stops them at its end.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

from operations import OperationRegistry
from operations.sources.mcp import MCPClientConfig, create_mcp_client

HERE = Path(__file__).parent
OPS = [sys.executable, "-m", "operations"]
STEPS = (
    ("One registry: Python functions, the tools of an MCP server, the endpoints of an HTTP API", "ops ls --tree"),
    ("A Python function", "ops call shop.quote item=tea count=4 --envelope"),
    (
        "A tool of an MCP server, started over stdio",
        "ops call text.count text='one registry for all of them' --envelope",
    ),
    ("An endpoint of an HTTP API", "ops call weather.forecast city=Rome days=2 --envelope"),
    ("A function that calls the other two sources", "ops call shop.advise city=Oslo"),
    ("Three events of a stream", "ops sub weather.watch city=Rome --limit 3"),
    ("A mistake is one clear message (and exit code 2)", "ops call shop.quote itme=tea"),
)
COLOURED = sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def main() -> int:
    """Run the steps; return 0 if each had the expected result."""
    api = subprocess.Popen(
        [sys.executable, str(HERE / "weather_api.py"), "--port", "0", "--idle", "120"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert api.stdout is not None
        port = api.stdout.readline().strip().rpartition(":")[2]
        # The tour trusts the configuration of this directory; elsewhere `ops` asks first.
        environment = {**os.environ, "QUICKSTART_PORT": port, "OPERATIONS_TRUST": "1"}
        codes = [run(title, command, environment) for title, command in STEPS]
        served = serve(environment)
    finally:
        api.terminate()
        api.wait()
    show_next()
    return 0 if served and codes == [0] * (len(STEPS) - 1) + [2] else 1


def run(title: str, command: str, environment: dict[str, str]) -> int:
    """Print a command, run it in this directory, and return its exit code."""
    print(f"\n{paint('1', title)}\n{paint('36', f'$ {command}')}", flush=True)
    words = [*OPS, *split(command)]
    return subprocess.run(words, cwd=HERE, env=environment, check=False).returncode


def serve(environment: dict[str, str]) -> bool:
    """Serve the registry and call an operation over HTTP; return False if that fails."""
    print(f"\n{paint('1', 'The same registry, served')}\n{paint('36', '$ ops serve')}", flush=True)
    server = subprocess.Popen(
        [*OPS, "serve", "--http", "0", "--json"], cwd=HERE, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line:
            return False
        url = json.loads(line)["url"]
        print(f"serving at {url}", flush=True)
        return fetch(f"{url}/shop/quote?item=tea&count=4") and asyncio.run(ask(f"{url}/mcp"))
    finally:
        server.terminate()
        server.wait()


def fetch(address: str) -> bool:
    """Request a URL, with curl if it is installed; return False unless the response is a success."""
    print(paint("36", f"$ curl -s '{address}'"), flush=True)
    if shutil.which("curl") is not None:
        code = subprocess.run(["curl", "-s", "--fail-with-body", address], check=False).returncode
        print(flush=True)
        return code == 0
    with urllib.request.urlopen(address, timeout=10) as response:
        print(response.read().decode(), flush=True)
    return True


async def ask(address: str) -> bool:
    """Call a tool of the MCP server at an address; raise if it reports an error."""
    print(paint("36", f">>> create_mcp_client('tour', MCPClientConfig(url='{address}'))"), flush=True)
    async with await create_mcp_client("tour", MCPClientConfig(url=address)) as client:
        registry = OperationRegistry(client.operations)
        envelope = await registry.execute("tour.shop.quote", {"item": "tea", "count": 4})
        print(f"tour.shop.quote: {envelope.data}", flush=True)
        return envelope.raise_for_error() is envelope


def split(command: str) -> list[str]:
    """Return the words of a command, without the program's name."""
    return shlex.split(command)[1:]


def show_next() -> None:
    """Print what to type next."""
    here = os.path.relpath(HERE)
    print(f"\n{paint('1', 'Now you')}")
    for command, about in (
        (f"source {os.path.relpath(sys.prefix)}/bin/activate && cd {here}", "puts `ops` on the path"),
        ("ops call shop.quote item=honey", "a call of your own"),
        ("ops show weather.forecast", "the input and output of an operation"),
        ("ops call demo.start_api", "the weather API, for ten minutes"),
        ("ops call weather.forecast city=Quito", "an endpoint, as above"),
        ("ops sub weather.watch city=Oslo", "a stream, until Ctrl-C"),
        ("ops serve", "then open http://127.0.0.1:8000/console/ or /docs; MCP: /mcp"),
        ("ops --help", "all commands"),
    ):
        print(f"  {paint('36', f'{command:<57}')} {about}")
    print("\nTo write your first operation in two minutes: README.md")


def paint(style: str, text: str) -> str:
    """Return text in an ANSI style, if the terminal shows colours."""
    return f"\x1b[{style}m{text}\x1b[0m" if COLOURED else text


if __name__ == "__main__":
    sys.exit(main())
