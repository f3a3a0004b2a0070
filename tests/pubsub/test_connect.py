"""Transports by URL: each scheme opens its own, and nothing is imported before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from operations.pubsub import connect
from operations.pubsub.memory import MemoryTransport
from tests.waiting import until


async def test_memory_buses_are_shared_by_name() -> None:
    got: list[bytes] = []
    async with connect("memory:shop") as one, connect("memory:shop") as two, connect("memory:") as alone:
        assert isinstance(one, MemoryTransport)
        one.listen("x", got.append)
        two.send("x", b"heard")
        alone.send("x", b"not heard")
        await until(lambda: bool(got))
    assert got == [b"heard"]


def test_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'amqp' is not a transport's scheme; known are memory, nats, redis"):
        connect("amqp://127.0.0.1")


@pytest.mark.parametrize(
    ("url", "library", "extra"),
    [("ws://127.0.0.1:1/", "picows", "ws")],
)
def test_a_missing_library_names_the_extra(url: str, library: str, extra: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; from operations.pubsub import connect; connect({url!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"ImportError: {library} is not installed: pip install 'operations[{extra}]'"


def test_opening_one_transport_imports_no_other() -> None:
    code = (
        "import sys; from operations.pubsub import connect; connect('memory:');"
        "print([name for name in ('nats', 'redis', 'picows', 'cryptography') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
