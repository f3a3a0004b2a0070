"""Components that all operations of the OpenAPI document share: problems, responses, headers, security schemes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from operations.errors import ErrorCode
from operations.serving.asgi import PHRASES
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
        "detail": {"type": "string", "description": "What happened, for humans."},
        "code": {
            "type": "string",
            "description": f"The code for programs: {', '.join(ErrorCode)}, or a code that the operation declares.",
        },
        "requestId": _TEXT,
        "operationId": _TEXT,
        "errors": {
            "type": "array",
            "description": "All problems of the input.",
            "items": {
                "type": "object",
                "properties": {
                    "pointer": {"type": "string", "description": "JSON pointer into the input."},
                    "detail": _TEXT,
                },
                "required": ["pointer", "detail"],
            },
        },
        "details": {"description": "Further data about the error."},
        "executed": {
            "type": "string",
            "enum": ["no", "unknown", "yes"],
            "description": "Whether the operation may have run.",
        },
    },
    "required": ["type", "title", "status", "code"],
}

_STATUSES: Mapping[int, tuple[str, str]] = {
    400: ("BadRequest", "The request is malformed, for example invalid JSON."),
    401: ("Unauthorized", "Credentials are missing, unknown or expired."),
    403: ("Forbidden", "The credentials lack a scope or a right."),
    409: ("Conflict", "The operation failed, or a call with the same Idempotency-Key is running."),
    413: ("ContentTooLarge", "The body exceeds the limit."),
    415: ("UnsupportedMediaType", "The content type of the body is not supported."),
    422: ("UnprocessableContent", "The input does not match its schema; `errors` lists every problem."),
    429: ("TooManyRequests", "A rate or concurrency limit is reached; `Retry-After` is the number of seconds to wait."),
    500: ("InternalServerError", "The operation failed."),
    503: ("ServiceUnavailable", "The operation is not available; `Retry-After` is the number of seconds to wait."),
    504: ("GatewayTimeout", "The deadline passed."),
}
CONVENTIONS = """Every operation accepts POST with the input as a JSON body. Queries and subscriptions also accept GET,
if a query string can express their input.

- Errors are `application/problem+json`; programs check `code`.
- Mutations accept an `Idempotency-Key` header: a repeated request with the same key and body gets the first response.
- `Operations-Timeout: <seconds>` shortens the deadline of a call.
- `Accept: application/vnd.operations.envelope+json` returns the envelope: the result and its metadata.
- Streams are server-sent events and end with `operations.complete` or `operations.problem`. With
  `Accept: text/event-stream` alone, any call is sent as events: its progress (`operations.progress`) and its result."""
"""The default description of the document.

