"""Delay of a served call by a scrape of `/metrics` with 1,223 operations.

`python -m bench.scrape`. The server, the scraper and the caller are separate processes.
"""

from __future__ import annotations

import asyncio
import http.client
import select
import statistics
import subprocess
import sys
import time

from bench.measure import save
from operations import OperationRegistry, operation
from operations.serving import HTTPServer, app

OPERATIONS = 1_223
SCRAPES = 30


async def serve() -> None:
    """Serve operations, each called once, until standard input closes."""
    registry = OperationRegistry()
    served = app(registry, mcp=False, metrics=True)
    for number in range(OPERATIONS):

        @operation(f"api.op{number}", type="query")
        async def nothing() -> None: ...

        registry.register(nothing)
        await registry.execute(nothing)
    async with HTTPServer(served, "127.0.0.1:0") as server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def scrape(place: str) -> None:
    """Scrape once for each line of standard input; print the size of the text."""
    connection = http.client.HTTPConnection(place)
    for _ in sys.stdin:
        connection.request("GET", "/metrics")
        print(len(connection.getresponse().read()), flush=True)


def call(connection: http.client.HTTPConnection) -> float:
    """Return the milliseconds of one call."""
    began = time.perf_counter()
    connection.request("POST", "/api/op0", body=b"{}", headers={"content-type": "application/json"})
    connection.getresponse().read()
    return (time.perf_counter() - began) * 1000


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start another process of this benchmark."""
    command = [sys.executable, "-m", "bench.scrape", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def measure(server: subprocess.Popen[str]) -> dict[str, float]:
    """Return the longest calls with and without a scrape: the median of many rounds."""
    assert server.stdout is not None
    place = server.stdout.readline().strip().removeprefix("http://")
    connection = http.client.HTTPConnection(place)
    scraper = start("--scrape", place)
    assert scraper.stdin is not None
    assert scraper.stdout is not None
    usual = statistics.median([call(connection) for _ in range(500)])
    longest: dict[str, list[float]] = {"alone": [], "scraped": []}
    size = 0
    for _ in range(SCRAPES):
        began = time.perf_counter()
        scraper.stdin.write("\n")
        scraper.stdin.flush()
        during = []
        while not select.select([scraper.stdout], [], [], 0)[0]:
            during.append(call(connection))
        size = int(scraper.stdout.readline())
        longest["scraped"].append(max(during, default=usual))
        taken, alone = time.perf_counter() - began, [call(connection)]
        end = time.perf_counter() + taken
        while time.perf_counter() < end:
            alone.append(call(connection))
        longest["alone"].append(max(alone))
    scraper.communicate()
    return {
        "usual call": usual,
        "longest call as long as a scrape takes": statistics.median(longest["alone"]),
        "longest call during a scrape": statistics.median(longest["scraped"]),
        "bytes": float(size),
    }


def main() -> None:
    """Print and save the figures, in milliseconds."""
    server = start("--serve")
    figures = measure(server)
    server.communicate()
    for name, value in figures.items():
        print(f"  {name}: {value:,.2f}")
    delay = figures["longest call during a scrape"] - figures["usual call"]
    print(f"a scrape delays a call by {delay:.1f} ms at most (median of {SCRAPES} scrapes)")
    save("scrape", figures)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        asyncio.run(serve())
    elif "--scrape" in sys.argv:
        scrape(sys.argv[-1])
    else:
        main()
