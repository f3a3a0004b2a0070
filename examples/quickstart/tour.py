"""The tour that `make run` gives: the commands a newcomer would type, run one after the other on this folder.

The weather API is started for the tour on a free port of the loopback, and ended with it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OPS = [sys.executable, "-m", "operations"]
STEPS = (
    ("One registry: Python functions, the tools of an MCP server, the endpoints of an HTTP API", "ops ls --tree"),
    ("A Python function", "ops call shop.quote item=tea count=4 --envelope"),
    ("A tool of an MCP server, started over stdio", "ops call text.count text='one door for all of them' --envelope"),
    ("An endpoint of an HTTP API", "ops call weather.forecast city=Rome days=2 --envelope"),
    ("A function that calls the other two: results compose", "ops call shop.advise city=Oslo"),
    ("Three events of a stream", "ops sub weather.watch city=Rome --limit 3"),
    ("A mistake is one clear message (and exit code 2)", "ops call shop.quote itme=tea"),
)
COLOURED = sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def main() -> int:
    """Run the steps; the exit code tells whether they went as they should."""
    api = subprocess.Popen(
        [sys.executable, str(HERE / "weather_api.py"), "--port", "0", "--idle", "120"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert api.stdout is not None
        port = api.stdout.readline().strip().rpartition(":")[2]
        # The tour runs this folder's own configuration; anywhere else `ops` asks first.
        environment = {**os.environ, "QUICKSTART_PORT": port, "OPERATIONS_TRUST": "1"}
        codes = [run(title, command, environment) for title, command in STEPS]
    finally:
        api.terminate()
        api.wait()
    show_next()
    return 0 if codes == [0] * (len(STEPS) - 1) + [2] else 1


def run(title: str, command: str, environment: dict[str, str]) -> int:
    """Show a command, run it here, and give its exit code."""
    print(f"\n{paint('1', title)}\n{paint('36', f'$ {command}')}", flush=True)
    words = [*OPS, *split(command)]
    return subprocess.run(words, cwd=HERE, env=environment, check=False).returncode


def split(command: str) -> list[str]:
    """The words of a command, without the program's name."""
    return shlex.split(command)[1:]


def show_next() -> None:
    """Say what to type next."""
    here = os.path.relpath(HERE)
    print(f"\n{paint('1', 'Now you')}")
    for command, about in (
        (f"source {os.path.relpath(sys.prefix)}/bin/activate && cd {here}", "puts `ops` on the path"),
        ("ops call shop.quote item=honey", "a call of your own"),
        ("ops show weather.forecast", "what an operation takes and gives"),
        ("ops call demo.start_api", "the weather API, for ten minutes"),
        ("ops call weather.forecast city=Quito", "an endpoint, as above"),
        ("ops sub weather.watch city=Oslo", "a stream, until Ctrl-C"),
        ("ops --help", "all the rest"),
    ):
        print(f"  {paint('36', f'{command:<57}')} {about}")
    print("\nYour first own operation, in two minutes: README.md")


def paint(style: str, text: str) -> str:
    """Text in an ANSI style, where the terminal shows one."""
    return f"\x1b[{style}m{text}\x1b[0m" if COLOURED else text


if __name__ == "__main__":
    sys.exit(main())
