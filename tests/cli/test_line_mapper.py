from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from operations import CallError, ResponseEnvelope, local_envelope
from operations.cli.line_mapper import LineOutcome, Lines, map_lines


async def outcomes(text: bytes, call: Any, *, jobs: int = 4, ordered: bool = True, **fixed: Any) -> list[LineOutcome]:
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    try:
        return [outcome async for outcome in map_lines(call, Lines(reading), fixed, jobs=jobs, ordered=ordered)]
    finally:
        os.close(reading)


async def echo(value: Any) -> ResponseEnvelope[Any]:
    return local_envelope(value, "test.echo")


async def test_results_are_in_the_order_of_the_lines() -> None:
    finished: list[int] = []
    last = asyncio.Event()

    async def call(value: Any) -> ResponseEnvelope[Any]:
        if value == 1:
            await last.wait()
        finished.append(value)
        if value == 5:
            last.set()
        return local_envelope(value, "test.echo")

    found = await outcomes(b"1\n2\n3\n4\n5\n", call)
    assert [(each.number, each.result.data) for each in found if not isinstance(each.result, CallError)] == [
        (number, number) for number in range(1, 6)
    ]
    assert finished == [2, 3, 4, 5, 1]
    last.clear()
    found = await outcomes(b"1\n2\n3\n4\n5\n", call, ordered=False)
    assert [each.number for each in found] == [2, 3, 4, 5, 1]


async def test_no_more_workers_are_started_than_there_are_lines_for() -> None:
    most = 0
    before = len(asyncio.all_tasks())

    async def call(value: Any) -> ResponseEnvelope[Any]:
        nonlocal most
        most = max(most, len(asyncio.all_tasks()) - before)
        for _ in range(3):
            await asyncio.sleep(0)
        return local_envelope(value, "test.echo")

    assert await outcomes(b"", call, jobs=100_000) == []
    assert most == 0
    found = await outcomes(b"1\n2\n3\n", call, jobs=100_000)
    assert [each.number for each in found] == [1, 2, 3]
    assert most <= 4


async def test_the_requested_number_of_calls_runs_at_a_time() -> None:
    started: list[Any] = []
    all_there = asyncio.Event()

    async def call(value: Any) -> ResponseEnvelope[Any]:
        started.append(value)
        if len(started) == 5:
            all_there.set()
        await all_there.wait()
        return local_envelope(value, "test.echo")

    async with asyncio.timeout(30):
        assert len(await outcomes(b"1\n2\n3\n4\n5\n", call, jobs=5)) == 5


async def test_a_bad_line_is_an_error_with_its_number_and_other_lines_run() -> None:
    found = await outcomes(b'{"a": 1}\n\nnonsense\n[2]\n{"a": 3}', echo, b=7)
    assert [each.number for each in found] == [1, 3, 4, 5]
    first, bad, wrong, last = (each.result for each in found)
    assert isinstance(first, ResponseEnvelope)
    assert first.data == {"a": 1, "b": 7}
    assert isinstance(bad, CallError)
    assert isinstance(wrong, CallError)
    assert "not a JSON object" in wrong.message
    assert isinstance(last, ResponseEnvelope)
    assert last.data == {"a": 3, "b": 7}


async def test_no_more_calls_run_than_jobs_and_no_more_results_wait_than_a_few_for_each() -> None:
    running = most = taken = 0
    held = asyncio.Event()

    async def call(value: Any) -> ResponseEnvelope[Any]:
        nonlocal running, most, taken
        taken += 1
        running += 1
        most = max(most, running)
        if value == 0:
            await held.wait()
        else:
            await asyncio.sleep(0)
        running -= 1
        if taken == 12:
            held.set()
        return local_envelope(value, "test.echo")

    found = await outcomes(b"".join(b"%d\n" % number for number in range(200)), call, jobs=3)
    assert len(found) == 200
    assert most == 3


async def test_an_unexpected_failure_of_a_call_ends_the_run() -> None:
    async def call(value: Any) -> ResponseEnvelope[Any]:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        await outcomes(b"1\n2\n", call)


async def test_lines_longer_than_a_read_and_without_a_last_end() -> None:
    long = b'"' + b"x" * 200_000 + b'"'

    async def call(value: Any) -> ResponseEnvelope[Any]:
        return local_envelope(len(value), "test.echo")

    reading, writing = os.pipe()
    done = asyncio.get_running_loop().run_in_executor(None, lambda: (os.write(writing, long[:50_000]), None))
    await done
    rest = asyncio.get_running_loop().run_in_executor(None, lambda: _feed(writing, long[50_000:] + b"\n" + b'"ab"'))
    found = [each async for each in map_lines(call, Lines(reading), {}, jobs=2, ordered=True)]
    await rest
    os.close(reading)
    assert [each.result.data for each in found if not isinstance(each.result, CallError)] == [200_000, 2]


def _feed(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.close(descriptor)
