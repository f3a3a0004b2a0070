"""What a caller sends is redacted in little time: in the question for approval, in log lines and in the console."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from operations import CallError, ErrorCode, OperationRegistry, operation, redaction
from operations.context import OperationContext
from operations.interceptors import Redact
from operations.interceptors import redaction as field_redaction
from operations.interceptors.approval import ApprovalRequest
from operations.interceptors.redaction import FieldRedactor
from operations.redaction import Redactor
from operations.telemetry.call_records import CallRecords

LARGE = 1 << 20
MANY = {"text": ['{"a":' + "[" * 60 + "]" * 60 + "}"] * 25_000}
"""Few values of JSON, but each contains a document with many."""


@operation(id="notes.write", type="mutation")
async def write(text: Any = None) -> str:
    """Write a note."""
    return "written"


def question(input: Any) -> str:
    return ApprovalRequest(write.spec, input, OperationContext()).question()


def line(input: Any) -> str:
    return str(FieldRedactor().beginning(input, 2_000))


@pytest.mark.parametrize(
    "text",
    ["-eyJ" * (LARGE // 4), "eyJ-" * (LARGE // 4) + ".", "eyJaaaaaaaa." * (LARGE // 12), "a." * (LARGE // 2)],
)
def test_a_text_is_searched_for_tokens_in_linear_time(text: str) -> None:
    start = time.process_time()
    Redactor().text(text)
    assert time.process_time() - start < 10  # quadratic time would be minutes


@pytest.mark.parametrize("show", [question, line])
def test_only_the_beginning_of_an_input_is_redacted(
    show: Callable[[Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = redaction.json_document

    def count(text: str) -> Any:
        read.append(text)
        return original(text)

    monkeypatch.setattr(redaction, "json_document", count)
    monkeypatch.setattr(field_redaction, "json_document", count)
    assert "[[[[[" in show(MANY)
    assert 0 < len(read) < 100


class Recorded(FieldRedactor):
    """Notes the threads that redact."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def clean(self, value: Any, depth: int = 0) -> Any:
        if depth == 0:
            self.threads.append(threading.get_ident())
        return super().clean(value, depth)


@pytest.mark.parametrize("size", ["large", "small"])
@pytest.mark.parametrize("how", ["returned", "streamed", "raised"])
async def test_a_large_result_is_redacted_beside_other_calls(how: str, size: str) -> None:
    data = {"token": "hunter2", **(MANY if size == "large" else {})}
    redact = Redact()
    redact._redactor = recorded = Recorded()

    @operation(id="notes.read", type="query")
    async def read() -> Any:
        if how == "raised":
            raise CallError(ErrorCode.EXECUTION_ERROR, "failed", data)
        return data

    @operation(id="notes.follow", type="subscription")
    async def follow() -> AsyncIterator[Any]:
        yield data

    registry = OperationRegistry(interceptors=[redact])
    registry.register_all([follow if how == "streamed" else read])
    if how == "streamed":
        found = [each.data async for each in registry.subscribe("notes.follow", {})]
    elif how == "raised":
        with pytest.raises(CallError) as caught:
            await registry.execute("notes.read", {})
        found = [caught.value.details]
    else:
        found = [(await registry.execute("notes.read", {})).data]
    assert [each["token"] for each in found] == ["[redacted]"]
    assert recorded.threads
    assert (threading.get_ident() not in recorded.threads) is (size == "large")


async def test_data_that_change_while_they_are_redacted_are_redacted_again() -> None:
    data = {"token": "hunter2", **MANY}
    redact = Redact()
    redact._redactor = recorded = Recorded()
    original = recorded.clean

    def changed(value: Any, depth: int = 0) -> Any:
        if threading.get_ident() != loop:
            raise RuntimeError("dictionary changed size during iteration")
        return original(value, depth)

    loop = threading.get_ident()
    recorded.clean = changed  # type: ignore[method-assign]

    @operation(id="notes.read", type="query")
    async def read() -> Any:
        return data

    registry = OperationRegistry(interceptors=[redact])
    registry.register(read)
    assert (await registry.execute("notes.read", {})).data["token"] == "[redacted]"


def test_a_large_body_is_not_cleaned_for_the_console() -> None:
    records = CallRecords()
    record = records.add("r", "notes.write", "served")
    assert record is not None
    cleaned: list[Any] = []

    def clean(value: Any) -> str:
        cleaned.append(value)
        return "clean"

    records.keep_bodies(record, MANY, {"token": "secret"}, clean=clean)
    bodies = records.bodies_of(record)
    assert bodies is not None
    assert (bodies.input, bodies.output, cleaned) == (None, b'"clean"', [{"token": "secret"}])
    assert bodies.input_bytes > LARGE


@pytest.mark.parametrize(
    ("input", "shown", "hidden"),
    [
        ({"password": "p" * 10_000, "path": "/etc"}, '"path":"/etc"}?', "ppp"),
        ({"text": "t" * 10_000, "path": "/etc"}, "more characters)?", "/etc"),
        ({"text": ["t" * 500] * 10, "path": "/etc"}, "more characters)?", "/etc"),
        ({"text": '{"password":"hunter2","a":"' + "a" * 10_000 + '"}'}, "more characters)?", "hunter2"),
        ({"text": "b" * 1_900 + " eyJaaaaaaaaaa." + "c" * 10_000 + ".d"}, "more characters)?", "ccc"),
        ({"x" * 2_000: "hunter2"}, "more characters)?", "hunter2"),
        ({"text": "safe\u202egnp.exe"}, "safe\\u202egnp.exe", "\u202e"),
    ],
)
def test_a_question_shows_what_is_left_out(input: Any, shown: str, hidden: str) -> None:
    """A secret takes no room from the rest, and the person sees when something is not shown."""
    asked = question(input)
    assert shown in asked
    assert hidden not in asked


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("a-eyJhbGciOiJI.eyJzdWIiOiIx.c2ln!", "a-[redacted]!"),
        ("longer-word.eyJhbGciOiJI.eyJzdWIiOiIx.c2ln", "longer-word.[redacted]"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx", "[redacted]"),
        ("eyJhbGciOiJI", "eyJhbGciOiJI"),
    ],
)
def test_tokens_in_other_text(text: str, redacted: str) -> None:
    assert Redactor().text(text) == redacted
