"""Figures of the console in a real Chromium: `python -m tests.console.figures`, on a machine without other load.

Prints how long GitHub's catalogue takes to be listed, the time of each key of a search, and the longest tasks of the
page's main thread while it shows results of 10 MB and follows a stream of thousands of events a second. The tasks come
from Chromium's trace, with their CPU times: on a busy machine a task also waits for a core, which the idle page shows.
Needs `make console`, the packages of tests/node and OPERATIONS_TEST_DOCUMENTS.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.console.test_console import ROOT, serving

_LARGE = {"table": "a table", "tree": "an object", "text": "a text", "bytes": "bytes"}


def main() -> None:
    """Start the demo of the console, measure it and print the figures."""
    with serving() as server:
        command = ["node", str(ROOT / "tests" / "console" / "figures.mjs"), server.url]
        measured = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    stream = measured["stream"]
    lines = [
        f"GitHub's catalogue listed after {measured['catalogue']['listed']} ms: {_tasks(measured['catalogue'])}",
        f"a key of a search: {measured['search']['keys']} ms until the next frame: {_tasks(measured['search'])}",
        f"control, a task of 80 ms: {_tasks(measured['control'])}",
        f"idle page: {_tasks(measured['idle'])}",
        *(
            f"10 MB as {name} ({large['outcome']}): {_tasks(large)}; memory {large['memory']} MB"
            for name, large in ((name, measured[shape]) for shape, name in _LARGE.items())
        ),
        f"{stream['rate']} events a second, every 3 seconds: {_tasks(stream)}; memory {stream['memories']} MB; "
        f"kept by the page after a garbage collection {stream['heaps']} MB",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _tasks(measured: dict[str, Any]) -> str:
    longest, cpu, total = measured["longest"], measured["cpu"], measured["total"]
    return f"longest task {longest} ms, most CPU of a task {cpu} ms, of all {measured['tasks']} tasks {total} ms"


if __name__ == "__main__":
    main()
