"""Figures of the console in a real Chromium: `python -m tests.console.figures`, on a machine without other load.

Prints how long GitHub's catalogue takes to be listed, the time of each key of a search, and the longest time in which
the page handles nothing while it shows a result of 10 MB and follows a stream of thousands of events a second. Needs
`make console`, the packages of tests/node and OPERATIONS_TEST_DOCUMENTS.
"""

from __future__ import annotations

import json
import subprocess
import sys

from tests.console.test_console import ROOT, serving


def main() -> None:
    """Start the demo of the console, measure it and print the figures."""
    with serving() as server:
        command = ["node", str(ROOT / "tests" / "console" / "figures.mjs"), server.url]
        measured = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    lines = (
        f"GitHub's catalogue listed after {measured['listed']} ms, longest pause {measured['listedTask']} ms",
        f"a key of a search: {measured['keys']} ms until the next frame",
        f"a result of 10 MB ({measured['largeOutcome']}): longest pause {measured['largeTask']} ms",
        f"{measured['eventsPerSecond']} events a second: longest pause {measured['streamTask']} ms, "
        f"memory {measured['heaps']} MB, second by second",
    )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
