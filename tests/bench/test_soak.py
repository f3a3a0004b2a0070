from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench.soak.timeline import ALLOWED, Sample, draw, find_excess, find_growth

ROOT = Path(__file__).parent.parent.parent


def samples(**growth: float) -> list[Sample]:
    """Samples of ten minutes of a process in which one quantity grows by a given share."""
    flat = {"memory": 50 << 20, "sockets": 3, "tasks": 2_000, "entries": 2_000, "objects": 200_000}
    return [
        {"at": second, **{kind: flat[kind] * (1 + growth.get(kind, 0.0) * second / 600) for kind in ALLOWED}}
        for second in range(0, 600, 5)
    ]


def test_flat_measurements_have_not_grown() -> None:
    assert list(find_growth({"worker": samples()})) == []


@pytest.mark.parametrize("kind", list(ALLOWED))
def test_growth_is_found(kind: str) -> None:
    (problem,) = find_growth({"caller": samples(), "worker": samples(**{kind: 1.0})})
    assert problem.startswith(f"{kind} of the worker grew from ")


def test_the_picture_has_a_line_for_each_transport() -> None:
    processes = {"caller": samples(), "worker": samples(), "middle": [{"at": 0.0, "memory": 1.0}]}
    result = {"rate": 500.0, "kept": 1.0, "processes": processes}
    picture = ElementTree.fromstring(draw({"redis": result, "nats": result}))
    names = {element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")}
    shown = "500 calls a second, 100% of them kept"
    assert {f"redis: {shown}", f"nats: {shown}", "memory, MB: server or hub"} <= names


@pytest.mark.parametrize(("last", "problems"), [(1_100.0, 0), (2_000.0, 1)])
def test_an_excess_of_stored_ids_is_found(last: float, problems: int) -> None:
    middle = [{"at": 0.0, "kept": 0.0}, {"at": 900.0, "kept": last}]
    result = {"seconds": 900.0, "tally": {"stored": 1_500}, "processes": {"middle": middle}}
    assert len(list(find_excess(result))) == problems


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
