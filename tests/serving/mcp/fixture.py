"""The operations that the MCP conformance suite asks of a server, written as any other operations."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

from operations import Operation, OperationContext, OperationRegistry, OperationSpec, operation
from operations.context import Question
from operations.envelope import ResponseEnvelope, mcp_envelope
from operations.errors import CallError
from operations.serving.mcp.resources import PROMPT, prompt, resource
from operations.serving.mcp.sdk.server import POLL
from operations.serving.mcp.tools import NAME
from operations.spec import OperationType

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
REGISTRY = OperationRegistry()
_NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_OK = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def tool(function: Callable[..., Any], **options: Any) -> Operation[Any]:
    """Register a function as the tool of its own name."""
    name = function.__name__
    annotations = {NAME: name, **options.pop("annotations", {})}
    made = operation(id=f"conformance.{name}", annotations=annotations, **options)(function)
    REGISTRY.register(made)
    return made


def blocks(*content: dict[str, Any]) -> ResponseEnvelope[Any]:
    return mcp_envelope(list(content), content=content)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def embedded(uri: str, mime_type: str, value: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": value}}


IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}


@tool
async def test_simple_text() -> ResponseEnvelope[Any]:
    """Return text."""
    return blocks(text("This is a simple text response for testing."))


@tool
async def test_image_content() -> ResponseEnvelope[Any]:
    """Return an image."""
    return blocks(IMAGE)


@tool
async def test_audio_content() -> ResponseEnvelope[Any]:
    """Return a sound."""
    return blocks({"type": "audio", "data": WAV, "mimeType": "audio/wav"})


@tool
async def test_embedded_resource() -> ResponseEnvelope[Any]:
    """Return a resource."""
    return blocks(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."))


@tool
async def test_multiple_content_types() -> ResponseEnvelope[Any]:
    """Return several blocks."""
    mixed = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return blocks(text("Multiple content types test:"), IMAGE, mixed)


async def log(context: OperationContext, message: str) -> None:
    await context.notify_client("notifications/message", {"level": "info", "data": message})


@tool
async def test_tool_with_logging(context: OperationContext) -> str:
    """Log three messages."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await log(context, message)
        await asyncio.sleep(0.05)
    return "Tool with logging executed successfully"


@tool
async def test_logging_tool(context: OperationContext) -> str:
    """Log a message."""
    await log(context, "one message")
    return "logged"


@tool
async def test_tool_with_progress(context: OperationContext) -> str:
    """Report progress three times."""
    for done in (0, 50, 100):
        if context.progress is not None:
            told = context.progress(done, 100, f"Completed step {done} of 100")
            if told is not None:
                await told
        await asyncio.sleep(0.05)
    return "done"


@tool
async def test_sampling(prompt: str, context: OperationContext) -> str:
    """Ask the client's model."""
    result = await context.ask_client("sampling/createMessage", sampling(prompt))
    return f"LLM response: {result['content']['text']}"


def sampling(prompt: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text(prompt)}], "maxTokens": 100}


@tool
async def test_elicitation(message: str, context: OperationContext) -> str:
    """Ask the person."""
    properties = {"username": {"type": "string"}, "email": {"type": "string"}}
    answer = await context.ask(message, {"type": "object", "properties": properties, "required": list(properties)})
    return f"User response: action={answer.action}, content={json.dumps(dict(answer.content))}"


@tool
async def test_elicitation_sep1034_defaults(context: OperationContext) -> str:
    """Ask with default values."""
    properties = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    answer = await context.ask("Please provide user information", {"type": "object", "properties": properties})
    return f"Elicitation completed: action={answer.action}, content={json.dumps(dict(answer.content))}"


def titled(*values: str) -> list[dict[str, str]]:
    return [{"const": value, "title": value.title()} for value in values]


@tool
async def test_elicitation_sep1330_enums(context: OperationContext) -> str:
    """Ask with every kind of choice."""
    properties = {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "oneOf": titled("value1", "value2", "value3")},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled("value1", "value2", "value3")}},
    }
    answer = await context.ask("Please choose", {"type": "object", "properties": properties})
    return f"Elicitation completed: action={answer.action}, content={json.dumps(dict(answer.content))}"


@tool
async def test_streaming_elicitation(context: OperationContext) -> str:
    """Ask the person."""
    return (await context.ask("What is your name?", _NAME)).action


@tool
async def test_error_handling() -> str:
    """Fail."""
    raise CallError("INTENDED", "This tool intentionally returns an error for testing")


async def test_reconnection() -> str:
    """Take longer than the stream stays open."""
    await asyncio.sleep(0.3)
    return "Reconnection test completed"


tool(test_reconnection, annotations={POLL: 0.05})


@tool
async def test_missing_capability(context: OperationContext) -> Any:
    """Ask what the client may not support."""
    return await context.ask_client("sampling/createMessage", sampling("hello"))


@tool
async def test_trigger_tool_change() -> str:
    """Change the list of tools."""
    if "conformance.appears" in REGISTRY:
        REGISTRY.unregister("conformance.appears")
    else:
        REGISTRY.register(operation("conformance.appears")(_appear))
    return "changed"


@tool
async def test_trigger_prompt_change() -> str:
    """Change the list of prompts."""
    if "conformance.prompt" in REGISTRY:
        REGISTRY.unregister("conformance.prompt")
    else:
        REGISTRY.register(operation("conformance.prompt", type="query", annotations={PROMPT: {}})(_appear))
    return "changed"


