"""The start of the command line: `ops --help`, and `ops ls` of 1,200 cached operations, against a bare interpreter.

`python -m bench.cli`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measure import report, save, time_processes

OPS = str(Path(sys.executable).parent / "ops")
COUNT = 1_200


def document() -> dict[str, object]:
    """An API of many operations, like a large one's in names and descriptions."""
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
    """Measure, print the ratios, keep the results."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        os.environ["OPERATIONS_TRUST"] = "1"
        (folder / "many.json").write_text(json.dumps(document()))
        config = folder / "operations.toml"
        # Nobody listens there: a listing that connected to anything would fail.
        config.write_text('[sources.many]\nopenapi = "many.json"\nbase_url = "http://127.0.0.1:9"\n')
        subprocess.run([sys.executable, OPS, "ls", "-c", str(config)], check=True, stdout=subprocess.DEVNULL)
        complete = f"ops -c {config} call many.group7_get_thing_29"
        commands = {
            "bare interpreter": ["-c", "pass"],
            "import operations": ["-c", "import operations"],
            "ops --help": [OPS, "--help"],
            "ops call --help": [OPS, "call", "--help"],
            f"ops ls, {COUNT:,} operations cached": [OPS, "ls", "-c", str(config)],
            f"ops search, {COUNT:,} operations cached": [OPS, "search", "thing", "1100", "-c", str(config)],
            "completion of an operation": [OPS, "__complete", "bash", complete],
            **fastmcp(),
        }
        times = time_processes(commands, rounds=11)
    base, listing = times["bare interpreter"], times[f"ops ls, {COUNT:,} operations cached"]
    report("CPU time of a command, as a multiple of a bare interpreter", times, "bare interpreter")
    verdicts = {
        "times a bare interpreter for ops --help (wanted: 12 or less)": times["ops --help"] / base,
        "times a bare interpreter for ops ls (wanted: 25 or less)": listing / base,
    }
    print()
    for text, ratio in verdicts.items():
        print(f"  {ratio:8.2f} {text}")
    save("cli", {"times": times, "verdicts": verdicts})


def fastmcp() -> dict[str, list[str]]:
    """The help of FastMCP's command line, where it is installed."""
    program = Path(sys.executable).parent / "fastmcp"
    if not program.exists():
        print("FastMCP is not installed: its row is left out")
        return {}
    return {"fastmcp --help": [str(program), "--help"]}


if __name__ == "__main__":
    main()
