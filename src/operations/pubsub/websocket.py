"""WebSocket connections of bytes, over picows: one write per turn of the loop, liveness by pings, limits enforced.

What several messages of one turn go to a peer that agreed to it, they go as one frame (see `framing`).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import os
import ssl
import weakref
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

from operations.errors import CallError, ErrorCode
from operations.pubsub import Receive, reason_of, require_extra, untrusted
from operations.pubsub.addresses import places
from operations.pubsub.diagnosis import answer_in_plain, has_no_tls, is_reachable, speaks_tls, wrong_protocol
from operations.pubsub.dialling import dial
from operations.pubsub.framing import batches, split
from operations.pubsub.vigil import vigil_of

try:
    import picows
except ImportError:  # pragma: no cover  # the message is tested in a process of its own
    raise require_extra("picows", "ws") from None

MAX_PAYLOAD = 16 << 20
"""The largest message by default."""
HEARTBEAT_SECONDS = 2.0
PROTOCOL = "operations.v1"
"""The sub-protocol that a client may name, and a browser has to: it offers its token as another one beside it."""
_PROTOCOLS = "Sec-WebSocket-Protocol"
_BEARER = "bearer."
_LEFT_WITHIN = 1.0
_BAD_REQUEST = 400
_MOST_UNSENT = 64 << 20
_BATCH_BYTES = 128 << 10
_FEWEST_TOGETHER, _MOST_TOGETHER = 8, 32
"""How many messages of a turn wait for each other, the first and the later ones: meanwhile the peer works on those."""
_HEADROOM = 1024
_TEXT, _BINARY, _CLOSE = picows.WSMsgType.TEXT, picows.WSMsgType.BINARY, picows.WSMsgType.CLOSE
_CONTROL = frozenset({_CLOSE, picows.WSMsgType.PING, picows.WSMsgType.PONG})


class Callbacks(Protocol):
    """Whoever uses a connection."""

    def opened(self, connection: Connection) -> None:
        """The connection stands."""

    def received(self, connection: Connection, message: bytes) -> None:
        """A message came."""

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is gone."""


