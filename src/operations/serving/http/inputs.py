"""Inputs: the input of an operation, read from a query string or a body. Pure functions without I/O."""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from operations.errors import CallError, ErrorCode
from operations.input_validation import validate_input
from operations.schema.dialects.literals import escaped
from operations.serving.bodies import check_values
from operations.serving.http.parameters import query_parameters
from operations.serving.http.responses import OWN_TYPE
from operations.serving.refusals import RefusedError
from operations.spec import Operation
from operations.wire import decode_json, pointer

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_MAX_FIELDS = 1_000
_MAX_PARTS = 100
_JSON = b"application/json"
_OWN = OWN_TYPE.encode()
_decode = msgspec.json.Decoder().decode


class InputReader:
    """Reads the inputs of one operation."""

    def __init__(self, operation: Operation[Any]) -> None:
        self._operation = operation
        found = query_parameters(operation.spec.input_schema.document)
        self.parameters = None if found is None else {each.name: each for each in found}
        """The parameters by name; None if a query string or a form cannot express the input."""

    def read_query(self, query: bytes) -> dict[str, Any]:
        """Return the input that a query string describes."""
        fields: dict[str, list[str]] = {}
        try:
            text = query.decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
        except ValueError:
            raise _malformed(f"invalid query string: expected UTF-8 and at most {_MAX_FIELDS} fields") from None
        for name, value in pairs:
            fields.setdefault(name, []).append(value)
        return self._assemble(fields, {})

    def read_form(self, body: bytes, content_type: str, max_values: int | None) -> dict[str, Any]:
        """Return the input that the parts of `multipart/form-data` describe."""
        from operations.serving.http.multipart import read_parts

        fields: dict[str, list[str]] = {}
        problems: dict[str, str] = {}
        parameters = self.parameters or {}
        for name, content in read_parts(body, content_type, max_parts=_MAX_PARTS):
            parameter = parameters.get(name)
            if parameter is not None and parameter.is_bytes:
                text = b2a_base64(content, newline=False).decode("ascii")
            else:
                try:
                    text = content.decode()
                except UnicodeDecodeError:
                    text = content.decode(errors="replace")
                    problems[name] = "expected UTF-8 text"
            fields.setdefault(name, []).append(text)
        if max_values is not None:
            texts = (text for name, found in fields.items() if self._is_json(name) for text in found)
            check_values(",".join(texts).encode(), max_values)
        return self._assemble(fields, problems)

    def read_bytes(self, body: bytes) -> dict[str, Any] | None:
        """Return an input with the body as its only property; None unless the input has one property, of type bytes."""
        parameters = self.parameters
        if parameters is None or len(parameters) != 1:
            return None
        ((name, parameter),) = parameters.items()
        return {name: b2a_base64(body, newline=False).decode("ascii")} if parameter.is_bytes else None

    def check_null(self) -> None:
        """Raise `VALIDATION_ERROR` if null is not a valid input of the operation."""
        if not self._operation.spec.input_schema.check(None):
            raise _invalid_input(self._operation.id, [{"path": "", "message": "null is not a valid input"}])

    def _is_json(self, name: str) -> bool:
        parameter = (self.parameters or {}).get(name)
        return parameter is not None and parameter.kind is None

    def _assemble(self, fields: Mapping[str, list[str]], problems: dict[str, str]) -> dict[str, Any]:
        """Convert the texts of the fields to the input. `problems` has a message for each field that is not UTF-8."""
        parameters = self.parameters or {}
        values: dict[str, Any] = {}
        for name, texts in fields.items():
            parameter = parameters.get(name)
            if parameter is None:
                problems[name] = "unknown property"
            elif parameter.many and parameter.kind is not None:
                values[name] = [_scalar(text, parameter.kind) for text in texts]
            elif len(texts) > 1:
                problems[name] = "more than one value"
                values[name] = texts
            elif parameter.kind is not None:
                values[name] = _scalar(texts[0], parameter.kind)
            else:
                try:
                    values[name] = _decode(texts[0])
                except (msgspec.DecodeError, RecursionError):
                    problems.setdefault(name, "expected JSON text")
                    values[name] = texts[0]
        if problems:
            raise self._invalid(values, problems)
        return values

    def _invalid(self, values: dict[str, Any], problems: Mapping[str, str]) -> CallError:
        """Return an error that lists these problems, and the mismatches with the schema in all other properties."""
        errors: list[dict[str, Any]] = [
            {"path": pointer("", name), "message": message} for name, message in problems.items()
        ]
        stated = {error["path"] for error in errors}
        try:
            validate_input(self._operation, values, bounded=True)
        except CallError as error:
            found = error.details.get("errors", ()) if isinstance(error.details, dict) else ()
            errors += [each for each in found if "/".join(each["path"].split("/", 2)[:2]) not in stated]
        return _invalid_input(self._operation.id, errors)


