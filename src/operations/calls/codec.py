"""Events as bytes: JSON, or MessagePack where both sides said so; the first byte tells which."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from operations.calls.events import (
    NULL,
    VERSION,
    CallFailed,
    CallRequested,
    CallResponded,
    Event,
    Failed,
    Header,
    Outline,
    Requested,
    Responded,
)
from operations.context import Identity
from operations.envelope import LocalResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.wire import (
    JSON_MARKERS,
    PLAIN,
    decode_json,
    decode_msgpack,
    encode_json,
    encode_portable,
    extend,
    has_json_marks,
    mark_json,
    portable,
    read_extension,
)

CodecName = Literal["json", "msgpack"]


class LocalOutput(msgspec.Struct, gc=False):
    """The commonest envelope, written and read in one step with the event around it."""

    data: Any
    meta: LocalResponseMeta


class _PlainRequested(Requested):
    input: Any = None


class _PlainResponded(Responded, kw_only=True):
    output: LocalOutput  # type: ignore[assignment]


class _PlainCallRequested(CallRequested, tag="call.requested"):
    payload: _PlainRequested


class _PlainCallResponded(CallResponded, tag="call.responded"):
    payload: _PlainResponded


_PlainEvent = _PlainCallRequested | _PlainCallResponded
PLAIN_ANSWER, PLAIN_REQUEST = _PlainCallResponded, _PlainCallRequested
"""The types of answers and requests that were read together with the value inside, as most are."""
_MARKER, _ESCAPE = JSON_MARKERS
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError)
"""What reading a message may raise."""
_UNWRITABLE = (CallError, TypeError, ValueError, OverflowError, RecursionError)


class Codec:
    """One way to write events and the values inside them.

    An event is written and read together with the value inside it wherever the format carries that value as it is; a
    value that has to be marked (bytes in JSON) or extended (large integers in MessagePack) is written by itself first.
    """

    def __init__(
        self,
        name: CodecName,
        codec: Any,
        encode_value: Callable[[Any], bytes],
        decode_value: Callable[[bytes], Any],
        mark: Callable[[Any], Any],
        has_marks: Callable[[bytes], bool] | None,
        **options: Any,
    ) -> None:
        self.name: CodecName = name
        self.encode: Callable[[Event | Header | Identity], bytes] = codec.Encoder().encode
        self.decode_header: Callable[[bytes], Header] = codec.Decoder(Header, **options).decode
        self.decode_outline: Callable[[bytes], Outline] = codec.Decoder(Outline, **options).decode
        self._decode_identity: Callable[[bytes], Identity | None] = codec.Decoder(Identity | None, **options).decode
        self.decode_any: Callable[[bytes], Event] = codec.Decoder(Event, **options).decode
        self._decode_plain: Callable[[bytes], Event] = codec.Decoder(_PlainEvent, **options).decode
        self.decode_plain: Callable[[bytes], Event] = self._decode_plain if has_marks is None else self._decode_unmarked
        self._encode_value = encode_value
        self._decode_value = decode_value
        self._mark = mark
        self._has_marks = has_marks

    def decode(self, message: bytes) -> Event:
        """Return the event that a message holds; its input or output may have been read already."""
        try:
            return self.decode_plain(message)
        except UNREADABLE:
            # Of another type, with an envelope of another source, or no event at all.
            return self.decode_any(message)

    def _decode_unmarked(self, message: bytes) -> Event:
        """Return the request or answer that a message holds, if nothing in it may be marked."""
        assert self._has_marks is not None
        if (_MARKER in message or _ESCAPE in message) and self._has_marks(message):
            raise ValueError("marked")
        return self._decode_plain(message)

    def raw(self, value: Any) -> msgspec.Raw:
        """A value as the bytes it has inside an event."""
        return msgspec.Raw(self._encode_value(value))

    def read(self, value: Any) -> Any:
        """The value inside an event; None where it was left out."""
        if type(value) is not msgspec.Raw:
            return value
        return None if value is NULL else self._decode_value(bytes(value))

    def write_identity(self, identity: Identity | None) -> msgspec.Raw:
        """Return an identity as the bytes it has in the header of an event."""
        if identity is None:
            return NULL
        try:
            return msgspec.Raw(self.encode(identity))
        except OverflowError:  # claims may hold integers above 64 bits
            return msgspec.Raw(self.encode(msgspec.structs.replace(identity, claims=extend(identity.claims))))

    def read_identity(self, raw: msgspec.Raw) -> Identity | None:
        """Return the identity in the header of an event; raises one of `UNREADABLE`."""
        return None if raw is NULL else self._decode_identity(bytes(raw))

    def write_request(self, event: CallRequested) -> bytes:
        """A request with its input, which is a value until then."""
        payload = event.payload
        given: Any = payload.input
        input = {} if given is None else given
        try:
            payload.input = self._mark(input)
            return self.encode(event)
        except _UNWRITABLE:
            payload.input = self.raw(input)  # or the error that says what is wrong with it
            return self.encode_wide(event)

    def encode_wide(self, event: CallRequested) -> bytes:
        """A request whose metadata or claims may hold integers above 64 bits."""
        try:
            return self.encode(event)
        except OverflowError:
            if event.payload.metadata is not None:
                event.payload.metadata = extend(event.payload.metadata)
            identity = event.payload.identity
            if identity is not None:
                event.payload.identity = msgspec.structs.replace(identity, claims=extend(identity.claims))
            return self.encode(event)

    def renumber(self, message: bytes, attempt: int) -> bytes:
        """A request as it is sent the next time."""
        event = self.decode_any(message)
        assert isinstance(event, CallRequested)
        event.payload.attempt = attempt
        return self.encode_wide(event)

    def write_response(self, event: CallResponded, envelope: ResponseEnvelope[Any]) -> bytes:
        """An answer with its envelope."""
        payload, meta = event.payload, envelope.meta
        if type(meta) is not LocalResponseMeta:
            payload.output = self.raw(envelope.to_dict())
            return self.encode(event)
        data = envelope.data
        try:
            marked = data if type(data) in PLAIN else self._mark(data)
            # What needs no marks is written as it is.
            payload.output = envelope if marked is data else LocalOutput(marked, meta)  # type: ignore[assignment]
            return self.encode(event)
        except _UNWRITABLE:
            payload.output = LocalOutput(self.raw(data), meta)  # type: ignore[assignment]
            return self.encode(event)

    def read_envelope(self, output: Any) -> ResponseEnvelope[Any]:
        """The envelope that travelled; raises `VALIDATION_ERROR` where it is none."""
        if type(output) is LocalOutput:
            return ResponseEnvelope(output.data, output.meta)
        value = self.read(output)
        if not isinstance(value, dict):
            raise CallError(ErrorCode.VALIDATION_ERROR, "the answer is not a response envelope")
        return ResponseEnvelope.from_dict(value)


JSON = Codec("json", msgspec.json, encode_json, decode_json, mark_json, has_json_marks)
MSGPACK = Codec(
    "msgpack",
    msgspec.msgpack,
    encode_portable,
    decode_msgpack,
    portable,
    None,
    ext_hook=read_extension,
)
CODECS: dict[str, Codec] = {"json": JSON, "msgpack": MSGPACK}

_JSON_STARTS = frozenset(b"{ \t\r\n")
CODEC_OF = {b"{": JSON, **{bytes((first,)): MSGPACK for first in range(0x80, 0x100)}}
"""The codec by the first byte of a message, for the usual ones: an event is a map, whose first byte is no text."""


def codec_of(message: bytes) -> Codec:
    """Return the codec that wrote a message; `CODEC_OF` has the usual ones."""
    return JSON if message and message[0] in _JSON_STARTS else MSGPACK


def transcode(message: bytes, target: Codec) -> bytes:
    """The same event as another codec writes it; raises `VALIDATION_ERROR` where that has no form for it."""
    source = codec_of(message)
    if source is target:
        return message
    header = source.decode_header(message)
    try:
        header.payload = target.raw(source.read(header.payload))
        header.identity = target.write_identity(source.read_identity(header.identity))
        return target.encode(header)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"cannot be written as {target.name}: {error}") from error


def error_event(request_id: str, error: CallError, codec: Codec, caller_id: str | None = None) -> CallFailed:
    """Return the event that carries an error; details that cannot be encoded are left out.

    `caller_id` is the caller's id of the request, where a hub gave it another one.
    """
    details = NULL
    if error.details is not None:
        with contextlib.suppress(CallError, RecursionError):
            details = codec.raw(error.details)
    failed = Failed(caller_id or request_id, writable(str(error.code)), writable(error.message), details)
    return CallFailed(VERSION, request_id, "", failed)


def read_error(event: CallFailed, codec: Codec) -> CallError:
    """Return the error that an event carries."""
    payload = event.payload
    try:
        details = codec.read(payload.details)
    except CallError:
        details = None
    return CallError(payload.code, payload.message, details)


def writable(text: str) -> str:
    """Return a string without lone surrogates, which UTF-8 cannot express."""
    return text if text.isascii() else text.encode(errors="replace").decode()