class Connection(picows.WSListener):
    """One WebSocket, at either end."""

    def __init__(self, callbacks: Callbacks, max_payload: int = MAX_PAYLOAD, *, stay_awake: bool = True) -> None:
        self.batches = False
        """Whether the peer takes several messages in one frame."""
        self.reason = ""
        self.sent = 0
        """How many messages were written."""
        self.received = 0
        """How many messages came."""
        self.unsent = 0
        """How many messages were to be sent and never written, as the connection was gone."""
        self._callbacks = callbacks
        self.receive: Receive = functools.partial(callbacks.received, self)
        """Who gets the messages; whoever uses the connection may name somebody else, once it knows."""
        self._max_payload = max_payload
        self._transport: Any = None
        self._outbox: list[bytes] = []
        self._together = _FEWEST_TOGETHER
        self._is_first = True
        """Whether nothing was sent since something was read."""
        self._held = False
        """Whether messages wait for the end of the turn."""
        self._is_slow = False
        """Whether the peer does not take what is written as fast as it is."""
        self._fragments = bytearray()
        self._loop = asyncio.get_running_loop()
        self._intake = _intakes.setdefault(self._loop, _Intake())
        self._vigil = vigil_of(self._loop, stay_awake=stay_awake)
        self._gone: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""
        return self._transport is not None and not self._gone.done()

    def send(self, message: bytes) -> None:
        """Send a message: the first one after something was read at once, others of its turn together at its end.

        On a closed connection it is lost, as `closed` has told.
        """
        if self._is_first and not self._intake.busy:
            self._is_first = False
            if self._transport is not None and not self._gone.done():
                self.sent += 1
                self._transport.send(_TEXT if message[:1] == b"{" else _BINARY, message)
                self._vigil.sent()
            else:
                self.unsent += 1
            return
        if not self._held:
            self._held = True
            self._is_first = False  # nothing overtakes them
            if self._intake.busy:
                # What answers the messages being read goes out together once they are all read.
                self._intake.answered.append(self)
            else:
                self._loop.call_soon(self.flush)
        self._outbox.append(message)
        if len(self._outbox) >= self._together:
            self._together = min(self._together * 2, _MOST_TOGETHER)
            self._write_outbox()

    def flush(self) -> None:
        """End a turn: write what it sent."""
        self._held = False
        self._is_first = not self._is_slow
        self._together = _FEWEST_TOGETHER
        self._write_outbox()

    def _write_outbox(self) -> None:
        outbox, self._outbox = self._outbox, []
        if not outbox:
            return
        if not self.is_open or self._transport.underlying_transport.is_closing():
            self.unsent += len(outbox)  # it has ended, or will have as soon as the loop comes to say so
            return
        self.sent += len(outbox)
        if len(outbox) == 1 or not self.batches:
            for message in outbox:
                self._write(message)
        else:
            for frame in batches(outbox, _BATCH_BYTES):
                self._write(frame)
        self._vigil.sent()
        if self._transport.underlying_transport.get_write_buffer_size() > _MOST_UNSENT:
            self.abort("the peer reads too slowly")

    def _write(self, frame: bytes) -> None:
        self._transport.send(_TEXT if frame[:1] == b"{" else _BINARY, frame)

    def abort(self, reason: str) -> None:
        """Cut the connection at once."""
        if self.is_open:
            self.reason = self.reason or reason
            self._transport.disconnect(graceful=False)

    async def close(self, reason: str = "") -> None:
        """Write what is buffered, close, and wait until it is."""
        if not self.is_open:
            return
        self._take_leave(reason)
        await asyncio.wait((self._gone,), timeout=_LEFT_WITHIN)
        if self.is_open:
            self._transport.disconnect(graceful=False)
            await asyncio.wait((self._gone,), timeout=_LEFT_WITHIN)

    def hang_up(self, reason: str) -> None:
        """Close without waiting: the peer is told why, and one that does not read it is cut off."""
        if self.is_open:
            self._take_leave(reason)
            self._loop.call_later(_LEFT_WITHIN, self.abort, reason)

    def _take_leave(self, reason: str) -> None:
        self.flush()
        self.reason = self.reason or reason
        with contextlib.suppress(Exception):
            self._transport.send_close(picows.WSCloseCode.OK, reason.encode()[:120])
        self._transport.disconnect(graceful=True)

    async def wait_closed(self) -> None:
        """Return once the connection is gone."""
        await asyncio.shield(self._gone)

    def on_ws_connected(self, transport: Any) -> None:
        """Called by picows."""
        self._transport = transport
        self._callbacks.opened(self)

    def on_ws_frame(self, transport: Any, frame: Any) -> None:
        """Called by picows for each frame."""
        kind = frame.msg_type
        if kind in _CONTROL:
            if kind == _CLOSE:
                self.reason = self.reason or f"closed by the peer: {frame.get_close_reason() or 'no reason given'}"
                transport.disconnect()
            return
        self._vigil.came()
        data = frame.get_payload_as_bytes()
        self._is_first = not (self._held or self._is_slow)
        if self._fragments or not frame.fin:
            data = self._put_together(data, is_last=frame.fin)
            if data is None:
                return
        intake = self._intake
        if data[:1] != b"\0" and frame.last_in_buffer and not intake.answered:
            # A message that came alone: its answer goes at once, before what is put away behind it.
            self.received += 1
            self.receive(data)
            return
        intake.busy = True
        try:
            messages = split(data)
            self.received += len(messages)
            for message in messages:
                self.receive(message)
        finally:
            intake.busy = False
            if intake.answered:
                intake.finish(last=frame.last_in_buffer)

    def _put_together(self, fragment: bytes, *, is_last: bool) -> bytes | None:
        """The message of which this is the last fragment; None while there are more to come."""
        self._fragments += fragment
        if len(self._fragments) > self._max_payload + _HEADROOM:
            self._fragments.clear()
            self.abort("a message in fragments is over the limit")
            return None
        if not is_last:
            return None
        message = bytes(self._fragments)
        self._fragments.clear()
        return message

    def pause_writing(self) -> None:
        """Called by picows once much is buffered: from now on it is looked how much each time."""
        self._is_slow, self._is_first = True, False

    def resume_writing(self) -> None:
        """Called by picows once the peer took it."""
        self._is_slow = False

    def on_ws_disconnected(self, transport: Any) -> None:
        """Called by picows."""
        if not self._gone.done():
            self._gone.set_result(None)
        self._write_outbox()
        self._callbacks.closed(self, self.reason or "the connection was lost")


class _Intake:
    """Whether messages are being read in a loop, and which connections have answers to send once that is done."""

    def __init__(self) -> None:
        self.busy = False
        self.answered: list[Connection] = []

    def finish(self, *, last: bool) -> None:
        """Send the answers now, or after the frames that were read together with this one."""
        if not last:
            asyncio.get_running_loop().call_soon(self.finish_all)
            return
        self.finish_all()

    def finish_all(self) -> None:
        """Send the answers."""
        answered, self.answered = self.answered, []
        for connection in answered:
            connection.flush()


_intakes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Intake] = weakref.WeakKeyDictionary()


def _settings(heartbeat: float, max_payload: int) -> dict[str, Any]:
    return {
        "disconnect_on_exception": False,
        "enable_auto_ping": True,
        # Half of three heartbeats until a silent peer is asked, the other half for its answer.
        "auto_ping_idle_timeout": 1.5 * heartbeat,
        "auto_ping_reply_timeout": 1.5 * heartbeat,
        "max_frame_size": max_payload + _HEADROOM,
        "logger_name": "operations",
    }


