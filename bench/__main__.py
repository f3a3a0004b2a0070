"""Runner of all benchmarks, in sequence: `make bench`."""

from __future__ import annotations

import subprocess
import sys

from bench.comparisons import KEPT, list_short, read, version

BENCHMARKS = [
    "bench.call",
    "bench.memory",
    "bench.interceptors",
    "bench.telemetry",
    "bench.scrape",
    "bench.growth",
    "bench.cli",
    "bench.walks",
    "bench.schema",
    "bench.openapi",
    "bench.document",
    "bench.sse",
    "bench.mcp",
    "bench.serving_mcp",
    "bench.calls",
    "bench.redis",
    "bench.jobs",
    "bench.nats",
    "bench.serving",
]


def main() -> int:
    """Run each benchmark in a separate process; return 0 if none of them failed."""
    failed = 0
    for name in BENCHMARKS:
        print(f"\n=== {name} ===", flush=True)
        failed |= subprocess.run([sys.executable, "-m", name], check=False).returncode
    short = list(list_short({version(): read(KEPT).get(version(), {})}))
    print(f"\n{len(short)} figures miss their target", *short, sep="\n  ")
    return failed


if __name__ == "__main__":
    sys.exit(main())
