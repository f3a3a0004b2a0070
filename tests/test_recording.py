from __future__ import annotations

import asyncio
import base64
import datetime
import json
import stat
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from operations import CallError, ErrorCode, OperationRegistry, http_envelope, mcp_envelope, operation
from operations.interceptors import Invocation, Proceed
from operations.recording import FileRecorder, Replay, replay_operations
from operations.redaction import Redactor, is_secret_name
from operations.testing import error_of, stub_operation

LOGIN = {
    "type": "object",
    "properties": {
        "user": {"type": "string"},
        "pin": {"type": "string", "writeOnly": True},
        "count": {"type": "integer"},
    },
    "required": ["user"],
}
SECRETS = [
    "hunter2-pin",
    "tok_in_field",
    "value-of-config",
    "sessioncookie=abc",
    "ghp_0123456789abcdefghij",
    "s3cr3tpart",
]


def source() -> list[Any]:
    answer = http_envelope(
        {"user": "ann", "access_token": "tok_in_field", "note": "key ghp_0123456789abcdefghij", "private": True},
        status_code=201,
        headers={"content-type": "application/json", "authorization": "s3cr3tpart", "x-count": "1"},
        set_cookies=["sessioncookie=abc"],
    )
    return [
        stub_operation("api.login", returns=answer, input_schema=LOGIN),
        stub_operation(
            "api.fail", raises=CallError("INVENTORY_EMPTY", "none: value-of-config", {"token": "tok_in_field"})
        ),
        stub_operation("api.feed", yields=[1, {"password": "s3cr3tpart"}]),
        stub_operation("api.next", returns=lambda input: input.get("page", 0) * 10),
    ]


async def record(path: Path) -> None:
    with FileRecorder(path, secrets=["value-of-config"]) as recorder:
        registry = OperationRegistry(source(), interceptors=[recorder])
        await registry.execute("api.login", {"user": "ann", "pin": "hunter2-pin", "count": 1})
        await registry.execute("api.login", {"user": "value-of-config"})
        await error_of(registry.execute("api.fail", {}))
        assert len([event async for event in registry.subscribe("api.feed")]) == 2
        await registry.execute("api.next", {"page": 1})
        await registry.execute("api.next", {"page": 2})


