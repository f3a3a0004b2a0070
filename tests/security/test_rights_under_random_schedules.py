"""Guarantee: a handler has its root caller's rights in any order of calls, aborts and lost connections.

`OPERATIONS_FAULT_SEED` and `OPERATIONS_FAULT_STEPS` repeat or lengthen a run.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tests.security.rights_bus import HubBus, draw_principals
from tests.security.rights_schedule import Schedule
from tests.security.rights_signed_bus import SignedBus

BUSES = {"hub": HubBus.start, "redis": SignedBus.over_redis, "nats": SignedBus.over_nats}
STEPS_AT_ONCE = 500
"""Members get new rights after so many steps."""


@pytest.mark.parametrize("bus", list(BUSES))
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(300, marks=pytest.mark.slow, id="short"),
        pytest.param(10_000, marks=[pytest.mark.faults, pytest.mark.timeout(0)], id="long"),
    ],
)
async def test_no_handler_runs_with_other_rights_than_its_callers(bus: str, steps: int) -> None:
    seed = int(os.environ.get("OPERATIONS_FAULT_SEED", str(random.randrange(2**32))))
    if steps >= 10_000:
        steps = int(os.environ.get("OPERATIONS_FAULT_STEPS", steps))
    done: Counter[str] = Counter()
    for first in range(0, steps, STEPS_AT_ONCE):
        print(f"{bus}: OPERATIONS_FAULT_SEED={seed + first} OPERATIONS_FAULT_STEPS={steps - first}", flush=True)  # noqa: T201
        principals = draw_principals(seed + first)
        async with BUSES[bus](principals) as transport:
            schedule = Schedule(transport, seed + first, principals)
            await schedule.run(min(STEPS_AT_ONCE, steps - first))
        done += schedule.handlers.done
    print(f"{bus}: {dict(done)}", flush=True)  # noqa: T201
    assert done["answered call"] > 0
    if steps >= STEPS_AT_ONCE:
        for way in ("env", "direct", "registry", "task", "spawned", "thread", "plain", "own rights", "kept grant"):
            assert done[f"answered {way}"] > 0
        assert done["ACCESS_DENIED GRANT_ENDED"] > 0
        assert done["ACCESS_DENIED GRANT_REQUIRED"] + done["ACCESS_DENIED AS_WORKER"] > 0
