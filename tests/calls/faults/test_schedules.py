"""Random schedules of faults from a printed seed: a few seconds in `make test`, ten minutes each in `make faults`."""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.stateful import run_state_machine_as_test

from tests.calls.faults.schedule import Schedule
from tests.calls.faults.stages import MIDDLES

STEPS = 25
EXAMPLES_AT_ONCE = 12


def run_schedules(transport: str, seconds: float, seed: int) -> Counter[str]:
    """Run schedules until the time is over, each with a seed derived from the first."""
    chance = random.Random(seed)
    ends_at = time.monotonic() + seconds
    done: Counter[str] = Counter()
    while time.monotonic() < ends_at:
        attributes = {"transport": transport, "ends_at": ends_at, "done": done}
        machine = hypothesis.seed(chance.randrange(2**32))(type("Schedule", (Schedule,), attributes))
        run_state_machine_as_test(
            machine,
            settings=hypothesis.settings(
                max_examples=EXAMPLES_AT_ONCE,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                verbosity=Verbosity.quiet,
                suppress_health_check=list(HealthCheck),
            ),
        )
    return done


@pytest.mark.parametrize("transport", list(MIDDLES))
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(8.0, marks=pytest.mark.slow, id="short"),
        pytest.param(600.0, marks=[pytest.mark.faults, pytest.mark.timeout(0)], id="long"),
    ],
)
def test_random_schedules_of_faults(transport: str, seconds: float) -> None:
    seed = int(os.environ.get("OPERATIONS_FAULT_SEED", str(random.randrange(2**32))))
    if seconds > 60:
        seconds = float(os.environ.get("OPERATIONS_FAULT_SECONDS", seconds))
    print(f"{transport}: OPERATIONS_FAULT_SEED={seed} OPERATIONS_FAULT_SECONDS={seconds:g}", flush=True)  # noqa: T201
    done = run_schedules(transport, seconds, seed)
    print(f"{transport}: {dict(done)}", flush=True)  # noqa: T201
    assert done["calls"] > 0