async def _appear() -> str:
    """Appear in a list."""
    return "here"


@tool
async def test_input_required_result_elicitation(context: OperationContext) -> str:
    """Ask for a name."""
    answers = await context.ask_all({"user_name": Question.form("What is your name?", _NAME)})
    return f"Hello, {answers['user_name'].content.get('name')}!"


@tool
async def test_input_required_result_sampling(context: OperationContext) -> str:
    """Ask the client's model."""
    result = await context.ask_client("sampling/createMessage", sampling("What is the capital of France?"))
    return str(result["content"])


@tool
async def test_input_required_result_list_roots(context: OperationContext) -> str:
    """Ask for the client's roots."""
    return str((await context.ask_client("roots/list"))["roots"])


@tool
async def test_input_required_result_request_state(context: OperationContext) -> str:
    """Ask for a confirmation."""
    return f"state-ok: {(await context.ask('Please confirm', _OK)).action}"


@tool
async def test_input_required_result_tampered_state(context: OperationContext) -> str:
    """Ask for a confirmation."""
    return f"state-ok: {(await context.ask('Please confirm', _OK)).action}"


@tool
async def test_input_required_result_multiple_inputs(context: OperationContext) -> str:
    """Ask three things at once."""
    answers = await context.ask_all(
        {
            "user_name": Question.form("What is your name?", _NAME),
            "greeting": Question("sampling/createMessage", sampling("Generate a greeting")),
            "client_roots": Question("roots/list"),
        }
    )
    return f"{answers['user_name'].content} {answers['greeting']['content']} {answers['client_roots']['roots']}"


@tool
async def test_input_required_result_multi_round(context: OperationContext) -> str:
    """Ask twice."""
    first = await context.ask("Step 1: What is your name?", _NAME)
    colour = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    second = await context.ask("Step 2: What is your favorite color?", colour)
    return f"{first.content} {second.content}"


@tool
async def test_input_required_result_capabilities(context: OperationContext) -> str:
    """Ask only what the client supports."""
    questions = {
        "user_name": Question.form("What is your name?", _NAME),
        "greeting": Question("sampling/createMessage", sampling("Generate a greeting")),
    }
    answers = await context.ask_all({key: each for key, each in questions.items() if context.can_ask(each.method)})
    return str(sorted(answers))


def schema_tool(name: str, document: dict[str, Any]) -> None:
    async def handler(input: Any, context: OperationContext) -> Any:
        return blocks(text(json.dumps(input)))

    spec = OperationSpec(
        name=name,
        namespace="conformance",
        type=OperationType.QUERY,
        description="A tool with a schema of its own",
        input_schema=document,  # type: ignore[arg-type]
        annotations={NAME: name},
    )
    REGISTRY.register(Operation(spec=spec, handler=handler))


schema_tool(
    "json_schema_2020_12_tool",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)
schema_tool(
    "test_x_mcp_header",
    {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "priority": {"type": "integer", "x-mcp-header": "Priority"},
            "verbose": {"type": "boolean", "x-mcp-header": "Verbose"},
            "query": {"type": "string"},
        },
    },
)


@resource("test://static-text", mime_type="text/plain", id="conformance.static_text")
async def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@resource("test://static-binary", mime_type="image/png", id="conformance.static_binary")
async def static_binary() -> bytes:
    """An image."""
    return base64.b64decode(PNG)


@resource("test://template/{id}/data", mime_type="application/json", id="conformance.template")
async def template(id: str) -> dict[str, Any]:
    """Something for each id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@resource("test://watched-resource", mime_type="text/plain", id="conformance.watched")
async def watched() -> str:
    """Something that changes."""
    return "Watched resource content"


@prompt("test_simple_prompt", id="conformance.simple_prompt")
async def simple_prompt() -> str:
    """A text."""
    return "This is a simple prompt for testing."


@operation("conformance.complete_city", type="query")
async def complete_city(value: str) -> list[str]:
    """Complete a city."""
    return [city for city in ("paris", "park", "party") if city.startswith(value)]


@prompt(
    "test_prompt_with_arguments",
    id="conformance.prompt_with_arguments",
    completions={"arg1": "conformance.complete_city"},
)
async def prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A text with arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@prompt("test_prompt_with_embedded_resource", id="conformance.prompt_with_resource")
async def prompt_with_resource(resourceUri: str) -> list[Any]:  # noqa: N803  # the suite's name
    """A resource."""
    content = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
    return [{"role": "user", "content": content}, "Please process the embedded resource above."]


@prompt("test_prompt_with_image", id="conformance.prompt_with_image")
async def prompt_with_image() -> list[Any]:
    """An image."""
    return [{"role": "user", "content": IMAGE}, "Please analyze the image above."]


@prompt("test_input_required_result_prompt", id="conformance.asking_prompt")
async def asking_prompt(context: OperationContext) -> str:
    """Ask what the prompt is about."""
    wanted = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}
    answers = await context.ask_all({"user_context": Question.form("What context should the prompt use?", wanted)})
    return f"The context is {answers['user_context'].content.get('context')}."


REGISTRY.register_all(
    [
        static_text,
        static_binary,
        template,
        watched,
        simple_prompt,
        complete_city,
        prompt_with_arguments,
        prompt_with_resource,
        prompt_with_image,
        asking_prompt,
    ]
)
