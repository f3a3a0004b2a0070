"""A peer that sends everything it should not: `python -m tests.security.fuzzing_peer PORT SEED SECONDS`.

It has a token without rights. Its frames are drawn from the seed; how many of them it sends depends on the hub, and it
connects again whenever the hub disconnects it. It prints what it sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import msgspec

from operations.pubsub.framing import join
from tests.security.raw_websocket import BINARY, CLOSE, PING, PONG, TEXT, RawPeer

KINDS = [
    "call.requested",
    "call.responded",
    "call.completed",
    "call.error",
    "call.aborted",
    "call.accepted",
    "call.credit",
    "worker.announced",
    "worker.registered",
    "worker.alive",
    "worker.gone",
    "worker.asked",
    "hub.hello",
    "hub.welcome",
    "future.kind",
]
OPERATIONS = ["shop.echo", "shop.none", "bank.read", "", "shop", "*", "a" * 300]
CONTINUATION, FIN = 0, 0x80
OVER_LIMIT = 17 << 20


class Fuzzer:
    """Draws frames; those that were sent are drawn again."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sent: Counter[str] = Counter()
        self._ids = deque(("request-0",), maxlen=50)
        self._messages: deque[bytes] = deque((b"{}",), maxlen=50)
        self._number = 0
        self._draws: dict[Callable[[], bytes], int] = {
            self.whole: 30,
            self.broken: 20,
            self.replayed: 10,
            self.batch: 6,
            self.broken_batch: 4,
            self.ping: 6,
            self.fragments: 4,
            self.unfinished_fragments: 2,
            self.invalid_frame: 2,
            self.large: 1,
            self.deep: 2,
            self.garbage: 3,
        }

    def draw(self) -> bytes:
        """The bytes of one or more frames."""
        kind = self.random.choices(list(self._draws), list(self._draws.values()))[0]
        self.sent[kind.__name__] += 1
        return kind()

    def hello(self) -> bytes:
        """A greeting, which sometimes is none."""
        if self.random.random() < 0.1:
            return self.draw()
        name = "".join(self.random.choices("abcdef0123456789", k=32))
        codecs = self.random.choice([["json"], ["msgpack"], ["json", "msgpack"], [], ["none"]])
        payload = {"peer": name, "generation": 1, "codecs": codecs, "batch": self.random.random() < 0.5}
        event = {"v": 1, "type": "hub.hello", "id": "", "to": "", "payload": payload}
        return self._frame(TEXT, msgspec.json.encode(event))

    # Frames.

    def whole(self) -> bytes:
        return self._as_frame(self._message())

    def broken(self) -> bytes:
        return self._as_frame(self._damage(self._message()))

    def replayed(self) -> bytes:
        return self._as_frame(self.random.choice(self._messages)) * self.random.choice([1, 2, 50])

    def batch(self) -> bytes:
        messages = [self._message() for _ in range(self.random.choice([0, 1, 2, 64, 500]))]
        return self._frame(BINARY, join(messages, quick=True))

    def broken_batch(self) -> bytes:
        count = self.random.choice([0, 1, 65_536, 65_537, 0xFFFFFFFF])
        head = struct.pack(">BI", self.random.choice([0, 2]), count)
        return self._frame(BINARY, head + self.random.randbytes(self.random.choice([0, 3, 4, 400])))

    def ping(self) -> bytes:
        opcode = self.random.choice([PING, PING, PONG])
        return self._frame(opcode, self.random.randbytes(self.random.randrange(126))) * self.random.choice([1, 100])

    def fragments(self) -> bytes:
        message = self._message()
        cut = self.random.randrange(len(message) + 1)
        middle = self.ping() if self.random.random() < 0.5 else b""
        return self._frame(BINARY, message[:cut], fin=0) + middle + self._frame(CONTINUATION, message[cut:])

    def unfinished_fragments(self) -> bytes:
        count = self.random.choice([1, 10, 1_000])
        return self._frame(BINARY, b"{", fin=0) + self._frame(CONTINUATION, b" ", fin=0) * count

    def invalid_frame(self) -> bytes:
        opcode = self.random.choice([3, 7, 11, 15, CLOSE, CONTINUATION])
        reserved = self.random.choice([0, 0x10, 0x40, 0x70])
        return self._frame(opcode, self.random.randbytes(self.random.choice([0, 1, 2, 125, 200])), fin=FIN | reserved)

    def large(self) -> bytes:
        size = self.random.choice([100_000, 1 << 20, 4 << 20, OVER_LIMIT])
        event = self._event()
        place = self.random.choice(["id", "to", "grant", "payload", "identity", "unknown"])
        event[place] = "x" * size
        if self.random.random() < 0.3:
            event["payload"] = [{} for _ in range(size // 10)]
        return self._as_frame(self._encode(event))

    def deep(self) -> bytes:
        depth = self.random.choice([100, 5_000, 100_000])
        if self.random.random() < 0.5:
            return self._frame(BINARY, b"\x81\xa7payload" + b"\x91" * depth)
        return self._frame(TEXT, b'{"v":1,"type":"call.requested","id":"a","to":"shop.echo","payload":' + b"[" * depth)

    def garbage(self) -> bytes:
        opcode = self.random.choice([TEXT, BINARY])
        return self._frame(opcode, self.random.randbytes(self.random.choice([0, 1, 20, 2_000])))

    # Messages.

    def _message(self) -> bytes:
        message = self._encode(self._event())
        if self.random.random() < 0.2:
            self._messages.append(message)
        return message

    def _encode(self, event: dict[str, Any]) -> bytes:
        return msgspec.json.encode(event) if self.random.random() < 0.5 else msgspec.msgpack.encode(event)

    def _event(self) -> dict[str, Any]:
        draw = self.random.choice
        operation_id, request_id = draw(OPERATIONS), self._id()
        payload: dict[str, Any] = {"requestId": request_id, "operationId": operation_id, "input": {"text": "x"}}
        payload |= {"workerId": f"{'n' * 32}.1", "generation": 1, "operations": [dict(payload)] * draw([0, 1, 100])}
        payload |= {"code": "ABORTED", "message": "m", "items": draw([1, -1, 1 << 62]), "bytes": 1, "peer": "p"}
        payload["output"] = {"data": 1, "meta": {"source": "local", "operationId": operation_id, "timestamp": 1}}
        event = {"v": draw([1, 1, 1, 0, 2, "1"]), "type": draw(KINDS), "id": request_id, "to": operation_id}
        event["payload"] = draw([payload, payload, payload, None, [], "text", 1])
        extra = {
            "identity": draw([None, {"id": "ada", "scopes": ["shop"]}, "ada"]),
            "grant": draw(["", "0" * 33, "f" * 32, 1]),
            "asWorker": draw([True, False, "yes"]),
            "deadline": draw([0, -1, 1 << 62, int(time.time() * 1000) + 10_000, "soon"]),
            "stream": draw([True, False, 1]),
            "parent": draw(["request-0", None, 1]),
            "namespaces": draw([[], ["shop"], ["*"], ["a"] * 100, "shop"]),
        }
        return event | {name: value for name, value in extra.items() if self.random.random() < 0.2}

    def _id(self) -> str:
        if self.random.random() < 0.5:
            return self.random.choice(self._ids)
        self._number += 1
        self._ids.append(f"request-{self._number}")
        return self.random.choice([self._ids[-1], self._ids[-1], "", "-", "i" * 65])

    def _damage(self, message: bytes) -> bytes:
        place, size = self.random.randrange(len(message)), self.random.randrange(1, 9)
        return self.random.choice(
            [
                message[:place],
                message[place:],
                message[:place] + self.random.randbytes(size) + message[place + size :],
                message[:place] + message[place : place + size] * 20 + message[place:],
            ]
        )

    def _as_frame(self, message: bytes) -> bytes:
        return self._frame(TEXT if message[:1] == b"{" else BINARY, message)

    def _frame(self, opcode: int, payload: bytes, *, fin: int = FIN) -> bytes:
        size = len(payload)
        if size < 126:
            length = bytes([0x80 | size])
        elif size < 1 << 16:
            length = struct.pack(">BH", 0xFE, size)
        else:
            length = struct.pack(">BQ", 0xFF, size)
        return bytes([fin | opcode]) + length + bytes(4) + payload


async def discard(reader: asyncio.StreamReader) -> None:
    """Read until the hub disconnects."""
    while await reader.read(1 << 16):
        pass


async def attack_once(fuzzer: Fuzzer, port: int, end: float) -> None:
    """Connect and send until the hub disconnects this peer."""
    if fuzzer.random.random() < 0.02:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n" + fuzzer.random.randbytes(fuzzer.random.randrange(2_000)))
        fuzzer.sent["handshakes"] += 1
        writer.transport.abort()
        return
    peer = await RawPeer.connect(port, b"Authorization: Bearer mallory")
    fuzzer.sent["connections"] += 1
    reading = asyncio.create_task(discard(peer.reader))
    try:
        peer.writer.write(fuzzer.hello())
        for _ in range(2_000):
            if time.monotonic() > end or reading.done():
                break
            peer.writer.write(fuzzer.draw())
            await peer.writer.drain()
            await asyncio.sleep(0)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        peer.writer.transport.abort()


async def main(port: int, seed: int, seconds: float) -> None:
    """Attack for so many seconds, and print what was sent."""
    fuzzer, end = Fuzzer(seed), time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, EOFError):
            await attack_once(fuzzer, port, end)
    print(json.dumps(fuzzer.sent), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
