"""Codecs: events as JSON or, if both sides support it, MessagePack; the first byte distinguishes the formats."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from operations.calls.events import (
    NULL,
    VERSION,
    CallFailed,
    CallRequested,
    CallResponded,
    ErrorPayload,
    Event,
    EventHeader,
    EventOutline,
    RequestPayload,
    ResponsePayload,
    WorkerAnnounced,
    WorkerRegistered,
)
from operations.context import Identity
from operations.envelope import LocalResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.schema import jsonable
from operations.wire import (
    JSON_MARKERS,
    LARGE_MESSAGE,
    PACKABLE,
    PLAIN,
    check_json_values,
    check_msgpack_values,
    decode_json,
    decode_msgpack,
    encode_json,
    encode_portable,
    extend,
    has_json_marks,
    is_writable,
    mark_json,
    portable,
    read_extension,
    valid_text,
)

_log = logging.getLogger("operations")
CodecName = Literal["json", "msgpack"]
T = TypeVar("T")


class LocalOutput(msgspec.Struct, gc=False):
    """The envelope of the result of a local function, encoded and decoded in one step with its event."""

    data: Any
    meta: LocalResponseMeta


class _PlainRequestPayload(RequestPayload):
    input: Any = None


class _PlainResponsePayload(ResponsePayload, kw_only=True):
    output: LocalOutput  # type: ignore[assignment]


class _LargeRequestPayload(RequestPayload):
    identity: msgspec.Raw = NULL  # type: ignore[assignment]
    metadata: msgspec.Raw = NULL  # type: ignore[assignment]


class _LargeCallRequested(CallRequested, tag="call.requested"):
    payload: _LargeRequestPayload


class _PlainCallRequested(CallRequested, tag="call.requested"):
    payload: _PlainRequestPayload


class _PlainCallResponded(CallResponded, tag="call.responded"):
    payload: _PlainResponsePayload


_PlainEvent = _PlainCallRequested | _PlainCallResponded
PLAIN_RESPONSE, PLAIN_REQUEST, LARGE_REQUEST = _PlainCallResponded, _PlainCallRequested, _LargeCallRequested
"""Types of decoded events.

