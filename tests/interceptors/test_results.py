"""Interceptors that look at results: response limit, redaction, and the log."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from operations import CallError, ErrorCode, OperationContext, http_envelope, mcp_envelope
from operations.content import MCPTextContent
from operations.interceptors import LogCalls, Redact, ResponseLimit
from operations.redaction import Redactor
from operations.testing import error_of
from tests.interceptors.calls import ANN, Upstream, registry_of, unavailable


class Answers:
    """A handler that returns what it is given."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    async def __call__(self, input: Any, context: OperationContext) -> Any:
        if isinstance(self.values[0], Exception):
            raise self.values[0]
        return self.values[0]

    async def stream(self, input: Any, context: OperationContext) -> Any:
        for value in self.values:
            if isinstance(value, Exception):
                raise value
            yield value


async def test_a_result_above_the_limit_is_an_error() -> None:
    registry = registry_of([ResponseLimit(1_000)], Answers("x" * 2_000))
    error = await error_of(registry.execute("a.b"))
    assert (error.code, error.details["reason"]) == (ErrorCode.EXECUTION_ERROR, "PAYLOAD_TOO_LARGE")
    assert (error.details["executed"], error.details["limit"]) == ("yes", 1_000)
    assert (await registry_of([ResponseLimit(1_000)], Answers("x" * 500)).execute("a.b")).data == "x" * 500


async def test_content_blocks_are_part_of_the_size() -> None:
    envelope: Any = mcp_envelope(None, content=[MCPTextContent(text="x" * 2_000)], is_error=False)
    error = await error_of(registry_of([ResponseLimit(1_000)], Answers(envelope)).execute("a.b"))
    assert error.details["reason"] == "PAYLOAD_TOO_LARGE"


async def test_items_and_streams_are_limited() -> None:
    registry = registry_of([ResponseLimit(1_000)], Answers("x", "y" * 2_000), "subscription")
    stream = registry.subscribe("a.b")
    assert (await anext(stream)).data == "x"
    assert (await error_of(anext(stream))).details["reason"] == "PAYLOAD_TOO_LARGE"
    registry = registry_of([ResponseLimit(1_000, stream_bytes=1_500)], Answers(*["x" * 500] * 9), "subscription")
    stream = registry.subscribe("a.b")
    await anext(stream)
    await anext(stream)
    assert (await error_of(anext(stream))).details["limit"] == 1_500


SECRETS = {
    "password": "hunter2",
    "user": "ann",
    "nested": [{"API_Key": "k", "accessToken": {"value": "t"}}],
    "nextPageToken": "page2",
    "note": '{"client_secret": "s", "n": 1}',
}


async def test_members_with_secret_names_are_redacted_everywhere() -> None:
    data = (await registry_of([Redact()], Answers(SECRETS)).execute("a.b")).data
    assert data["password"] == data["nested"][0]["API_Key"] == data["nested"][0]["accessToken"] == "[redacted]"
    assert (data["user"], data["nextPageToken"]) == ("ann", "page2")
    assert json.loads(data["note"]) == {"client_secret": "[redacted]", "n": 1}


async def test_headers_and_cookies_are_redacted() -> None:
    headers = [("set-cookie", "a=1"), ("set-cookie", "b=2"), ("x-api-key", "k"), ("etag", "e")]
    envelope: Any = http_envelope({}, status_code=200, headers=headers, content_type="application/json")
    result = await registry_of([Redact()], Answers(envelope)).execute("a.b")
    text = result.to_json()
    assert b"a=1" not in text
    assert b'"k"' not in text
    assert result.meta.to_dict()["headers"]["etag"] == "e"


