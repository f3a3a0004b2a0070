"""HTTPProtocol: an HTTP/1.1 connection of the server, with limits on request heads, idle time and pipelined requests.

httptools parses the requests. uvicorn creates the protocol for each connection it accepts, and takes over connections
that become WebSockets.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Any
from urllib.parse import unquote

import httptools

from operations.pubsub.link import Turn
from operations.serving.http_exchange import HTTPExchange
from operations.serving.websocket_reader import WebSocketReader

_MAX_HEAD_BYTES = 64 << 10
_MAX_HEADERS = 128
_MAX_PIPELINED = 64
"""Maximum number of requests of one connection that wait for the response to an earlier one."""
_MAX_FRAMING_BYTES = 64 << 10
"""Limit on the bytes of a body that are not content: chunk sizes, chunk extensions and trailers."""
_FRAMING_OF_A_PART = 16
"""Bytes of framing that each part of a body may have without counting towards `_MAX_FRAMING_BYTES`."""
_HEAD_SECONDS = 10.0
"""Seconds to receive a head, and to receive the rest of a body after the response was written."""
_UNREAD_SECONDS = 30.0
"""Seconds within which a client must read some of the data that waits for it."""
_MAX_UNREAD_BYTES = 256 << 20
"""Largest number of unread bytes of responses, of all connections together."""
_REFUSAL = "HTTP/1.1 {}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_BAD_REQUEST = _REFUSAL.format("400 Bad Request").encode()
_TOO_LARGE = _REFUSAL.format("431 Request Header Fields Too Large").encode()
_UNAVAILABLE = _REFUSAL.format("503 Service Unavailable").encode()
_VERSIONS = ("1.1", "1.0")
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class HTTPProtocol(asyncio.Protocol):
    """Reads the requests of a connection, and runs the application for one request at a time."""

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.state: Any = server_state
        self.drained: asyncio.Event | None = None
        """An event that is set when the client has read the written data; None while the client reads fast enough."""
        self._config = config
        self._root_path: str = config.root_path
        self._app_state = app_state
        self._loop: asyncio.AbstractEventLoop = _loop or asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._client: Any = None
        self._server: Any = None
        self._scheme = "http"
        self._method, self._version = b"", ""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._framing_bytes = 0
        self._in_head = True
        self._is_paused = False
        self._reading: HTTPExchange | None = None
        """The request whose body is being read."""
        self._running: HTTPExchange | None = None
        self._waiting: deque[HTTPExchange] = deque()
        self._ahead_bytes = 0
        self._drains = False
        self._closes = False
        """Whether the connection ends after the response to the last request that was read."""
        self._refusal = b""
        """The response to a request that cannot be read."""
        self._until = 0.0
        """Time at which an idle connection is closed; 0 while a request runs."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._unread_timer: asyncio.TimerHandle | None = None
        """Timer that runs while the client reads slowly."""
        self._unread: UnreadResponses = vars(server_state).setdefault("unread_responses", UnreadResponses())

    # The transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the head of the first request; called by asyncio."""
        self.transport = transport
        self.state.connections.add(self)
        self._client = _address(transport.get_extra_info("peername"))
        self._server = _address(transport.get_extra_info("sockname"))
        self._scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        self._limit(_HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the running request of the disconnect, and drop the waiting requests; called by asyncio."""
        self.state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        if self._running is not None:
            self._running.disconnect()
        self.resume_writing()
        self._parser = None  # the parser refers to this object: end the cycle

    def data_received(self, data: bytes) -> None:
        """Parse received data; if no request is running, run the next one. Called by asyncio."""
        if self._closes or self.transport.is_closing() or not self._parse(data):
            return
        if self._running is not None or self.drained is not None:
            self._ahead_bytes += len(data)
            if self._waiting and self._ahead_bytes > _MAX_HEAD_BYTES:
                self.pause_reading()
        elif self._waiting:
            self._start()
        elif self._in_head and not self._until:
            self._limit(_HEAD_SECONDS)

    def _parse(self, data: bytes) -> bool:
        """Parse received data; return False if no further request is read. A head over the limit is not parsed."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES and not 0 <= data.find(b"\r\n\r\n") <= _MAX_HEAD_BYTES:
                self._refuse(_TOO_LARGE)
                return False
        else:
            self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
            if self._framing_bytes > _MAX_FRAMING_BYTES:
                raise httptools.HttpParserError("too much framing")
        except httptools.HttpParserUpgrade as upgrade:
            if self._wants_websocket():
                self._upgrade()
                return False
            return self._parse_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(_BAD_REQUEST)
            return False
        return True

    def _parse_without_upgrade(self, rest: bytes) -> bool:
        """Parse a request again without its `Upgrade` header.

        With this header, the parser ends the request before the body.
        """
        self._headers = [header for header in self._headers if header[0] != b"upgrade"]
        head = self._write_head()
        self._parser = httptools.HttpRequestParser(self)
        self._in_head, self._head_bytes = True, 0
        return self._parse(head + rest)

    def _write_head(self) -> bytes:
        """Return the head of the request that was read last."""
        lines = [b"%b %b HTTP/%b\r\n" % (self._method, self._target, self._version.encode())]
        for name, value in self._headers:
            lines += (name, b": ", value, b"\r\n")
        return b"".join((*lines, b"\r\n"))

    def pause_writing(self) -> None:
        """Make the application wait, because the client reads slowly."""
        self.drained = asyncio.Event()
        self._limit_unread()
        self._unread.add(self.transport, self._client[0] if self._client else "")

    def resume_writing(self) -> None:
        """Let the application continue: the client has read the written data."""
        self._unread.remove(self.transport)
        if self.drained is not None:
            self.drained.set()
            self.drained = None
            if self._waiting:
                self._loop.call_soon(self._start)
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    # The parser

    def on_message_begin(self) -> None:
        """Start to read the head of a request."""
        self._in_head = True
        self._until = 0.0
        self._head_bytes = 0
        self._framing_bytes = 0
        self._target = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """Store a part of the request target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers are dropped: as headers they would bypass the checks of a proxy."""
        if not self._in_head:
            return
        headers = self._headers
        if len(headers) >= _MAX_HEADERS:
            raise httptools.HttpParserError("too many headers")
        name, value = name.lower(), value.strip()
        if name == b"transfer-encoding" and value.lower() != b"chunked":
            raise httptools.HttpParserError("unsupported transfer coding")
        headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Create the exchange of the request whose head is complete, except for an upgrade."""
        self._in_head = False
        self._until = 0.0
        parser = self._parser
        self._version = version = parser.get_http_version()
        self._method = method = parser.get_method()
        if version not in _VERSIONS or method == b"CONNECT":
            raise httptools.HttpParserError("unsupported version or method")
        if parser.should_upgrade():  # `_parse` continues
            self._reading = None
            return
        if b"#" in self._target:  # not part of a request; a proxy may read it as part of the path
            raise httptools.HttpParserError("the target has a fragment")
        raw_path, _, query = self._target.partition(b"?")
        if raw_path[:1] != b"/" and raw_path != b"*":
            raw_path = self._read_absolute(raw_path)
        path = raw_path.decode("ascii")
        root = self._root_path
        scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method.decode("ascii"),
            "scheme": self._scheme,
            "path": root + (unquote(path) if "%" in path else path),
            "raw_path": root.encode() + raw_path if root else raw_path,
            "query_string": query,
            "root_path": root,
            "headers": self._headers,
            "client": self._client,
            "server": self._server,
        }
        if len(self._waiting) >= _MAX_PIPELINED:
            raise httptools.HttpParserError("too many pipelined requests")
        keeps_alive = version == "1.1" and parser.should_keep_alive()
        self._reading = HTTPExchange(self, scope, keeps_alive=keeps_alive)
        self._waiting.append(self._reading)

    def on_body(self, body: bytes) -> None:
        """Pass a part of a body to its exchange, unless the response to its request is complete."""
        self._framing_bytes -= len(body) + _FRAMING_OF_A_PART
        if self._reading is not None and not self._reading.is_over:
            self._reading.add(body)

    def on_message_complete(self) -> None:
        """Handle the end of a request's body."""
        if self._reading is not None:
            self._reading.end_body()
            if not self._reading.keeps_alive:
                self._closes = True
            elif self._reading.is_over:
                self._limit(self._config.timeout_keep_alive)

    # The exchanges

    def pause_reading(self) -> None:
        """Stop reading from the client."""
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the client."""
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()

    def end_exchange(self, exchange: HTTPExchange) -> None:
        """Run the next request, wait for one, or close the connection."""
        self._running = None
        self.state.total_requests += 1
        if not exchange.keeps_alive:
            self._close(exchange)
        elif self._waiting:
            self._loop.call_soon(self._start)  # later: not in the call stack of the exchange that ended
        elif self._refusal:
            self._close_with(self._refusal)
        else:
            self._ahead_bytes = 0
            if self._is_paused:
                self.resume_reading()
            self._limit(_HEAD_SECONDS if exchange.has_more or self._in_head else self._config.timeout_keep_alive)

    def _close(self, exchange: HTTPExchange) -> None:
        """Close the connection; a client that still sends a body can read the response first."""
        if not exchange.has_more or not exchange.is_started or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._closes = True  # the rest of the body is read and dropped
        self.transport.write_eof()
        self.resume_reading()
        self._limit(_HEAD_SECONDS)

    def close_after_response(self) -> None:
        """Close the connection after the last request that was read, or after the next one if no request runs."""
        self._drains = True
        if self._running is not None and not self._waiting:
            self._running.keeps_alive = False

    def shutdown(self) -> None:
        """Close the connection now, or after the response to the running request."""
        if self._running is None:
            self.transport.close()
        else:
            self._running.keeps_alive = False

    def _start(self) -> None:
        """Run the application for the next request, once the client has read the response to the previous one."""
        if self._running is not None or not self._waiting or self.drained is not None:
            return
        if len(self.state.connections) > self._config.limit_concurrency:
            self._close_with(_UNAVAILABLE)
            return
        exchange = self._running = self._waiting.popleft()
        if self._drains and not self._waiting:
            exchange.keeps_alive = False
        tasks = self.state.tasks
        exchange.task = task = asyncio.Task(exchange.run(self._config.loaded_app, tasks), loop=self._loop)
        tasks.add(task)

    def _refuse(self, response: bytes) -> None:
        """Answer a request that cannot be read, after the responses to earlier requests, and close the connection."""
        self._closes = True
        broken = self._reading
        if broken is not None and broken.has_more:
            if self._waiting and self._waiting[-1] is broken:
                self._waiting.pop()
            elif self._running is broken:
                self._running = None
                broken.disconnect()
                response = b"" if broken.is_started else response
        self._refusal = response
        if self._waiting:
            self._start()
        elif self._running is None:
            self._close_with(response)

    def _close_with(self, response: bytes) -> None:
        self._waiting.clear()
        if not self.transport.is_closing():
            self.transport.write(response)
            self.transport.close()

    def _read_absolute(self, target: bytes) -> bytes:
        """Return the path of an absolute target. Its host must equal `Host`: the application checks only `Host`."""
        authority, slash, path = target.partition(b"://")[2].partition(b"/")
        if dict(self._headers).get(b"host") != authority:
            raise httptools.HttpParserError("the target and Host differ")
        return slash + path or b"/"

    def _wants_websocket(self) -> bool:
        headers = dict(self._headers)
        is_websocket = self._method == b"GET" and headers.get(b"upgrade", b"").lower() == b"websocket"
        has_body = b"content-length" in headers or b"transfer-encoding" in headers
        return is_websocket and not has_body and self._config.ws_protocol_class is not None

    def _upgrade(self) -> None:
        """Pass the connection on to uvicorn's WebSocket protocol; refuse this while other requests are pending."""
        if self._running is not None or self._waiting:
            self._refuse(_BAD_REQUEST)
            return
        self.state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self.resume_writing()
        protocol = self._config.ws_protocol_class(
            config=self._config, server_state=self.state, app_state=self._app_state
        )
        turn = vars(self.state).setdefault("websocket_turn", Turn())  # shared by the connections of the server
        reader = WebSocketReader(self.transport, protocol, turn)
        protocol.data_received(self._write_head())
        self.transport.set_protocol(reader)

    # Time

    def _limit(self, seconds: float) -> None:
        """Close the connection after `seconds` without a running request.

        A timer that is set is reused, unless it would fire too late.
        """
        self._until = until = self._loop.time() + seconds
        if self._timer is None or until < self._timer_at:
            self._set_timer(until)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._check_time)

    def _limit_unread(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._unread_timer = self._loop.call_later(_UNREAD_SECONDS, self._check_unread, unsent)

    def _check_unread(self, unsent: int) -> None:
        """Abort the connection if the client has read nothing since the timer began.

        `close` would wait until the client reads the rest.
        """
        if self.transport.get_write_buffer_size() >= unsent:
            self.transport.abort()
        else:
            self._limit_unread()

    def _check_time(self) -> None:
        self._timer = None
        if not self._until or self.transport.is_closing():
            return
        if self._until <= self._loop.time():
            self.transport.close()
        else:
            self._set_timer(self._until)


class UnreadResponses:
    """The connections of a server whose clients read slowly, and the bytes that wait for these clients."""

    def __init__(self) -> None:
        self._connections: dict[asyncio.Transport, tuple[str, int]] = {}
        """The address of each connection, and its number of unread bytes at the last count."""
        self._bytes = 0

    def add(self, transport: asyncio.Transport, address: str) -> None:
        """Count the unread bytes of a connection. If all connections together have too many, abort some of them."""
        self.remove(transport)
        self._connections[transport] = address, 0
        self._count(transport)
        if self._bytes > _MAX_UNREAD_BYTES:
            for each in self._connections:
                self._count(each)
            self._abort_largest()

    def remove(self, transport: asyncio.Transport) -> None:
        """Forget a connection whose client has read the data, or which has ended."""
        _, counted = self._connections.pop(transport, ("", 0))
        self._bytes -= counted

    def _count(self, transport: asyncio.Transport) -> None:
        address, before = self._connections[transport]
        now = transport.get_write_buffer_size()
        self._connections[transport] = address, now
        self._bytes += now - before

    def _abort_largest(self) -> None:
        """Until the limit holds, abort the largest response of the address with the most unread bytes."""
        of_addresses: Counter[str] = Counter()
        for address, size in self._connections.values():
            of_addresses[address] += size
        largest = sorted(self._connections, key=lambda each: self._connections[each][1])
        while self._bytes > _MAX_UNREAD_BYTES:
            greedy = of_addresses.most_common(1)[0][0]
            transport = next(each for each in reversed(largest) if self._connections[each][0] == greedy)
            largest.remove(transport)
            of_addresses[greedy] -= self._connections[transport][1]
            self.remove(transport)
            transport.abort()


def _address(name: Any) -> tuple[str, int] | None:
    """Return a socket name as an ASGI address; None if it is not a TCP address."""
    return (str(name[0]), int(name[1])) if isinstance(name, (tuple, list)) else None
