from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from operations import (
    AccessControl,
    CallError,
    ErrorCode,
    Identity,
    OperationContext,
    OperationRegistry,
    OperationType,
    from_schema,
    operation,
)
from operations.envelope import mcp_envelope
from operations.exports.names import TOOL_NAME, property_name, tool_names
from operations.exports.schema_fitting import OMIT, fit_schema
from operations.exports.schema_subsets import ANTHROPIC_STRICT, GEMINI, OPENAI_STRICT, PLAIN
from operations.exports.signatures import describe, signature
from operations.exports.stubs import make_stubs
from operations.testing import sample_mcp_envelope, stub_operation
from tests.exports.provider_rules import problems_of_schema

READER = Identity("ann", scopes=["read"])


@operation(id="shop.quote", tags=["shop"], type=OperationType.QUERY)
async def quote(item: str, count: int = 1) -> dict[str, Any]:
    """What some of an item would cost."""
    return {"item": item, "total": count * 3, "seller": {"name": "bob", "api_key": "hunter2"}}


@operation(id="shop.restock", type=OperationType.MUTATION, access_control=AccessControl(required_scopes=["write"]))
async def restock(item: str) -> str:
    """Order more."""
    return f"ordered {item}"


@operation(id="shop.nested")
async def nested(context: OperationContext) -> Any:
    """Call what the caller may not."""
    return (await context.env.shop.restock(item="tea")).data


@operation(id="shop.broken")
async def broken() -> None:
    """Fail."""
    raise RuntimeError("out of order")


@operation(id="shop.prices")
async def prices(until: int) -> Any:
    """Prices as they change."""
    for price in range(until):
        yield price


def registry() -> OperationRegistry:
    return OperationRegistry([quote, restock, nested, broken, prices])


async def test_a_call_gives_text_blocks_and_the_envelope() -> None:
    result = await registry().tools().call("shop_quote", {"item": "tea", "count": 2})
    assert json.loads(result.text)["total"] == 6
    assert not result.is_error
    assert result.blocks == [{"type": "text", "text": result.text}]
    assert result.envelope is not None
    assert result.envelope.data["item"] == "tea"


async def test_arguments_may_be_json_text_and_tools_may_be_named_by_id() -> None:
    tools = registry().tools()
    assert json.loads((await tools.call("shop.quote", '{"item": "tea"}')).text)["total"] == 3
    assert "ordered" in (await tools.call("shop_restock", b'{"item": "tea"}')).text
    for wrong in ("{", "[1]", "null", '"x"', b"\xff", "[" * 100_000):
        result = await tools.call("shop_quote", wrong)
        assert result.is_error
        assert result.text.startswith("VALIDATION_ERROR")


async def test_failures_are_results() -> None:
    tools = registry().tools()
    missing = await tools.call("shop_quote", {})
    assert missing.is_error
    assert "item" in missing.text
    assert missing.error is not None
    assert missing.error.code == "VALIDATION_ERROR"
    assert (await tools.call("shop_broken")).text.startswith("EXECUTION_ERROR: shop.broken")
    unknown = await tools.call("shop_qoute")
    assert "OPERATION_NOT_FOUND" in unknown.text
    assert "shop_quote" in unknown.text


async def test_error_details_of_a_source_are_in_the_text() -> None:
    body = {"message": "Validation Failed", "errors": [{"field": "title"}], "token": "hunter2"}
    raised = [
        stub_operation(
            "a.http", raises=CallError("EXECUTION_ERROR", "answered 422", {"statusCode": 422, "body": body})
        ),
        stub_operation("a.domain", raises=CallError("INVENTORY_EMPTY", "none left", {"item": "tea"})),
        stub_operation("a.odd", raises=CallError("ODD", "odd", {"thing": {1: object()}})),
    ]
    tools = OperationRegistry(raised).tools(redact=True)
    http = (await tools.call("a_http")).text
    assert '"field":"title"' in http
    assert "hunter2" not in http
    assert (await tools.call("a_domain")).text == 'INVENTORY_EMPTY: none left\n{"item":"tea"}'
    assert (await tools.call("a_odd")).text.startswith("ODD")


async def test_an_mcp_error_result_is_an_error_and_keeps_its_blocks() -> None:
    envelope = sample_mcp_envelope({"a": 1}, is_error=True)
    result = await OperationRegistry([stub_operation("a.b", returns=envelope)]).tools().call("a_b")
    assert result.is_error
    assert result.text == '{"a":1}'
    assert result.error is None