async def test_content_blocks_are_redacted() -> None:
    envelope: Any = mcp_envelope(
        {"token": "t0p"},
        content=[MCPTextContent(text='{"token":"t0p"}'), MCPTextContent(text="key sk-123456")],
        is_error=False,
        structured_content={"token": "t0p"},
    )
    result = await registry_of([Redact(patterns=[r"sk-\d+"], fields=["token"])], Answers(envelope)).execute("a.b")
    assert b"t0p" not in result.to_json()
    assert b"sk-1" not in result.to_json()
    assert b"key [redacted]" in result.to_json()


async def test_errors_and_items_are_redacted() -> None:
    error = CallError("DENIED", "card 4111111111111111", {"body": {"secret": "s"}})
    registry = registry_of([Redact(patterns=[r"\d{16}"])], Answers(error))
    seen = await error_of(registry.execute("a.b"))
    assert (seen.message, seen.details) == ("card [redacted]", {"body": {"secret": "[redacted]"}})
    registry = registry_of([Redact()], Answers(SECRETS, error), "subscription")
    stream = registry.subscribe("a.b")
    assert (await anext(stream)).data["password"] == "[redacted]"
    assert (await error_of(anext(stream))).details == {"body": {"secret": "[redacted]"}}


async def test_a_result_without_secrets_is_untouched() -> None:
    data = {"a": [1, {"b": "c"}], "t": "[not json"}
    assert (await registry_of([Redact()], Answers(data)).execute("a.b")).data is data


async def test_a_deep_result_is_redacted_and_does_not_recurse_without_end() -> None:
    deep: Any = {"password": "hunter2"}
    for _ in range(150):
        deep = [deep]
    assert b"hunter2" not in (await registry_of([Redact()], Answers(deep)).execute("a.b")).to_json()


def test_invalid_patterns_are_refused() -> None:
    with pytest.raises(ValueError, match="invalid pattern"):
        Redact(patterns=["("])


async def test_each_call_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "operations.calls")
    registry = registry_of([LogCalls(input=True)], Upstream([None, unavailable()]))
    await registry.execute("a.b", {"password": "hunter2", "x": 1}, ANN)
    await error_of(registry.execute("a.b"))
    first, second = caplog.records
    assert (first.levelname, second.levelname) == ("INFO", "WARNING")
    assert (first.operation, first.outcome, first.caller) == ("a.b", "ok", "ann")  # type: ignore[attr-defined]
    assert second.outcome == "UNAVAILABLE"  # type: ignore[attr-defined]
    assert first.request_id  # type: ignore[attr-defined]
    assert "hunter2" not in first.getMessage()
    assert '"x":1' in first.getMessage()


async def test_a_caller_cannot_write_lines_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "operations.calls")
    context = OperationContext(request_id="r\nforged line", identity=None)
    await registry_of([LogCalls(input=True)]).execute("a.b", {"x": "a\nb\x1b"}, context)
    assert "\n" not in caplog.records[0].getMessage()
    assert "\x1b" not in caplog.records[0].getMessage()


async def test_fast_calls_are_left_out_if_configured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "operations.calls")
    registry = registry_of([LogCalls(slow=60)], Upstream([None, unavailable()]))
    await registry.execute("a.b")
    await error_of(registry.execute("a.b"))
    assert [record.outcome for record in caplog.records] == ["UNAVAILABLE"]  # type: ignore[attr-defined]


async def test_a_stream_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "operations.calls")
    registry = registry_of([LogCalls()], Upstream(), "subscription")
    async for _ in registry.subscribe("a.b"):
        pass
    stream = registry.subscribe("a.b")
    await anext(stream)
    await stream.aclose()
    assert [(record.outcome, record.items) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("ok", 3),
        ("ok", 1),
    ]


@pytest.mark.parametrize("space", ["", " ", "\n", "\r\n\t "])
async def test_fields_of_json_text_are_redacted_after_white_space(space: str) -> None:
    registry = registry_of([Redact()], Answers({"text": f'{space}{{"password": "hunter2"}}'}))
    assert "hunter2" not in repr(await registry.execute("a.b"))
    assert "hunter2" not in Redactor().text(f'{space}{{"password": "hunter2"}}')