async def connect(
    url: str,
    callbacks: Callbacks,
    *,
    token: str | None = None,
    heartbeat: float = HEARTBEAT_SECONDS,
    max_payload: int = MAX_PAYLOAD,
    stay_awake: bool = True,
    tls: ssl.SSLContext | None = None,
) -> Connection:
    """Dial a WebSocket; a refused token is `ACCESS_DENIED`, anything else that fails `UNAVAILABLE`."""
    if token is not None and not (token.isascii() and token.isprintable()):
        problem = "a line break or a character that is not printable ASCII; was it read with the end of its line?"
        raise CallError(ErrorCode.ACCESS_DENIED, f"the token cannot be sent to the hub: it has {problem}")
    headers = {"Authorization": f"Bearer {token}"} if token is not None else None
    connection = Connection(callbacks, max_payload, stay_awake=stay_awake)
    try:
        await dial(
            lambda reach: picows.ws_connect(
                lambda: connection,
                url,
                ssl_context=tls,
                extra_headers=headers,
                max_redirects=0,
                socket_factory=reach,
                **_settings(heartbeat, max_payload),
            )
        )
    except picows.WSHandshakeError as error:
        status = int(error.response.status) if error.response is not None else 0
        body = (error.raw_body or b"").decode(errors="replace") if status else str(error)
        code = ErrorCode.ACCESS_DENIED if status in (401, 403) else ErrorCode.UNAVAILABLE
        details = {"status": status, "hub": _shown(url)}
        raise CallError(code, f"the hub refused the connection: {body or status}", details) from None
    except ssl.SSLCertVerificationError as error:
        raise untrusted(_shown(url), error) from error
    except (TimeoutError, OSError, picows.WSError) as error:
        reason = f"no connection to {_shown(url)}: {reason_of(error)}"
        raise CallError(ErrorCode.UNAVAILABLE, reason, {"executed": "no"}) from error
    if not connection.is_open:
        # picows says nothing of a connection that is cut while its upgrade is on its way.
        reason = f"no connection to {_shown(url)}: it was cut before it stood"
        raise CallError(ErrorCode.UNAVAILABLE, reason, {"executed": "no"})
    return connection


async def diagnose(url: str, error: Exception) -> CallError | None:
    """What is surely wrong with an address that could not be connected to: TLS where there is none, or the reverse."""
    details = error.details if isinstance(error, CallError) and isinstance(error.details, dict) else {}
    if not is_reachable(error) or details.get("status", _BAD_REQUEST) not in (0, _BAD_REQUEST):
        return None
    ((host, port),) = places(url)
    shown = _shown(url)
    if shown.lower().startswith("ws:"):
        if await speaks_tls(host, port):
            return wrong_protocol(shown, f"the server there speaks TLS: its address is wss{shown[2:]}")
    elif has_no_tls(error):
        first, _, _ = (await answer_in_plain(host, port, _upgrade(host))).partition(b"\r\n")
        # A server with TLS may well answer this too, but only to say that it is a bad request.
        if first.startswith(b"HTTP/1.") and b" %d" % _BAD_REQUEST not in first:
            return wrong_protocol(shown, f"the server there speaks no TLS: its address is ws{shown[3:]}")
    return None


def _upgrade(host: str) -> bytes:
    """The question whether a WebSocket may be had, by nobody in particular."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = (
        "GET / HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
    )
    return "\r\n".join((*lines, "", "")).encode()


def _shown(url: str) -> str:
    """An address without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _token_of(authorization: str, protocols: list[str]) -> str | None:
    """The token of an upgrade: in its `Authorization`, or where a browser has to put it, among the sub-protocols."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return next((name.removeprefix(_BEARER) for name in protocols if name.startswith(_BEARER)), None)


Admit = Callable[[str | None], Callbacks]
"""Given the bearer token of an upgrade, who takes the connection; raises `ACCESS_DENIED` to answer it with 401."""


class Listener:
    """A WebSocket server; every connection is admitted before it is accepted."""

    def __init__(self, server: asyncio.AbstractServer, port: int) -> None:
        self._server = server
        self.port = port

    async def close(self) -> None:
        """Accept no more connections."""
        self._server.close()


async def serve(
    admit: Admit,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    heartbeat: float = HEARTBEAT_SECONDS,
    max_payload: int = MAX_PAYLOAD,
    stay_awake: bool = True,
    tls: ssl.SSLContext | None = None,
) -> Listener:
    """Listen for WebSockets; port 0 takes a free one."""

    def accept(request: Any) -> Any:
        protocols = [name.strip() for line in request.headers.getall(_PROTOCOLS, ()) for name in line.split(",")]
        try:
            callbacks = admit(_token_of(request.headers.get("Authorization", ""), protocols))
        except CallError as error:
            refusal = picows.WSUpgradeResponse.create_error_response(
                401, error.message.encode(), {"WWW-Authenticate": "Bearer"}
            )
            return picows.WSUpgradeResponseWithListener(refusal, None)
        # Of the protocols offered the one that is spoken is named, and never the one that is a token.
        chosen = {_PROTOCOLS: PROTOCOL} if PROTOCOL in protocols else None
        accepted = picows.WSUpgradeResponse.create_101_response(chosen)
        connection = Connection(callbacks, max_payload, stay_awake=stay_awake)
        return picows.WSUpgradeResponseWithListener(accepted, connection)

    server = await picows.ws_create_server(accept, host, port, ssl=tls, **_settings(heartbeat, max_payload))
    return Listener(server, server.sockets[0].getsockname()[1])
