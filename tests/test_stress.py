"""Ten thousand concurrent calls, and hostile handlers in a separate process."""

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter

import pytest

from operations import CallError, ErrorCode, OperationContext, OperationRegistry, ResponseEnvelope, operation


@operation(id="t.wait")
async def wait(n: int, delay: float) -> int:
    await asyncio.sleep(delay)
    if n % 100 == 0:
        raise ValueError(f"{n}")
    return n


@pytest.mark.slow
async def test_ten_thousand_concurrent_calls_have_ten_thousand_outcomes() -> None:
    chance = random.Random(7)
    registry = OperationRegistry([wait])
    before = asyncio.all_tasks()

    async def call(n: int) -> ResponseEnvelope[int] | CallError:
        deadline = int(time.time() * 1000) + chance.randint(-5, 2_000) if n % 2 else None
        context = OperationContext(deadline=deadline)
        try:
            return await registry.execute(wait, {"n": n, "delay": chance.random() * 2}, context)
        except CallError as error:
            return error

    outcomes = await asyncio.gather(*(call(n) for n in range(10_000)))
    assert len(outcomes) == 10_000
    for n, outcome in enumerate(outcomes):
        if isinstance(outcome, CallError):
            assert outcome.code in (ErrorCode.TIMEOUT, ErrorCode.EXECUTION_ERROR)
            assert outcome.code is ErrorCode.EXECUTION_ERROR or n % 2
        else:
            assert outcome.data == n
    kinds = Counter(type(outcome) for outcome in outcomes)
    assert kinds[CallError] > 1_000
    assert kinds[ResponseEnvelope] > 5_000
    assert registry.abandoned == 0
    assert asyncio.all_tasks() == before


HOSTILE = """
import asyncio, sys
from operations import CallError, OperationRegistry, operation

def nested(depth):
    value = 1
    for _ in range(depth):
        value = {"next": value}
    return value

@operation(id="t.leave")
async def leave(): sys.exit(3)

@operation(id="t.leave_thread")
def leave_thread(): sys.exit(3)

@operation(id="t.deep")
async def deep() -> dict: return nested(100_000)

@operation(id="t.stream")
async def stream():
    yield 1
    sys.exit(3)

async def main():
    registry = OperationRegistry([leave, leave_thread, deep, stream])
    for name in ("t.leave", "t.leave_thread", "t.deep"):
        try:
            await registry.execute(name)
        except CallError as error:
            print(error.code)
    try:
        async for event in registry.subscribe("t.stream"):
            print(event.data)
    except CallError as error:
        print(error.code)
    async for event in registry.subscribe("t.stream"):
        break

asyncio.run(main())
print("alive")
"""


def test_the_process_outlives_hostile_handlers() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", HOSTILE], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [*["EXECUTION_ERROR"] * 3, "1", "EXECUTION_ERROR", "alive"]
    assert (done.returncode, done.stderr) == (0, "")