def read_body(
    inputs: Callable[[], InputReader],
    operation_id: str,
    body: bytes,
    content_type: bytes | None,
    max_values: int | None,
) -> Any:
    """Return the input that a body of this content type contains; refuse JSON with more than `max_values` values."""
    if content_type is None:
        if body:
            raise _unsupported(inputs(), operation_id, "no Content-Type")
        return {}
    essence = content_type if content_type == _JSON else content_type.partition(b";")[0].strip().lower()
    if essence in (_JSON, _OWN):
        if not body:
            return {}
        if max_values is not None:
            check_values(body, max_values)
        return read_json(body) if essence == _JSON else read_own_json(body)
    if essence == b"multipart/form-data" and inputs().parameters is not None:
        return inputs().read_form(body, content_type.decode("latin-1"), max_values)
    if essence == b"application/octet-stream":
        input = inputs().read_bytes(body)
        if input is not None:
            return input
    raise _unsupported(inputs(), operation_id, escaped(essence[:100].decode("latin-1")) or "no Content-Type")


def _unsupported(inputs: InputReader, operation_id: str, given: str) -> RefusedError:
    accepted = ["application/json", OWN_TYPE]
    if inputs.parameters is not None:
        accepted.append("multipart/form-data")
    if inputs.read_bytes(b"") is not None:
        accepted.append("application/octet-stream")
    offered = [name for name in accepted if name != OWN_TYPE]  # other programs have no use for the library's own type
    message = f"unsupported Content-Type for {operation_id}: send {' or '.join(offered)}; got {given}"
    headers = [(b"accept-post", ", ".join(accepted).encode())]
    return RefusedError(415, ErrorCode.VALIDATION_ERROR, message, "CONTENT_TYPE", headers)


def read_json(body: bytes) -> Any:
    """Return the value of a JSON body."""
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(f"malformed JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
    except RecursionError:
        raise _malformed("malformed JSON: nested too deeply") from None


def read_own_json(body: bytes) -> Any:
    """Return the value of a body in the JSON format of this library, which marks base64 text that stands for bytes."""
    try:
        return decode_json(body)
    except CallError as error:
        raise _malformed(error.message) from None


def _scalar(text: str, kind: str) -> Any:
    """Convert text to the JSON type `kind`. Return other text unchanged, so that validation reports it."""
    if kind == "string":
        return text
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    if len(text) > 400 or _NUMBER.fullmatch(text) is None:
        return text
    if kind == "integer" and ("." in text or "e" in text.lower()):
        value = float(text)
        return int(value) if value.is_integer() else value
    try:
        return _decode(text)
    except msgspec.DecodeError:  # out of range
        return text


def _malformed(message: str) -> RefusedError:
    return RefusedError(400, ErrorCode.VALIDATION_ERROR, message, "UNREADABLE")


def _invalid_input(operation_id: str, errors: list[dict[str, Any]]) -> CallError:
    details = {"errors": errors, "executed": "no", "operationId": operation_id}
    return CallError(ErrorCode.VALIDATION_ERROR, f"invalid input for {operation_id}", details)