async def test_a_recording_is_replayed_without_the_sources(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    await record(path)
    registry = OperationRegistry(replay_operations(path))
    envelope = await registry.execute("api.login", {"user": "ann", "pin": "another", "count": 1})
    assert envelope.data["user"] == "ann"
    assert envelope.data["private"] is True
    assert envelope.meta.source == "http"
    assert envelope.meta.status_code == 201
    assert envelope.meta.headers["x-count"] == "1"
    assert (await error_of(registry.execute("api.fail"))).code == "INVENTORY_EMPTY"
    assert [event.data async for event in registry.subscribe("api.feed")] == [1, {"password": "[redacted]"}]
    assert (await registry.execute("api.next", {"page": 2})).data == 20


async def test_secrets_never_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    await record(path)
    text = path.read_text()
    assert [secret for secret in SECRETS if secret in text] == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert '"recording":1' in text.splitlines()[0]


async def test_secrets_in_specs_bytes_and_keys_never_reach_the_file(tmp_path: Path) -> None:
    path, secret = tmp_path / "calls.jsonl", "value-of-config"
    upload: dict[str, Any] = {
        "type": "object",
        "properties": {
            "token": {"type": "string", "default": secret, "pattern": "^sk_0123456789abcdefghij|a$"},
            "file": {"description": f"see https://ann:{secret}@host/"},
            "pattern": {"description": f"Not a pattern: {secret}."},
        },
    }
    made = stub_operation("api.upload", returns={secret: [1]}, input_schema=upload, description=f"Uses {secret}.")
    with FileRecorder(path, secrets=[secret]) as recorder:
        registry = OperationRegistry([made], interceptors=[recorder])
        await registry.execute("api.upload", {"token": "a", "file": b"\xff" + secret.encode()})
    assert secret not in path.read_text()
    assert base64.b64encode(b"\xff" + secret.encode()).decode() not in path.read_text()
    registry = OperationRegistry(replay_operations(path))
    recorded = registry.operations["api.upload"].spec.input_schema.document
    assert isinstance(recorded, dict)
    assert recorded["properties"]["token"] == {**upload["properties"]["token"], "default": "[redacted]"}
    assert (await registry.execute("api.upload", {"token": "a", "file": b"\xff other"})).data == {"[redacted]": [1]}


async def test_known_secrets_in_free_text_never_reach_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, known, variable = tmp_path / "calls.jsonl", 'pa"ss/wörd+1', "from-the-environment"
    monkeypatch.setenv("SHOP_API_KEY", variable)
    monkeypatch.setenv("SHOP_PASSWORD", "shop")
    texts = [
        f"{form(secret)} of the shop"
        for secret in (known, variable)
        for form in (str, quote_plus, json.dumps, lambda text: json.dumps({"x": text}, ensure_ascii=False))
    ]
    with FileRecorder(path, secrets=[known]) as recorder:
        made = stub_operation("api.read", returns=[*texts, *(text.encode() for text in texts)])
        await OperationRegistry([made], interceptors=[recorder]).execute("api.read")
    replayed = await OperationRegistry(replay_operations(path)).execute("api.read")
    found = [each.decode() if isinstance(each, bytes) else each for each in replayed.data]
    # A value of fewer than 8 characters may be an ordinary word.
    forms = ["[redacted]", "[redacted]", '"[redacted]"', '{"x": "[redacted]"}']
    assert found == 4 * [f"{form} of the shop" for form in forms]


async def test_secrets_in_json_text_never_reach_the_file(tmp_path: Path) -> None:
    """MCP tools return a structured result as JSON text too; HTTP bodies and arguments may be JSON in a string."""
    path = tmp_path / "calls.jsonl"
    output = {"type": "object", "properties": {"pin": {"type": "string", "format": "password"}}}
    result = {"pin": "hunter2-pin", "token": "tok_in_field", "inner": json.dumps({"secret": "s3cr3tpart"})}
    text = json.dumps(result)
    answer = mcp_envelope(result, structured_content=result, content=[{"type": "text", "text": text}])
    deep = '{"a":' * 900 + '"s3cr3tpart"' + "}" * 900
    operations = [
        stub_operation("s.tool", returns=answer, output_schema=output),
        stub_operation("s.body", raises=CallError("EXECUTION_ERROR", "no", {"body": text})),
        stub_operation("s.deep", returns=mcp_envelope([], content=[{"type": "text", "text": deep}])),
    ]
    with FileRecorder(path) as recorder:
        registry = OperationRegistry(operations, interceptors=[recorder])
        await registry.execute("s.tool", {"query": json.dumps({"token": "tok_in_field"})})
        await registry.execute("s.deep", {})
        await error_of(registry.execute("s.body", {}))
    written = path.read_text()
    assert len(written.splitlines()) == 7
    # The body of an error has no schema: only its names show what is secret.
    assert "hunter2-pin" not in "".join(line for line in written.splitlines() if '"body"' not in line)
    for secret in ("tok_in_field", "s3cr3tpart"):
        assert secret not in written
    replayed = OperationRegistry(replay_operations(path))
    assert (await replayed.execute("s.tool", {"query": json.dumps({"token": "other"})})).data["pin"] == "[redacted]"


async def test_an_unmatched_call_shows_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    await record(path)
    registry = OperationRegistry(replay_operations(path))
    error = await error_of(registry.execute("api.next", {"page": 3, "token": "tok_in_field"}))
    assert error.code == "UNAVAILABLE"
    assert error.details["reason"] == "NOT_RECORDED"
    assert json.loads(error.details["nearest"])["page"] in (1, 2)
    assert "tok_in_field" not in error.message
    assert (await error_of(registry.execute("api.login", {"user": 1}))).code == "VALIDATION_ERROR"
    assert (await error_of(registry.execute("api.nothing"))).code == "OPERATION_NOT_FOUND"


async def test_equal_calls_are_replayed_in_order(tmp_path: Path) -> None:
    path, count = tmp_path / "calls.jsonl", iter(range(10))
    with FileRecorder(path) as recorder:
        registry = OperationRegistry(
            [stub_operation("a.b", returns=lambda input: next(count))], interceptors=[recorder]
        )
        for _ in range(2):
            await registry.execute("a.b")
    registry = OperationRegistry(replay_operations(path))
    assert [(await registry.execute("a.b")).data for _ in range(3)] == [0, 1, 1]


async def test_calls_that_an_exception_or_a_cancellation_ends_are_recorded(tmp_path: Path) -> None:
    path, begun = tmp_path / "calls.jsonl", asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def check(invocation: Invocation, proceed: Proceed) -> Any:
        if invocation.spec.id == "a.fail":
            raise RuntimeError("no")
        return await proceed(invocation)

    with FileRecorder(path) as recorder:
        made = [operation(id="a.wait")(wait), operation(id="a.late")(wait), stub_operation("a.fail")]
        registry = OperationRegistry(made, interceptors=[recorder, check])
        call = asyncio.create_task(registry.execute("a.wait"))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await error_of(registry.execute("a.late", timeout=0.01))).code is ErrorCode.TIMEOUT
        await error_of(registry.execute("a.fail"))
        begun.clear()
        call = asyncio.create_task(registry.execute("a.wait"))
        await begun.wait()
    call.cancel()  # after the recorder was closed
    with pytest.raises(asyncio.CancelledError):
        await call
    registry = OperationRegistry(replay_operations(path))
    errors = [await error_of(registry.execute(each)) for each in ("a.wait", "a.late", "a.fail")]
    assert [error.code for error in errors] == [ErrorCode.ABORTED, ErrorCode.TIMEOUT, ErrorCode.EXECUTION_ERROR]