async def test_the_text_of_content_blocks_is_their_text_without_base64_data() -> None:
    image = {"type": "image", "data": "QUJD" * 3, "mimeType": "image/png"}
    file = {"type": "resource", "resource": {"uri": "a:b", "blob": "QUI="}}
    content: list[dict[str, Any]] = [{"type": "text", "text": "two files:"}, image, file]
    envelope = mcp_envelope(content, content=content)
    shop = OperationRegistry([stub_operation("a.b", returns=envelope)])
    result = await shop.tools().call("a_b")
    first, *others = result.text.split("\n")
    assert first == "two files:"
    assert [json.loads(line) for line in others] == [
        image | {"data": "<9 bytes>"},
        {"type": "resource", "resource": {"uri": "a:b", "blob": "<2 bytes>"}},
    ]
    assert result.blocks == [{"type": "text", "text": result.text}, image, file]
    assert json.loads((await shop.tools(fields=["text"]).call("a_b")).text)[0] == {"text": "two files:"}


async def test_the_text_of_content_blocks_is_redacted_and_truncated() -> None:
    secret = "sk-live-1234567890abcdef1234"
    content = [{"type": "text", "text": f"key {secret}"}, {"type": "text", "text": "x" * 100}]
    shop = OperationRegistry([stub_operation("a.b", returns=mcp_envelope(content, content=content))])
    text = (await shop.tools(redact=True, max_characters=40).call("a_b")).text
    assert secret not in text
    assert "[truncated: " in text
    assert (await shop.tools(redact=lambda data: "gone").call("a_b")).text == "gone"


@pytest.mark.parametrize("wrong", [0, -1, "5", float("nan")])
async def test_an_invalid_timeout_of_a_tool_call_is_refused(wrong: Any) -> None:
    result = await registry().tools().call("shop_quote", {"item": "tea"}, timeout=wrong)
    assert result.error is not None
    assert (result.error.code, "number of seconds" in result.text) == (ErrorCode.VALIDATION_ERROR, True)
    with pytest.raises(ValueError, match="timeout"):
        registry().tools(timeout=wrong)


