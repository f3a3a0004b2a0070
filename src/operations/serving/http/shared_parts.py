"""Shared parts of the OpenAPI document: the problem schema, responses, headers and security schemes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from operations.errors import ErrorCode
from operations.spec import OPEN, AccessControl

PROBLEM = "application/problem+json"
PROBLEM_REFERENCE = {"$ref": "#/components/schemas/Problem"}

_TEXT = {"type": "string"}

PROBLEM_SCHEMA: Mapping[str, Any] = {
    "title": "Problem",
    "description": "An error (RFC 9457).",
    "type": "object",
    "properties": {
        "type": {"type": "string", "description": "`urn:operations:` and the code."},
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What happened, for people."},
        "code": {
            "type": "string",
            "description": f"What programs branch on: {', '.join(ErrorCode)}, or a code of the operation's own.",
        },
        "requestId": _TEXT,
        "operationId": _TEXT,
        "errors": {
            "type": "array",
            "description": "Every problem of the input.",
            "items": {
                "type": "object",
                "properties": {
                    "pointer": {"type": "string", "description": "JSON pointer into the input."},
                    "detail": _TEXT,
                },
                "required": ["pointer", "detail"],
            },
        },
        "details": {"description": "What the operation adds to the error."},
        "executed": {
            "type": "string",
            "enum": ["no", "unknown", "yes"],
            "description": "Whether the operation may have run.",
        },
    },
    "required": ["type", "title", "status", "code"],
}

_STATUSES: Mapping[int, tuple[str, str]] = {
    400: ("BadRequest", "The request cannot be read, such as malformed JSON."),
    401: ("Unauthorized", "Credentials are missing, unknown or expired."),
    403: ("Forbidden", "The credentials lack a scope or a right."),
    409: ("Conflict", "The operation failed, or a call with the same Idempotency-Key is running."),
    413: ("ContentTooLarge", "The body exceeds the limit."),
    415: ("UnsupportedMediaType", "The content type of the body is not supported."),
    422: ("UnprocessableContent", "The input does not fit its schema; `errors` lists every problem."),
    429: ("TooManyRequests", "A rate or concurrency limit is reached; `Retry-After` says when to try again."),
    500: ("InternalServerError", "The operation failed."),
    503: ("ServiceUnavailable", "The operation is not available; `Retry-After` says when to try again."),
    504: ("GatewayTimeout", "The deadline passed."),
}
CONVENTIONS = """Every operation takes POST with its input as the JSON body; queries and subscriptions take GET as well.

- Errors are `application/problem+json`; programs branch on `code`.
- Mutations take an `Idempotency-Key` header: a repeated request with the same key and body gets the first response.
- `Operations-Timeout: <seconds>` shortens the deadline of a call.
- `Accept: application/vnd.operations.envelope+json` returns the result with what its source knows about it.
- Streams are server-sent events and end with `operations.complete` or `operations.problem`."""
"""What holds for every operation, as the description of the document says it.

`Idempotency-Key` is not a parameter: generated tests would send one key with two bodies, which is refused.
"""

_ALWAYS = (400, 422, 429, 500, 503, 504)
_WITH_BODY = (413, 415)
_WITH_ACCESS = (401, 403)


class Security(msgspec.Struct, frozen=True):
    """How callers authenticate, as the document describes it."""

    schemes: Mapping[str, Mapping[str, Any]] = {}
    """Security schemes by name, as OpenAPI writes them; empty where nobody authenticates."""
    anonymous: bool = True
    """Whether operations that require nothing can be called without credentials."""

    def of(self, access: AccessControl) -> list[dict[str, Sequence[str]]]:
        """Return the `security` of an operation: its alternatives, empty where no credentials are needed."""
        if not self.schemes or (self.anonymous and access == OPEN):
            return []
        required = list(access.required_scopes)
        alternatives = [[*required, scope] for scope in access.required_scopes_any] or [required]
        return [{name: scopes} for scopes in alternatives for name in self.schemes]


TOKENS = Security(
    {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token or an API key. An API key is also accepted as `X-API-Key`, but not both at once.",
        }
    }
)
"""Tokens or API keys, and anonymous callers for what requires nothing."""


def error_responses(*, body: bool, access: bool, conflict: bool) -> dict[str, Any]:
    """Return the error responses of every operation by status; `default` is any other."""
    statuses = [
        *_ALWAYS,
        *(_WITH_BODY if body else ()),
        *(_WITH_ACCESS if access else ()),
        *((409,) if conflict else ()),
    ]
    listed = {str(status): {"$ref": f"#/components/responses/{_STATUSES[status][0]}"} for status in sorted(statuses)}
    return {**listed, "default": {"$ref": "#/components/responses/Problem"}}


def describe_status(status: int) -> str:
    """Return the description of an error status."""
    if status in _STATUSES:
        return _STATUSES[status][1]
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "An error of the operation."


def is_general(status: int) -> bool:
    """Whether every operation may answer with this error status, whatever its own codes are."""
    return status in _STATUSES


def shared_components(security: Security) -> dict[str, Any]:
    """Return the components that every document has, all but the schemas of operations."""
    content = {PROBLEM: {"schema": PROBLEM_REFERENCE}}
    responses = {
        name: {"description": text, "content": content}
        for status, (name, text) in _STATUSES.items()
        if security.schemes or status not in _WITH_ACCESS
    }
    responses["Problem"] = {"description": "Any other error.", "content": content}
    components: dict[str, Any] = {
        "responses": responses,
        "headers": {
            "Source": {
                "description": "Where the result comes from.",
                "schema": {"type": "string", "enum": ["local", "http", "mcp"]},
            },
            "RequestId": {"description": "The id of the request in logs and errors.", "schema": _TEXT},
        },
    }
    if security.schemes:
        components["securitySchemes"] = security.schemes
    return components


STREAM_SCHEMAS: Mapping[str, Any] = {
    "StreamComplete": {
        "title": "StreamComplete",
        "description": "The last event of a stream that ended by itself.",
        "type": "object",
        "properties": {"event": {"type": "string", "const": "operations.complete"}},
        "required": ["event"],
    },
    "StreamProblem": {
        "title": "StreamProblem",
        "description": "The last event of a stream that failed.",
        "type": "object",
        "properties": {
            "event": {"type": "string", "const": "operations.problem"},
            "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": PROBLEM_REFERENCE},
        },
        "required": ["event", "data"],
    },
    "StreamProgress": {
        "title": "StreamProgress",
        "description": "How far the call has come.",
        "type": "object",
        "properties": {
            "event": {"type": "string", "const": "operations.progress"},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {
                    "type": "object",
                    "properties": {
                        "progress": {"type": "number"},
                        "total": {"type": ["number", "null"]},
                        "message": {"type": ["string", "null"]},
                    },
                    "required": ["progress"],
                },
            },
        },
        "required": ["event", "data"],
    },
}
"""Schemas of the events that every stream may have beside its items; in documents that have streams only."""
STREAM_ENDINGS: Sequence[Mapping[str, Any]] = [{"$ref": f"#/components/schemas/{name}"} for name in STREAM_SCHEMAS]

RESULT_HEADERS = {
    "Operations-Source": {"$ref": "#/components/headers/Source"},
    "Operations-Request-Id": {"$ref": "#/components/headers/RequestId"},
}