async def test_a_second_run_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    await record(path)
    await record(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum("recording" in line for line in lines) == 1
    assert sum("spec" in line for line in lines) == 4
    assert sum("call" in line for line in lines) == 12


async def test_bytes_and_nested_calls_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with FileRecorder(path) as recorder:
        made = stub_operation("a.b", returns=lambda input: input["file"] * 2)
        await OperationRegistry([made], interceptors=[recorder]).execute("a.b", {"file": b"\x00\xff"})
    registry = OperationRegistry(replay_operations(path))
    assert (await registry.execute("a.b", {"file": b"\x00\xff"})).data == b"\x00\xff" * 2


async def test_values_that_are_not_json_are_recorded_as_json_or_not_at_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, when = tmp_path / "calls.jsonl", datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)
    odd = CallError("ODD", "odd", {"thing": object()})
    with FileRecorder(path) as recorder:
        made = [stub_operation("a.b", returns=lambda input: 1), stub_operation("a.odd", raises=odd)]
        registry = OperationRegistry(made, interceptors=[recorder])
        await registry.execute("a.b", {"when": when})
        assert (await error_of(registry.execute("a.odd"))) is odd
    assert "the call is not recorded" in caplog.text
    assert (await OperationRegistry(replay_operations(path)).execute("a.b", {"when": when})).data == 1


async def test_an_interceptor_answers_in_place_of_handlers(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    await record(path)
    broken = [stub_operation("api.next", raises=RuntimeError("called")), stub_operation("api.feed", yields=["live"])]
    registry = OperationRegistry([*broken, stub_operation("api.other")], interceptors=[Replay(path)])
    assert (await registry.execute("api.next", {"page": 1})).data == 10
    assert "live" not in [event.data async for event in registry.subscribe("api.feed")]
    assert (await error_of(registry.execute("api.other"))).details["reason"] == "NOT_RECORDED"


@pytest.mark.parametrize("text", ["{", '{"recording": 2}', '{"call": {}}', "[]", '{"spec": {"name": "x"}}', "\xff"])
def test_a_file_that_is_not_a_recording_is_refused_with_its_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text(f'{{"recording":1}}\n{text}\n', encoding="latin-1")
    with pytest.raises(CallError, match=r"calls\.jsonl:2: not a recording"):
        replay_operations(path)


@pytest.mark.parametrize(
    "name",
    [
        *("token", "accessToken", "X-Api-Key", "client_secret", "Authorization", "set-cookie", "PASSWORD"),
        *("accesstoken", "clientsecret", "userpassword"),
    ],
)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["author", "tokenizer", "private", "keyboard", "significant", "session", "secretary"])
def test_other_names(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer [redacted]"),
        ("https://ann:pw@host/x?token=abc&page=2", "https://[redacted]@host/x?token=[redacted]&page=2"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIx.c2ln", "[redacted]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "[redacted]"),
        ("nothing to see", "nothing to see"),
    ],
)
def test_forms_of_secrets(text: str, redacted: str) -> None:
    assert Redactor().text(text) == redacted