async def test_a_timeout_is_a_result_and_a_cancellation_is_raised() -> None:
    started = asyncio.Event()

    @operation(id="slow.call")
    async def slow() -> None:
        started.set()
        await asyncio.Event().wait()

    tools = OperationRegistry([slow]).tools()
    assert (await tools.call("slow_call", timeout=0.01)).text.startswith("TIMEOUT")
    started.clear()
    task = asyncio.create_task(tools.call("slow_call"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_identity_sees_and_calls_only_permitted_tools() -> None:
    tools = registry().tools(identity=READER)
    assert "shop_restock" not in tools
    assert "OPERATION_NOT_FOUND" in (await tools.call("shop_restock", {"item": "tea"})).text
    assert "OPERATION_NOT_FOUND" in (await tools.call("shop.restock", {"item": "tea"})).text
    assert "ACCESS_DENIED" in (await tools.call("shop_nested")).text
    assert "ordered" in (await registry().tools().call("shop_nested")).text
    writer = registry().tools(identity=Identity("bob", scopes=["write"]))
    assert "ordered" in (await writer.call("shop_nested")).text


async def test_rights_are_checked_again_when_a_replaced_operation_is_called() -> None:
    mine = registry()
    tools = mine.tools(identity=READER)
    assert "shop_quote" in tools
    mine.register(stub_operation("shop.quote", access_control=AccessControl(required_scopes=["admin"])), replace=True)
    assert "shop_quote" not in tools


def test_filters() -> None:
    mine = registry()
    assert set(mine.tools(tags=["shop"]).tools) == {"shop_quote"}
    assert "shop_restock" not in mine.tools(read_only=True)
    assert set(mine.tools(allow=["shop.*"], deny=["*.[b-p]*"]).tools) == {"shop_quote", "shop_restock"}
    with pytest.raises(ValueError, match="expected a list"):
        mine.tools(allow="shop.*")
    mine.register_spec(stub_operation("shop.later").spec)
    assert "shop_later" not in mine.tools()


async def test_filtered_operations_cannot_be_called() -> None:
    assert (await registry().tools(deny=["shop.restock"]).call("shop.restock", {"item": "a"})).is_error


async def test_results_are_truncated_projected_and_redacted() -> None:
    mine = registry()
    cut = await mine.tools(max_characters=10).call("shop_quote", {"item": "tea"})
    assert cut.text.startswith('{"item":"t\n[truncated: 10 of ')
    assert cut.envelope is not None
    assert cut.envelope.data["item"] == "tea"
    chosen = await mine.tools(fields=["total", "seller.name"]).call("shop_quote", {"item": "tea"})
    assert json.loads(chosen.text) == {"total": 3, "seller": {"name": "bob"}}
    other = await mine.tools(fields=["total"]).call("shop_quote", {"item": "tea"}, fields=["item"])
    assert json.loads(other.text) == {"item": "tea"}
    redacted = await mine.tools(redact=True).call("shop_quote", {"item": "tea"})
    assert "hunter2" not in redacted.text
    assert "bob" in redacted.text
    named = await mine.tools(redact=["NAME"]).call("shop_quote", {"item": "tea"})
    assert "bob" not in named.text
    own = await mine.tools(redact=lambda data: "gone").call("shop_quote", {"item": "tea"})
    assert own.text == "gone"


async def test_errors_and_other_blocks_are_redacted_too() -> None:
    secret = "sk-live-1234567890abcdef1234"
    resource = {"uri": "x:y", "text": f"key {secret}", "api_key": secret}
    image = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
    envelope = mcp_envelope("fine", content=[{"type": "resource", "resource": resource}, image])

    @operation(id="shop.leak")
    async def leak() -> None:
        raise CallError("UPSTREAM", f"Bearer {secret} was refused", {"token": secret})

    shop = OperationRegistry([stub_operation("shop.blocks", returns=envelope), leak])
    tools = shop.tools(redact=True)
    shown = await tools.call("shop_blocks")
    assert [block["type"] for block in shown.blocks] == ["text", "resource", "image"]
    assert secret not in str(shown.blocks)
    assert shown.blocks[2] == image
    assert secret not in (await tools.call("shop_leak")).text
    assert [block["type"] for block in (await shop.tools(fields=["a"]).call("shop_blocks")).blocks] == ["text", "image"]


async def test_of_a_long_result_only_the_beginning_is_redacted() -> None:
    secret = "sk-live-1234567890abcdef1234"
    rows = [{"name": f"row {number}", "note": f"key {secret}", "password": "hunter2"} for number in range(10_000)]
    shop = OperationRegistry([stub_operation("shop.rows", returns=rows)])
    text = (await shop.tools(redact=True, max_characters=1_000).call("shop_rows")).text
    begun, _, note = text.partition("\n")
    assert begun.startswith('[{"name":"row 0","note":"key [redacted]","password":"[redacted]"},{"name":"row 1"')
    assert "row 8" in begun
    assert secret not in text
    assert "hunter2" not in text
    assert note.startswith(f"[truncated: {len(begun):,} of ")
    assert (await shop.tools(redact=["pass*"], max_characters=1_000).call("shop_rows")).text.count("hunter2") == 0


async def test_text_that_utf8_cannot_express_is_replaced() -> None:
    shop = OperationRegistry([stub_operation("shop.odd", returns={"\ud800": ["a\udfffb"]})])
    assert (await shop.tools().call("shop_odd")).text == '{"?":["a?b"]}'


async def test_lists_are_projected_and_bytes_are_counted() -> None:
    made = stub_operation("a.b", returns=[{"a": 1, "b": b"\xff" * 2000}, {"b": 2}])
    tools = OperationRegistry([made]).tools()
    assert json.loads((await tools.call("a_b")).text)[0]["b"] == "<2,000 bytes>"
    assert json.loads((await tools.call("a_b", fields=["a"])).text) == [{"a": 1}, {}]


async def test_a_stream_gives_its_first_items() -> None:
    tools = registry().tools()
    assert (await tools.call("shop_prices", {"until": 3})).text == "[0,1,2]"
    many = await tools.call("shop_prices", {"until": 1000})
    assert many.text.endswith("[the stream goes on after these 100 items]")
    assert (await registry().tools(identity=READER).call("shop_prices", {"until": 2})).text == "[0,1]"


def test_names() -> None:
    names = tool_names(["a.b", "a.b_c", "a_b.c", "github.repos/get", "1.x", "a." + "x" * 80, "a." + "x" * 81])
    assert names["github.repos/get"] == "github_repos_get"
    assert names["a.b"] == "a_b"
    assert names["1.x"] == "_1_x"
    assert len(set(names.values())) == 7
    assert all(TOOL_NAME.fullmatch(name) for name in names.values())
    assert names["a.b_c"].startswith("a_b_c_")
    assert tool_names(reversed(names)) == names
    assert property_name("plain.name-1") == "plain.name-1"
    assert property_name("a b") != property_name("a_b")
    assert len(property_name("x" * 200)) <= 64


STRANGE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "expand[]": {"type": "array", "items": {"type": "string"}},
        "limit": {"type": "integer", "minimum": 1, "default": 30},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "milestone": {"type": ["integer", "null"], "description": "null clears it"},
        "owner": {"$ref": "#/$defs/owner"},
        "either": {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"id": {"const": 1}}}]},
        "code": {"type": "string", "pattern": "^(?!x)", "format": "uri", "minLength": 3},
        "anything": {},
    },
    "required": ["owner"],
    "$defs": {"owner": {"type": "object", "properties": {"boss": {"$ref": "#/$defs/owner"}}}},
}


