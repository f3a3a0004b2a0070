"""Problems: errors as `application/problem+json` (RFC 9457), and their HTTP statuses."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from operations.context import NO_ASK
from operations.envelope import MCPResponseMeta
from operations.errors import CallError, ErrorCode
from operations.failures import executed_of
from operations.schema import Schema
from operations.serving.asgi import NO_SNIFF, PHRASES, REQUEST_ID_HEADER, Headers, Response
from operations.serving.refusals import RefusedError, public_error
from operations.spec import Operation
from operations.wire import valid_text

MEDIA_TYPE = "application/problem+json"
_TYPE = (b"content-type", MEDIA_TYPE.encode())
_NO_STORE = (b"cache-control", b"no-store")
_MAX_PROBLEMS = 100
_MAX_DETAIL = 2_000
_RETRY_SECONDS = 1
_LONGEST_RETRY = 86_400
_OWN = frozenset(ErrorCode)
_NOT_PASSED_ON = frozenset({401, 403, 407})
"""Upstream statuses that concern this server's credentials at the upstream, not the caller's credentials."""
_SECRET_DETAILS = frozenset({"headers", "setCookies"})
_DOMAIN_STATUS = 409
_TOO_MANY = frozenset({"RATE_LIMITED", "TOO_MANY_JOBS"})
_STATUS = {
    ErrorCode.VALIDATION_ERROR: 500,
    ErrorCode.OPERATION_NOT_FOUND: 500,
    ErrorCode.ACCESS_DENIED: 403,
    ErrorCode.EXECUTION_ERROR: 500,
    ErrorCode.UNKNOWN_ERROR: 500,
    ErrorCode.TIMEOUT: 504,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.ABORTED: 503,
}
_encode = msgspec.json.Encoder(enc_hook=repr).encode


def status_of(error: CallError, operation: Operation[Any] | None = None) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, RefusedError):
        return error.status
    code = error.code
    details = error.details if isinstance(error.details, dict) else {}
    if code is ErrorCode.VALIDATION_ERROR and executed_of(error) == "no":
        return 422
    if code is ErrorCode.UNAVAILABLE and details.get("reason") in _TOO_MANY:
        return 429
    if code is ErrorCode.EXECUTION_ERROR and operation is not None:
        return _upstream_status(details, operation)
    if isinstance(code, ErrorCode):
        return _STATUS[code]
    schema = operation.spec.error_schemas.get(str(code)) if operation is not None else None
    return _DOMAIN_STATUS if schema is None else declared_status(schema)


def problem(error: CallError, request_id: str, operation: Operation[Any] | None = None) -> dict[str, Any]:
    """Return an error as a problem document."""
    operation_id = operation.id if operation is not None else None
    error = public_error(error, operation_id or "the request")
    status = status_of(error, operation)
    members: dict[str, Any] = {
        "type": f"urn:operations:{error.code}",
        "title": PHRASES.get(status, "Error"),
        "status": status,
        "detail": error.message.partition("\n")[0][:_MAX_DETAIL],
        "code": str(error.code),
        "requestId": request_id,
    }
    if operation_id is not None:
        members["operationId"] = operation_id
    details = error.details
    if isinstance(details, dict):
        details = {name: value for name, value in details.items() if name not in _SECRET_DETAILS}
        executed = details.pop("executed", None)
        if executed is not None:
            members["executed"] = executed
        if error.code is ErrorCode.VALIDATION_ERROR and isinstance(details.get("errors"), list):
            members["errors"] = [_one_problem(each) for each in details.pop("errors")[:_MAX_PROBLEMS]]
        details.pop("operationId", None)
    if details:
        members["details"] = details
    return members


def _retry_seconds(error: CallError) -> int:
    """Return the whole seconds of `Retry-After`; a default if the details of the error have no valid number."""
    wait = error.details.get("retryAfter") if isinstance(error.details, dict) else None
    if isinstance(wait, int | float) and 0 <= wait <= _LONGEST_RETRY:
        return math.ceil(wait)
    return _RETRY_SECONDS


def problem_response(error: CallError, request_id: str, operation: Operation[Any] | None = None) -> Response:
    """Return an error as a response."""
    members = problem(error, request_id, operation)
    headers: Headers = [_TYPE, _NO_STORE, NO_SNIFF, (REQUEST_ID_HEADER, request_id.encode())]
    if isinstance(error, RefusedError):
        headers += error.headers
    status = members["status"]
    if status in (429, 503) and not (isinstance(error.details, dict) and error.details.get("reason") == NO_ASK):
        headers.append((b"retry-after", b"%d" % _retry_seconds(error)))
    return Response(status, headers, encode_problem(members))


def encode_problem(members: dict[str, Any]) -> bytes:
    """Encode a problem; leave out its details and errors if JSON cannot express them."""
    try:
        return _encode(members)
    except (RecursionError, ValueError, TypeError):
        plain = {name: value for name, value in members.items() if name not in ("details", "errors")}
        return _encode({**plain, "detail": valid_text(str(plain["detail"]))})


def tool_error(meta: MCPResponseMeta, operation_id: str) -> RefusedError:
    """Return the error that an MCP tool reported, with its content blocks in the details."""
    texts = [block.text for block in meta.content if block.type == "text"]
    message = "\n".join(texts) or f"{operation_id}: the tool reported an error without a message"
    error = RefusedError(409, ErrorCode.EXECUTION_ERROR, message, "TOOL_ERROR", [(b"operations-mcp-error", b"true")])
    error.details = {**meta.to_dict(), "executed": "yes"}
    return error


def _upstream_status(details: dict[str, Any], operation: Operation[Any]) -> int:
    """Return the status for an error response of the operation's HTTP source; 500 for any other failure."""
    status = details.get("statusCode")
    if not isinstance(status, int) or not is_http_source(operation):
        return 500
    return status if 400 <= status < 500 and status not in _NOT_PASSED_ON else 502


def is_http_source(operation: Operation[Any]) -> bool:
    """Whether an operation comes from an HTTP API, so that its errors contain the status of an upstream response."""
    annotations = operation.spec.annotations
    return "method" in annotations and "path" in annotations


def declared_status(schema: Schema) -> int:
    """Return the status of a declared error: `x-http-status` of its schema if that is an error status, else 409."""
    document = schema.document
    status = document.get("x-http-status") if isinstance(document, dict) else None
    return status if type(status) is int and 400 <= status <= 599 else _DOMAIN_STATUS


def _one_problem(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        return {"pointer": "", "detail": ""}
    return {"pointer": str(found.get("path", "")), "detail": str(found.get("message", ""))[:_MAX_DETAIL]}
