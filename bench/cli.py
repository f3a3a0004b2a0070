"""Start-up of the command line: `ops --help`, `ops call` of a Python operation, `ops ls` of 1,200 cached operations.

Results are CPU times as multiples of a bare interpreter's. The import of all public names is compared with the import
of asyncio, msgspec and jsonschema-rs, which `operations` depends on.

`python -m bench.cli`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.comparisons import Comparison, keep
from bench.measure import report, save, time_processes

OPS = str(Path(sys.executable).parent / "ops")
COUNT = 1_200
LIBRARIES = "import asyncio, msgspec, jsonschema_rs"
OPERATION = '''
from operations import operation


@operation(id="own.greet", type="query")
async def greet(name: str, times: int = 1) -> dict[str, str]:
    """Greet a person."""
    return {"greeting": f"Hello, {name}!" * times}
'''


def document() -> dict[str, object]:
    """Return an OpenAPI document with many operations, with names and descriptions of realistic length."""
    paths: dict[str, object] = {}
    for number in range(COUNT):
        group = f"group{number // 40}"
        paths[f"/{group}/thing{number}/{{id}}"] = {
            "get": {
                "operationId": f"{group}_get_thing_{number}",
                "tags": [group],
                "summary": f"Get thing {number} of a group, with everything that belongs to it.",
                "parameters": [
                    {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
                    {"name": "page", "in": "query", "schema": {"type": "integer"}},
                ],
                "responses": {"200": {"description": "the thing"}},
            }
        }
    return {"openapi": "3.1.0", "info": {"title": "many", "version": "1"}, "paths": paths}


def main() -> None:
    """Measure, print the ratios and save the results."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        os.environ["OPERATIONS_TRUST"] = "1"
        (folder / "many.json").write_text(json.dumps(document()))
        config = folder / "operations.toml"
        # The port is closed: a listing that connected would fail.
        config.write_text('[sources.many]\nopenapi = "many.json"\nbase_url = "http://127.0.0.1:9"\n')
        subprocess.run([sys.executable, OPS, "ls", "-c", str(config)], check=True, stdout=subprocess.DEVNULL)
        own = folder / "own" / "operations.toml"
        own.parent.mkdir()
        own.write_text('[sources.own]\npython = "./greetings.py"\n')
        (own.parent / "greetings.py").write_text(OPERATION)
        subprocess.run([sys.executable, OPS, "ls", "-c", str(own)], check=True, stdout=subprocess.DEVNULL)
        complete = f"ops -c {config} call many.group7_get_thing_29"
        commands = {
            "bare interpreter": ["-c", "pass"],
            LIBRARIES: ["-c", "import asyncio, msgspec, jsonschema_rs"],
            "import operations": ["-c", "import operations"],
            "from operations import *": ["-c", "from operations import *"],
            "ops --help": [OPS, "--help"],
            "ops call --help": [OPS, "call", "--help"],
            "ops call, a Python operation": [OPS, "call", "own.greet", "name=Ada", "-q", "-c", str(own)],
            f"ops ls, {COUNT:,} operations cached": [OPS, "ls", "-c", str(config)],
            f"ops search, {COUNT:,} operations cached": [OPS, "search", "thing", "1100", "-c", str(config)],
            "completion of an operation": [OPS, "__complete", "bash", complete],
            **fastmcp(),
        }
        times = time_processes(commands, rounds=11)
    base, listing = times["bare interpreter"], times[f"ops ls, {COUNT:,} operations cached"]
    report("CPU time of a command, as a multiple of a bare interpreter", times, "bare interpreter")
    save("cli", {"times": times})
    help_text, call = times["ops --help"] / base, times["ops call, a Python operation"] / base
    imports = times["import operations"] / times[LIBRARIES]
    comparisons = [
        Comparison("`ops --help`", "a bare interpreter", "time", help_text, at_most=7),
        Comparison("`ops call` of a Python operation", "a bare interpreter", "time", call, at_most=11),
        Comparison("`import operations`", LIBRARIES, "time", imports, at_most=1.15),
        Comparison(
            f"`ops ls` of {COUNT:,} cached operations", "a bare interpreter", "time", listing / base, at_most=25
        ),
    ]
    keep("bench.cli", comparisons)


def fastmcp() -> dict[str, list[str]]:
    """Return the command for the help of FastMCP, if it is installed."""
    program = Path(sys.executable).parent / "fastmcp"
    if not program.exists():
        print("FastMCP is not installed: skipping its row")
        return {}
    return {"fastmcp --help": [str(program), "--help"]}


if __name__ == "__main__":
    main()
