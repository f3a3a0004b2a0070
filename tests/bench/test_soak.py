from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench.soak.timeline import KINDS, Sample, draw, find_growth

ROOT = Path(__file__).parent.parent.parent


def samples(**growth: float) -> list[Sample]:
    """Ten minutes of a process in which something grows by so much of itself."""
    flat = {"memory": 50 << 20, "sockets": 3, "tasks": 2_000, "entries": 2_000, "objects": 200_000}
    return [
        {"at": second, **{kind: flat[kind] * (1 + growth.get(kind, 0.0) * second / 600) for kind in KINDS}}
        for second in range(0, 600, 5)
    ]


def test_what_is_flat_has_not_grown() -> None:
    assert list(find_growth({"worker": samples()})) == []


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_grows_is_found(kind: str) -> None:
    (problem,) = find_growth({"caller": samples(), "worker": samples(**{kind: 1.0})})
    assert problem.startswith(f"{kind} of the worker grew from ")


def test_the_picture_has_a_line_for_each_transport() -> None:
    processes = {"caller": samples(), "worker": samples(), "middle": [{"at": 0.0, "memory": 1.0}]}
    picture = ElementTree.fromstring(draw({"redis": {"processes": processes}, "nats": {"processes": processes}}))
    names = {element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"redis", "nats", "memory, MB: server or hub"} <= names


@pytest.mark.slow
def test_a_short_soak() -> None:
    environment = {**os.environ, "OPERATIONS_SOAK_SECONDS": "3", "OPERATIONS_SOAK_TRANSPORTS": "nats"}
    command = [sys.executable, "-m", "bench.soak"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**environment, "OPERATIONS_SOAK_RATES": "nats=500"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert "nats: 500 calls a second for 3 s" in done.stdout, done.stderr
    assert "calls per second of one core" in done.stdout
    assert "failed bench.echo" not in done.stdout
