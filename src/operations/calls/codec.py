"""Events as bytes: JSON, or MessagePack where both sides said so; the first byte tells which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from operations.calls.events import NULL, Event, Header
from operations.envelope import LocalResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.wire import decode_json, decode_msgpack, encode_json, encode_msgpack

CodecName = Literal["json", "msgpack"]


class _LocalOutput(msgspec.Struct, gc=False):
    """The commonest envelope on the wire, read in one step."""

    data: msgspec.Raw
    meta: LocalResponseMeta


class _PlainOutput(msgspec.Struct, gc=False):
    """The same without any bytes in it."""

    data: Any
    meta: LocalResponseMeta


class Codec:
    """One way to write events and the values inside them."""

    def __init__(
        self,
        name: CodecName,
        codec: Any,
        encode_value: Callable[[Any], bytes],
        decode_value: Callable[[bytes], Any],
    ) -> None:
        self.name: CodecName = name
        self.encode: Callable[[Event | Header | _LocalOutput], bytes] = codec.Encoder().encode
        self.decode: Callable[[bytes], Event] = codec.Decoder(Event).decode
        self.decode_header: Callable[[bytes], Header] = codec.Decoder(Header).decode
        self.encode_value = encode_value
        self.decode_value = decode_value
        self._decode_plain: Callable[[bytes], _PlainOutput] | None = (
            msgspec.json.Decoder(_PlainOutput).decode if name == "json" else None
        )
        self._decode_local: Callable[[msgspec.Raw], _LocalOutput] = codec.Decoder(_LocalOutput).decode

    def raw(self, value: Any) -> msgspec.Raw:
        """A value as the bytes it has inside an event."""
        return msgspec.Raw(self.encode_value(value))

    def read(self, raw: msgspec.Raw) -> Any:
        """The value inside an event; None where it was left out."""
        if raw is NULL:
            return None
        return self.decode_value(bytes(raw))

    def write_envelope(self, envelope: ResponseEnvelope[Any]) -> msgspec.Raw:
        """An envelope as it travels."""
        meta = envelope.meta
        if type(meta) is LocalResponseMeta:
            return msgspec.Raw(self.encode(_LocalOutput(self.raw(envelope.data), meta)))
        return self.raw(envelope.to_dict())

    def read_envelope(self, raw: msgspec.Raw) -> ResponseEnvelope[Any]:
        """The envelope that travelled; raises `VALIDATION_ERROR` where it is none."""
        if self._decode_plain is not None:
            text = bytes(raw)
            # Bytes in JSON are marked; an answer that cannot hold a mark is read in one step.
            if b'$bytes"' not in text and b"\\u0024" not in text:
                try:
                    plain = self._decode_plain(text)
                except (msgspec.DecodeError, RecursionError):
                    return self._read_other(raw)
                return ResponseEnvelope(plain.data, plain.meta)
        return self._read_other(raw)

    def _read_other(self, raw: msgspec.Raw) -> ResponseEnvelope[Any]:
        try:
            local = self._decode_local(raw)
        except msgspec.DecodeError:
            value = self.read(raw)
            if not isinstance(value, dict):
                raise CallError(ErrorCode.VALIDATION_ERROR, "the answer is not a response envelope") from None
            return ResponseEnvelope.from_dict(value)
        return ResponseEnvelope(self.read(local.data), local.meta)


JSON = Codec("json", msgspec.json, encode_json, decode_json)
MSGPACK = Codec("msgpack", msgspec.msgpack, encode_msgpack, decode_msgpack)
CODECS: dict[str, Codec] = {"json": JSON, "msgpack": MSGPACK}

_JSON_STARTS = frozenset(b"{ \t\r\n")


def codec_of(message: bytes) -> Codec:
    """The codec that wrote a message: an event is a map, and JSON's begin with a brace."""
    return JSON if message and message[0] in _JSON_STARTS else MSGPACK


def transcode(message: bytes, target: Codec) -> bytes:
    """The same event as another codec writes it."""
    source = codec_of(message)
    if source is target:
        return message
    header = source.decode_header(message)
    return target.encode(msgspec.structs.replace(header, payload=target.raw(source.read(header.payload))))