`Idempotency-Key` is not described as a parameter: generated tests would send one key with two bodies, which is refused.
"""

JOB_CONVENTIONS = """
- `Prefer: respond-async` runs a call as a job: the response is 202, and `Location` is the path of the job. With
  `wait=<seconds>` the response is the result if the job ends within that time."""
"""The description of jobs. Operations do not list 202: generated clients would type every result as `Result | Job`."""
_NUMBER_OR_NULL = {"type": ["number", "null"]}
JOB_SCHEMA: Mapping[str, Any] = {
    "title": "Job",
    "description": "A call that runs in the background. Times are epoch milliseconds.",
    "type": "object",
    "properties": {
        "id": _TEXT,
        "operationId": _TEXT,
        "state": {"type": "string", "enum": ["queued", "running", "done", "failed", "dead", "cancelled"]},
        "attempts": {"type": "integer"},
        "createdAt": {"type": "integer"},
        "startedAt": {"type": "integer"},
        "endedAt": {"type": "integer"},
        "expiresAt": {"type": "integer", "description": "When the result is deleted."},
        "progress": {
            "type": "object",
            "properties": {
                "value": {"type": "number"},
                "total": _NUMBER_OR_NULL,
                "message": {"type": ["string", "null"]},
            },
            "required": ["value"],
        },
        "code": {"type": "string", "description": "The error code of a job that did not succeed."},
        "message": _TEXT,
    },
    "required": ["id", "operationId", "state", "createdAt"],
}
_JOB_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/Job"}}}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait before a retry.", "schema": {"type": "integer"}}}

_ALWAYS = (400, 422, 429, 500, 503, 504)
_WITH_BODY = (413, 415)
_WITH_ACCESS = (401, 403)


class Security(msgspec.Struct, frozen=True):
    """How callers authenticate, as the OpenAPI document describes it."""

    schemes: Mapping[str, Mapping[str, Any]] = {}
    """OpenAPI security schemes by name; empty without authentication."""
    anonymous: bool = True
    """Whether operations without access requirements can be called without credentials."""

    def of(self, access: AccessControl) -> list[dict[str, Sequence[str]]]:
        """Return the `security` of an operation: its alternatives, or an empty list if no credentials are needed."""
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
            "description": (
                "A token or an API key. An API key may be sent as `X-API-Key` instead; "
                "a request with both headers is refused."
            ),
        }
    }
)
"""Tokens or API keys; anonymous callers may call operations without access requirements."""


def error_responses(*, body: bool, access: bool, conflict: bool) -> dict[str, Any]:
    """Return the error responses of an operation by status, with `default` for any other status."""
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
    return PHRASES.get(status, "An error that the operation declares.")


def is_general(status: int) -> bool:
    """Whether errors that an operation does not declare can have this status."""
    return status in _STATUSES


def shared_components(security: Security) -> dict[str, Any]:
    """Return the components of every document, without the schemas of operations."""
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
                "description": "The kind of source that returned the result.",
                "schema": {"type": "string", "enum": ["local", "http", "mcp"]},
            },
            "RequestId": {"description": "The id of the request in logs and errors.", "schema": _TEXT},
        },
    }
    if security.schemes:
        components["securitySchemes"] = security.schemes
    return components


def describe_jobs(security: Security) -> dict[str, Any]:
    """Return the path items of jobs."""
    identifier = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    missing = {"404": {"$ref": "#/components/responses/Problem"}}
    failures = {**missing, **error_responses(body=False, access=bool(security.of(OPEN)), conflict=False)}
    status = {"description": "The job.", "headers": _RETRY_AFTER, "content": _JOB_CONTENT}
    result = {"description": "The result of the operation, as the call itself returns it.", "content": {"*/*": {}}}

    def described(name: str, summary: str, responses: dict[str, Any]) -> dict[str, Any]:
        common = {"operationId": f"~jobs.{name}", "tags": ["jobs"], "security": security.of(OPEN)}
        return {**common, "summary": summary, "responses": {**responses, **failures}}

    return {
        "/~/jobs/{id}": {
            "parameters": [identifier],
            "get": described("status", "Return the state of a job", {"200": status}),
            "delete": described("cancel", "Cancel a job", {"200": status}),
        },
        "/~/jobs/{id}/result": {
            "parameters": [identifier],
            "get": described(
                "result",
                "Return the result of a job",
                {"200": result, "409": {"$ref": "#/components/responses/Conflict"}},
            ),
        },
    }


STREAM_SCHEMAS: Mapping[str, Any] = {
    "StreamComplete": {
        "title": "StreamComplete",
        "description": "The last event of a completed stream.",
        "type": "object",
        "properties": {"event": {"type": "string", "const": "operations.complete"}},
        "required": ["event"],
    },
    "StreamProblem": {
        "title": "StreamProblem",
        "description": "The last event of a failed stream.",
        "type": "object",
        "properties": {
            "event": {"type": "string", "const": "operations.problem"},
            "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": PROBLEM_REFERENCE},
        },
        "required": ["event", "data"],
    },
    "StreamProgress": {
        "title": "StreamProgress",
        "description": "The progress of the call.",
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
"""Schemas of the events that a stream can contain besides its items; only in documents with streams."""
STREAM_ENDINGS: Sequence[Mapping[str, Any]] = [{"$ref": f"#/components/schemas/{name}"} for name in STREAM_SCHEMAS]

RESULT_HEADERS = {
    "Operations-Source": {"$ref": "#/components/headers/Source"},
    "Operations-Request-Id": {"$ref": "#/components/headers/RequestId"},
}