@pytest.mark.parametrize("subset", [PLAIN, OPENAI_STRICT, ANTHROPIC_STRICT, GEMINI], ids=lambda subset: subset.name)
def test_unsupported_keywords_are_moved_to_the_description(subset: Any) -> None:
    fitted = fit_schema(STRANGE, subset)
    provider = {"OpenAI strict": "openai", "Gemini": "gemini"}.get(subset.name, "anthropic")
    assert problems_of_schema(provider, fitted, strict="strict" in subset.name) == []
    properties = fitted["properties"]
    assert "the property expand[]" in properties[property_name("expand[]")]["description"]
    if subset is OPENAI_STRICT:
        assert "default: 30" in properties["limit"]["description"]
        assert "(?!x)" in properties["code"]["description"]
        assert "minLength: 3" in properties["code"]["description"]
        assert "JSON text" in properties["labels"]["description"]
    if subset is ANTHROPIC_STRICT:
        assert "minimum: 1" in properties["limit"]["description"]


async def test_strict_arguments_become_the_input_again() -> None:
    seen: list[Any] = []
    made = stub_operation("a.b", returns=seen.append, input_schema=STRANGE)
    sent = {
        property_name("expand[]"): ["x"],
        "limit": None,
        "labels": '{"a": "b"}',
        "milestone": OMIT,
        "owner": {"boss": None},
        "either": "{no JSON}",
        "code": None,
        "anything": '{"x": 1}',
    }
    result = await OperationRegistry([made]).tools().call("a_b", sent)
    assert not result.is_error, result.text
    assert seen == [{"expand[]": ["x"], "labels": {"a": "b"}, "owner": {}, "either": "{no JSON}", "anything": {"x": 1}}]
    await OperationRegistry([made]).tools().call("a_b", {"owner": {}, "milestone": None})
    assert seen[1] == {"owner": {}, "milestone": None}


@pytest.mark.parametrize("strict", [False, True])
async def test_a_recursive_input_that_is_not_an_object_is_wrapped(strict: bool) -> None:
    seen: list[Any] = []
    document = {"type": "array", "items": {"$ref": "#"}, "maxItems": 3}
    tools = OperationRegistry([stub_operation("a.b", returns=seen.append, input_schema=document)]).tools()
    parameters = tools.openai(strict=strict)[0]["function"]["parameters"]
    assert problems_of_schema("openai", parameters, strict=strict) == []
    assert from_schema(parameters).check({"input": [[], [[]]]})
    assert not from_schema(parameters).check({"input": [1]})
    assert not (await tools.call("a_b", {"input": [[], [[]]]})).is_error
    assert seen == [[[], [[]]]]


@pytest.mark.parametrize(
    "document", [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}, {"enum": [1]}]
)
async def test_an_input_that_is_not_an_object_is_wrapped(document: dict[str, Any]) -> None:
    seen: list[Any] = []
    tools = OperationRegistry([stub_operation("a.b", returns=seen.append, input_schema=document)]).tools()
    for provider, strict in (("openai", True), ("openai", False)):
        parameters = tools.openai(strict=strict)[0]["function"]["parameters"]
        assert problems_of_schema(provider, parameters, strict=strict) == []
        assert list(parameters["properties"]) == ["input"]
    value: Any = {"string": "x", "array": [1]}.get(document.get("type", ""), 1)
    assert not (await tools.call("a_b", {"input": value})).is_error
    assert seen == [value]