Most responses have the first type, and most requests the second: the value in the event is decoded together with the
event. Large requests have the third type.
"""
_LargeEvent = _LargeCallRequested | CallResponded | CallFailed | WorkerAnnounced | WorkerRegistered
"""The events that may be large. Others are not decoded above `LARGE_MESSAGE`: they may contain millions of values."""
_MARKER, _ESCAPE = JSON_MARKERS
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError)
"""The exceptions that decoding a message may raise."""
_UNWRITABLE = (CallError, TypeError, ValueError, OverflowError, RecursionError)


class Codec:
    """One format of events and the values inside them.

    An event is encoded and decoded together with the value inside it if the format supports that value directly. A
    value with marks (bytes in JSON) or extensions (large integers in MessagePack) is encoded separately first.
    """

    def __init__(
        self,
        name: CodecName,
        codec: Any,
        encode_value: Callable[[Any], bytes],
        decode_value: Callable[[bytes], Any],
        mark: Callable[[Any], Any],
        scalars: frozenset[object],
        has_marks: Callable[[bytes], bool] | None,
        check_values: Callable[[bytes, int], None],
        **options: Any,
    ) -> None:
        self.name: CodecName = name
        self.encode: Callable[[Event | EventHeader | Identity], bytes] = codec.Encoder().encode
        self.decode_header: Callable[[bytes], EventHeader] = codec.Decoder(EventHeader, **options).decode
        self.decode_outline: Callable[[bytes], EventOutline] = codec.Decoder(EventOutline, **options).decode
        self._decode_identity: Callable[[bytes], Identity | None] = codec.Decoder(Identity | None, **options).decode
        self.decode_any: Callable[[bytes], Event] = codec.Decoder(Event, **options).decode
        self._decode_large: Callable[[bytes], Event] = codec.Decoder(_LargeEvent, **options).decode
        self._decode_large_request: Callable[[bytes], Event] = codec.Decoder(_LargeCallRequested, **options).decode
        self._decode_other_request: Callable[[bytes], Event] = codec.Decoder(CallRequested, **options).decode
        self._decode_metadata: Callable[[bytes], Any] = codec.Decoder(dict[str, Any] | None, **options).decode
        self._decode_plain: Callable[[bytes], Event] = codec.Decoder(_PlainEvent, **options).decode
        self.decode_plain: Callable[[bytes], Event] = self._decode_plain if has_marks is None else self._decode_unmarked
        self._decode_request: Callable[[Any], RequestPayload] = codec.Decoder(_PlainRequestPayload, **options).decode
        self._encode_value = encode_value
        self._decode_value = decode_value
        self._mark = mark
        self._scalars = scalars
        self._has_marks = has_marks
        self._check_values = check_values

    def decode_request(self, message: bytes) -> Event:
        """Decode a message that should be a request; its input may be decoded already, or be `msgspec.Raw`."""
        if len(message) > LARGE_MESSAGE:
            return self.decode_large(message, only_requests=True)
        try:
            return self.decode_plain(message)
        except UNREADABLE:
            return self._decode_other_request(message)

    def decode_large(self, message: bytes, *, only_requests: bool = False) -> Event:
        """Decode a large event, but not its input or output.

        The event must be one of `_LargeEvent`, or with `only_requests` a request.

        Raise an exception of `UNREADABLE` for any other message, and for a request whose metadata and identity have
        more than `LARGE_MESSAGE` bytes.
        """
        event = self._decode_large_request(message) if only_requests else self._decode_large(message)
        if type(event) is _LargeCallRequested:
            payload = event.payload
            if memoryview(payload.metadata).nbytes + memoryview(payload.identity).nbytes > LARGE_MESSAGE:
                raise ValueError(f"its metadata and identity have more than {LARGE_MESSAGE:,} bytes")
            is_absent = payload.metadata is NULL
            payload.metadata = None if is_absent else self._decode_metadata(bytes(payload.metadata))  # type: ignore[assignment]
            payload.identity = self.read_identity(payload.identity)  # type: ignore[assignment]
        return event

    def _decode_unmarked(self, message: bytes) -> Event:
        """Decode a request or response without marks (see `Codec`); raise ValueError if it may contain marks."""
        assert self._has_marks is not None
        if (_MARKER in message or _ESCAPE in message) and self._has_marks(message):
            raise ValueError("marked")
        return self._decode_plain(message)

    def raw(self, value: Any) -> msgspec.Raw:
        """Encode a value as a part of an event."""
        return msgspec.Raw(self._encode_value(value))

    def read(self, value: Any) -> Any:
        """Decode a value that is a part of an event; return None if the value was left out."""
        if type(value) is not msgspec.Raw:
            return value
        return None if value is NULL else self._decode_value(bytes(value))

    def read_limited(self, value: msgspec.Raw, max_values: int) -> Any:
        """Decode a value that contains at most `max_values` values; raise `VALIDATION_ERROR` if it contains more.

        The values are counted before anything is decoded.
        """
        self._check_values(bytes(value), max_values)
        return self.read(value)

    def write_identity(self, identity: Identity | None) -> msgspec.Raw:
        """Encode an identity for the header of an event."""
        if identity is None:
            return NULL
        try:
            return msgspec.Raw(self.encode(identity))
        except OverflowError:  # claims may hold integers above 64 bits
            return msgspec.Raw(self.encode(msgspec.structs.replace(identity, claims=extend(identity.claims))))

    def read_identity(self, raw: msgspec.Raw) -> Identity | None:
        """Decode the identity in the header of an event; raise an exception of `UNREADABLE` if it is invalid."""
        return None if raw is NULL else self._decode_identity(bytes(raw))

    def write_request(self, event: CallRequested) -> bytes:
        """Encode a request together with its input."""
        payload = event.payload
        given: Any = payload.input
        input: Any = {} if given is None else given
        try:
            payload.input = input if is_writable(input, self._scalars) else self._mark(input)
            return self.encode(event)
        except _UNWRITABLE:
            payload.input = self.raw(input)  # raises an error that names what cannot be encoded
            return self.encode_wide(event)

    def encode_wide(self, event: CallRequested) -> bytes:
        """Encode a request whose metadata or claims may have integers above 64 bits."""
        try:
            return self.encode(event)
        except OverflowError:
            if event.payload.metadata is not None:
                event.payload.metadata = extend(event.payload.metadata)
            identity = event.payload.identity
            if identity is not None:
                event.payload.identity = msgspec.structs.replace(identity, claims=extend(identity.claims))
            return self.encode(event)

    def read_request(self, header: EventHeader) -> CallRequested:
        """Decode the payload of a request; raise an exception of `UNREADABLE` if it is invalid.

        The result is the header itself, which then has all fields of a request.
        """
        header.payload = self._decode_request(header.payload)  # type: ignore[assignment]
        return header  # type: ignore[return-value]

    def renumber(self, message: bytes, attempt: int) -> bytes:
        """Return an encoded request with another attempt number."""
        event = self.decode_any(message)
        assert isinstance(event, CallRequested)
        event.payload.attempt = attempt
        return self.encode_wide(event)

    def write_response(self, event: CallResponded, envelope: ResponseEnvelope[Any]) -> bytes:
        """Encode a response together with its envelope."""
        payload, meta = event.payload, envelope.meta
        if type(meta) is not LocalResponseMeta:
            payload.output = self.raw(envelope.to_dict())
            return self.encode(event)
        data = envelope.data
        try:
            is_plain = type(data) in PLAIN or is_writable(data, self._scalars)
            payload.output = envelope if is_plain else LocalOutput(self._mark(data), meta)  # type: ignore[assignment]
            return self.encode(event)
        except _UNWRITABLE:
            payload.output = LocalOutput(self.raw(data), meta)  # type: ignore[assignment]
            return self.encode(event)

    def read_envelope(self, output: Any) -> ResponseEnvelope[Any]:
        """Return the envelope of a response; raise `VALIDATION_ERROR` if it is not an envelope."""
        if type(output) is LocalOutput:
            return ResponseEnvelope(output.data, output.meta)
        value = self.read(output)
        if not isinstance(value, dict):
            raise CallError(ErrorCode.VALIDATION_ERROR, "the response is not an envelope")
        return ResponseEnvelope.from_dict(value)


JSON = Codec("json", msgspec.json, encode_json, decode_json, mark_json, PLAIN, has_json_marks, check_json_values)
MSGPACK = Codec(
    "msgpack",
    msgspec.msgpack,
    encode_portable,
    decode_msgpack,
    portable,
    PACKABLE,
    None,
    check_msgpack_values,
    ext_hook=read_extension,
)
CODECS: dict[str, Codec] = {"json": JSON, "msgpack": MSGPACK}

CODEC_OF = tuple(JSON if first in b"{ \t\r\n" else MSGPACK for first in range(256))
"""The codec of a message by its first byte: a JSON event begins with `{`, perhaps after white space."""


def codec_of(message: bytes) -> Codec:
    """Return the codec of a message."""
    return CODEC_OF[message[0]] if message else MSGPACK


def part_reader(kind: type[T]) -> Callable[[msgspec.Raw | bytes, Codec], T]:
    """Return a function that decodes a part of an event as `kind`.

    The function may raise an exception of `UNREADABLE`.
    """
    decode = {
        JSON.name: msgspec.json.Decoder(kind).decode,
        MSGPACK.name: msgspec.msgpack.Decoder(kind, ext_hook=read_extension).decode,
    }
    return lambda part, codec: decode[codec.name](bytes(part))


def read_event(message: bytes) -> dict[str, Any]:
    """Return a message as plain data, from JSON or MessagePack; raise `VALIDATION_ERROR` if it is not an event."""
    codec = codec_of(message)
    try:
        header = codec.decode_header(message)
        plain: dict[str, Any] = {"v": header.v, "type": header.type, "id": header.id, "to": header.to}
        return {**plain, "payload": codec.read(header.payload)}
    except UNREADABLE as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"the message is not an event: {type(error).__name__}") from None


def transcode(message: bytes, target: Codec) -> bytes:
    """Convert an event to another codec; raise `VALIDATION_ERROR` if that codec cannot encode the event."""
    source = codec_of(message)
    if source is target:
        return message
    header = source.decode_header(message)
    try:
        header.payload = target.raw(source.read(header.payload))
        header.identity = target.write_identity(source.read_identity(header.identity))
        return target.encode(header)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"cannot be encoded as {target.name}: {error}") from error


def error_event(request_id: str, error: CallError, codec: Codec, caller_id: str | None = None) -> CallFailed:
    """Return the event that carries an error; details that cannot be encoded are converted or left out.

    `caller_id` is the id that the caller gave the request, if a hub replaced it.
    """
    details = NULL if error.details is None else _write_details(error.details, codec)
    failed = ErrorPayload(caller_id or request_id, valid_text(str(error.code)), valid_text(error.message), details)
    return CallFailed(VERSION, request_id, "", failed)


def _write_details(details: Any, codec: Codec) -> msgspec.Raw:
    """Encode the details of an error.

    Details that cannot be encoded are converted to JSON values; if that fails too, only the properties for which it
    succeeds are encoded.
    """
    with contextlib.suppress(CallError, RecursionError):
        return codec.raw(details)
    with contextlib.suppress(CallError, RecursionError):
        return codec.raw(jsonable(details))
    kept: dict[str, Any] = {}
    for name, value in details.items() if isinstance(details, Mapping) else ():
        with contextlib.suppress(CallError, RecursionError):
            plain = jsonable(value)
            codec.raw(plain)
            kept[valid_text(str(name))] = plain
    sent = f"only {sorted(kept)} are sent" if kept else "they are not sent"
    _log.warning("the details of an error cannot be encoded: %s", sent)
    return codec.raw(kept) if kept else NULL


def read_error(event: CallFailed, codec: Codec) -> CallError:
    """Return the error that an event carries."""
    payload = event.payload
    try:
        details = codec.read(payload.details)
    except CallError:
        details = None
    return CallError(payload.code, payload.message, details)
