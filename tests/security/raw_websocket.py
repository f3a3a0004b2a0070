"""A WebSocket client by hand: any frames, any handshake, and nothing is read that the test does not read."""

from __future__ import annotations

import asyncio
import base64
import struct
from typing import Any

import msgspec

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class RawPeer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, response: bytes) -> None:
        self.reader = reader
        self.writer = writer
        self.response = response
        """The response to the handshake, up to the empty line."""

    @classmethod
    async def connect(cls, port: int, *headers: bytes, path: bytes = b"/") -> RawPeer:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        key = base64.b64encode(bytes(16))
        lines = (
            b"GET " + path + b" HTTP/1.1",
            b"Host: localhost",
            b"Upgrade: websocket",
            b"Connection: Upgrade",
            b"Sec-WebSocket-Version: 13",
            b"Sec-WebSocket-Key: " + key,
            *headers,
            b"\r\n",
        )
        writer.write(b"\r\n".join(lines))
        return cls(reader, writer, await reader.readuntil(b"\r\n\r\n"))

    @classmethod
    async def join(cls, port: int, token: str, name: str = "n" * 32, **hello: Any) -> RawPeer:
        """Connect and complete the handshake of the hub."""
        peer = await cls.connect(port, b"Authorization: Bearer " + token.encode())
        assert peer.status == 101
        peer.send_event("hub.hello", {"peer": name, "generation": 1, **hello})
        _, welcome = await peer.read()
        assert b"hub.welcome" in welcome
        return peer

    @property
    def status(self) -> int:
        return int(self.response.split()[1])

    def send(self, opcode: int, payload: bytes) -> None:
        """Write one frame."""
        size = len(payload)
        if size < 126:
            length = bytes([0x80 | size])
        elif size < 1 << 16:
            length = struct.pack(">BH", 0xFE, size)
        else:
            length = struct.pack(">BQ", 0xFF, size)
        self.writer.write(bytes([0x80 | opcode]) + length + bytes(4) + payload)

    def send_event(self, kind: str, payload: Any, *, id: str = "", to: str = "", **outside: Any) -> None:
        """Write one event as JSON."""
        event = {"v": 1, "type": kind, "id": id, "to": to, "payload": payload, **outside}
        self.send(TEXT, msgspec.json.encode(event))

    async def read(self) -> tuple[int, bytes]:
        """The opcode and the payload of the next frame."""
        async with asyncio.timeout(10):
            first, size = await self.reader.readexactly(2)
            if size == 126:
                size = int.from_bytes(await self.reader.readexactly(2), "big")
            elif size == 127:
                size = int.from_bytes(await self.reader.readexactly(8), "big")
            return first & 15, await self.reader.readexactly(size)

    async def read_event(self) -> Any:
        """The next event; pings are passed over."""
        while True:
            opcode, payload = await self.read()
            if opcode in (TEXT, BINARY):
                return msgspec.json.decode(payload)

    async def read_end(self) -> bytes:
        """Everything up to the end of the connection; nothing if the hub left some of it unread."""
        async with asyncio.timeout(10):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def close(self) -> None:
        self.writer.transport.abort()