@pytest.mark.parametrize(
    "document",
    [
        True,
        {},
        {"anyOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {"$ref": "#"}}}]},
        {
            "allOf": [{"$ref": "#/$defs/x"}],
            "$defs": {"x": {"allOf": [{"$ref": "#/$defs/x"}, {"properties": {"a": {}}}]}},
        },
        {"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}},
        {"properties": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
        {"properties": {"a": False, "b": {"type": ["object", "array", "null"]}}},
    ],
)
@pytest.mark.parametrize("subset", [PLAIN, OPENAI_STRICT, ANTHROPIC_STRICT, GEMINI], ids=lambda subset: subset.name)
def test_unusual_schemas_are_reduced_to_the_subset(document: Any, subset: Any) -> None:
    provider = {"OpenAI strict": "openai", "Gemini": "gemini"}.get(subset.name, "anthropic")
    assert problems_of_schema(provider, fit_schema(document, subset), strict="strict" in subset.name) == []


WIDE = {
    "properties": {f"p{number}": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]} for number in range(6)},
    "$defs": {},
}


def test_schemas_that_repeat_themselves_take_bounded_work() -> None:
    for subset in (PLAIN, OPENAI_STRICT, ANTHROPIC_STRICT, GEMINI):
        assert len(json.dumps(fit_schema(WIDE, subset))) < 20_000_000
    cyclic = {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 10}}}
    spec = stub_operation("a.b", input_schema=cyclic, output_schema=WIDE).spec
    assert len(signature(spec)) < 5_000
    assert len(describe(spec)) < 5_000
    assert len(make_stubs([spec]).files["a.pyi"]) < 20_000_000


def test_strict_schemas_have_a_bounded_number_of_properties_and_values() -> None:
    inner = {"type": "object", "properties": {f"q{number}": {"type": "string"} for number in range(100)}}
    wide = {"type": "object", "properties": {f"p{number}": inner for number in range(100)}}
    values = [f"value-{number}" for number in range(1_001)]
    long = [f"value-{number:060}" for number in range(300)]
    listed = {
        "type": "object",
        "properties": {"few": {"enum": ["a"]}, "many": {"enum": values}, "long": {"enum": long}},
    }
    assert problems_of_schema("openai", fit_schema(wide, OPENAI_STRICT), strict=True) == []
    fitted = fit_schema(listed, OPENAI_STRICT)
    assert problems_of_schema("openai", fitted, strict=True) == []
    assert fitted["properties"]["few"]["anyOf"][0]["enum"] == ["a"]
    assert fitted["properties"]["many"]["description"].startswith('(enum: ["value-0","value-1"')
    assert "enum" in fit_schema(listed, PLAIN)["properties"]["many"]


def test_strict_schemas_have_a_bounded_number_of_characters() -> None:
    nullable = {f"n{number}": {"type": ["string", "null"]} for number in range(1_500)}
    named = {"type": "object", "properties": {f"{number:060}": {"type": "string"} for number in range(1_500)}}
    values = {"enum": [f"{number:070}" for number in range(200)]}
    for document in (
        {"type": "object", "properties": nullable},
        {"type": "object", "properties": {"a": named, "b": named}},
        {"type": "object", "properties": {f"p{number}": values for number in range(10)} | {"a": named}},
        {"type": "object", "properties": {f"p{n}": {"$ref": f"#/$defs/{n:060}"} for n in range(2_500)}}
        | {"$defs": {f"{number:060}": {"type": "string", "minLength": number} for number in range(2_500)}},
    ):
        assert problems_of_schema("openai", fit_schema(document, OPENAI_STRICT), strict=True) == []
        assert problems_of_schema("openai", fit_schema(document, PLAIN)) == []


async def test_names_of_any_length_are_refused_quickly() -> None:
    assert "too long" in (await registry().tools().call("x" * 10_000_000)).text


def test_formats() -> None:
    tools = registry().tools(allow=["shop.quote"])
    (chat,) = tools.openai()
    assert chat["type"] == "function"
    assert chat["function"]["name"] == "shop_quote"
    assert chat["function"]["description"] == "What some of an item would cost."
    (responses,) = tools.openai(api="responses", strict=True)
    assert responses["strict"] is True
    assert set(responses["parameters"]["required"]) == {"item", "count"}
    assert tools.anthropic()[0]["input_schema"]["required"] == ["item"]
    assert tools.gemini()[0]["parameters_json_schema"]["type"] == "object"
    assert tools.mcp()[0]["annotations"] == {"readOnlyHint": True}


async def test_an_unexpected_failure_of_the_export_is_a_result() -> None:
    def fail(data: Any) -> Any:
        raise KeyError("secret")

    result = await registry().tools(redact=fail).call("shop_quote", {"item": "tea"})
    assert result.is_error
    assert "secret" not in result.text


def test_calls_of_a_set_with_an_identity_never_use_the_programs_trust() -> None:
    tools = registry().tools(identity=Identity("nobody"))
    assert isinstance(asyncio.run(_denied(tools)), CallError)


async def _denied(tools: Any) -> CallError | None:
    found: CallError | None = (await tools.call("shop_nested")).error
    return found


@pytest.mark.parametrize("given", [-1, "many", True, 2.5])
def test_an_invalid_length_of_results_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"max_characters is .*: expected a whole number of at least 0"):
        OperationRegistry([quote]).tools(max_characters=given)
