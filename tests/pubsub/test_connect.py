"""Transports by URL: each scheme opens its own, and nothing is imported before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from operations import CallError, ErrorCode
from operations.calls.hub.spoke import Spoke
from operations.pubsub import connect
from operations.pubsub.memory import MemoryTransport
from operations.pubsub.urls import hosts_and_ports
from tests.receiving import into
from tests.waiting import until


async def test_memory_buses_are_shared_by_name() -> None:
    got: list[bytes] = []
    async with connect("memory:shop") as one, connect("memory:shop") as two, connect("memory:") as alone:
        assert isinstance(one, MemoryTransport)
        one.listen("x", into(got.append))
        two.send("x", b"heard")
        alone.send("x", b"not heard")
        await until(lambda: bool(got))
    assert got == [b"heard"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ws://127.0.0.1:99999", "invalid port 99999: expected 1 to 65535"),
        ("ws://127.0.0.1:0/", "invalid port 0"),
        ("ws://127.0.0.1:http/", "the port 'http' is not a number"),
        ("ws://", "it has no host: expected ws://host:port"),
        ("ws:", "expected ws://host:port"),
        ("wss://:443/", "it has no host"),
        ("ws://a b/", "the host name is not valid"),
        ("ws://a..b/", "the host name is not valid"),
        (f"ws://{'a' * 64}.example/", "the host name is not valid"),
        ("nats://", "it has no host: expected nats://host:port"),
        ("nats://a:1,b:2x", "the port '2x' is not a number"),
        ("nats://127.0.0.1:-1", "the port '-1' is not a number"),
        ("tls://[::1", "has no closing bracket"),
        ("redis://[::1", "has no closing bracket"),
        ("redis://[nonsense]:6379", "not an IPv6 address"),
        ("redis://::1", "in brackets"),
        ("redis://h:70000/0", "invalid port 70000"),
        ("redis+cluster://a:1,b:99999", "invalid port 99999"),
        ("redis://:s3cret:x@h:s3cret", "its port is not a number"),
        ("unix://", "it has no socket path"),
    ],
)
def test_an_invalid_address_is_reported_before_connecting(url: str, says: str) -> None:
    with pytest.raises(CallError) as caught:
        connect(url)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("ws://hub.example/path?a=b@c:d", [("hub.example", 80)]),
        ("wss://[::1]:8700", [("::1", 8700)]),
        ("nats://ada:s3:cret@a,nats://b:2,c", [("a", 4222), ("b", 2), ("c", 4222)]),
        ("redis://:a,b/c@h/1", [("h", 6379)]),
        ("redis://", [("127.0.0.1", 6379)]),
        ("redis+sentinel://a,b:1/service", [("a", 26379), ("b", 1)]),
        ("unix:///tmp/redis.sock", []),
        ("memory:", []),
    ],
)
def test_hosts_and_ports_of_a_url(url: str, found: list[tuple[str, int]]) -> None:
    assert hosts_and_ports(url) == found


def test_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(CallError, match="unknown scheme 'amqp': expected one of memory, nats, redis"):
        connect("amqp://127.0.0.1")


async def test_a_hub_url_is_opened_by_the_transport_that_calls_registers() -> None:
    assert isinstance(connect("ws://127.0.0.1:1/"), Spoke)
    assert isinstance(connect("WSS://127.0.0.1:1/"), Spoke)


async def test_another_package_brings_a_scheme_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "carrier-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[operations.transports]\npigeon = carrier_of_tests:connect\n")
    (tmp_path / "carrier_of_tests.py").write_text(
        "from operations.pubsub.memory import MemoryTransport\n"
        "def connect(url, **options): return MemoryTransport(**options), url\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    opened: Any = connect("pigeon://loft", direct=False)
    transport, url = opened
    assert (type(transport), url) == (MemoryTransport, "pigeon://loft")
    with pytest.raises(CallError, match=r"unknown scheme 'dove': expected one of .*pigeon"):
        connect("dove://loft")


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
