"""`ops show`: show an operation, or code that calls it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from operations.cli.arguments import LISTING_OPTIONS, Argument, Command, Option, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.failures import OK, CommandError
from operations.cli.fields import Fields
from operations.cli.inputs import INPUT_FORMS, read_input
from operations.cli.listing import as_data, read_listing
from operations.cli.output import write_either, write_json
from operations.cli.snippets import curl_command, example_input, python_code, shell_command, without_secrets
from operations.cli.terminal import columns, one_line, paint, paint_json, printable, write_text
from operations.config.cache import CatalogueEntry
from operations.schema import Schema, from_schema
from operations.wire import encode_json


class OperationDetails(msgspec.Struct):
    """An operation and what is shown of it."""

    entry: CatalogueEntry
    kind: str
    """Kind of its source; empty on a transport."""
    spec: dict[str, Any]
    input_schema: Schema
    output_schema: Schema
    example: Any

    @property
    def streams(self) -> bool:
        """Whether the operation is a subscription."""
        return self.entry.type == "subscription"


def run(args: ParsedArguments) -> Any:
    """Run the command."""
    details = _find(args)
    entry, input_schema, output_schema, example = (
        details.entry,
        details.input_schema,
        details.output_schema,
        details.example,
    )
    if args.curl:
        return _show_curl(args, details)
    if args.python:
        code = python_code(entry.id, example, streams=details.streams)
        write_either(args, {"python": code}, code)
    elif args.schema:
        write_json({"input": input_schema.document, "output": output_schema.document})
    elif args.json:
        write_json(_as_data(details))
    else:
        write_text("".join(f"{line}\n" for line in _describe(details)))
    return OK


def _find(args: ParsedArguments) -> OperationDetails:
    """Return the operation with its schemas, from the cache or from the transport."""
    listing = read_listing(args)
    entry = listing.find(args.operation)
    spec = listing.spec(entry.id)
    if spec is None:
        raise CommandError(f"{entry.id} is too large for the cache", "'ops call' validates its input anyway")
    input_schema, output_schema = from_schema(spec["inputSchema"]), from_schema(spec["outputSchema"])
    example, own = example_input(input_schema), read_input(args.input, input_schema.document)
    if own is not None:
        example = {**example, **own} if isinstance(example, dict) and isinstance(own, dict) else own
    return OperationDetails(entry, listing.kinds.get(entry.source, ""), spec, input_schema, output_schema, example)


async def _show_curl(args: ParsedArguments, details: OperationDetails) -> int:
    from operations.cli.session import open_session
    from operations.context import OperationContext

    async with open_session(args, details.entry.id) as session:
        operation = session.find(details.entry.id)
        session.require_dry_run(operation)
        from operations.sources.openapi.config import HTTPCallOptions

        context = OperationContext(metadata={"http": HTTPCallOptions(dry_run=True)})
        if operation.handler is None:
            stream = session.registry.subscribe(operation.id, details.example, context)
            envelope = await anext(stream)
            await stream.aclose()
        else:
            envelope = await session.registry.execute(operation.id, details.example, context)
        request = without_secrets(envelope.data, session.redact)
    command = curl_command(request)
    write_either(args, {"curl": command, "request": request}, command + "\n")
    return OK


def _as_data(details: OperationDetails) -> dict[str, Any]:
    return {**as_data(details.entry), **details.spec, "example": details.example}


def _describe(details: OperationDetails) -> Iterator[str]:
    entry = details.entry
    yield f"{paint('bold', printable(entry.id))}  {entry.type}  {paint('dim', f'from {printable(entry.source)}')}"
    for text in dict.fromkeys(filter(None, (entry.title, details.spec.get("description", "")))):
        yield ""
        yield printable(text.strip())
    if entry.tags:
        yield paint("dim", printable(f"tags: {', '.join(entry.tags)}"))
    scopes = details.spec.get("accessControl", {})
    if scopes:
        needed = [*scopes.get("requiredScopes", ()), *scopes.get("requiredScopesAny", ())]
        yield paint("dim", printable(f"remote callers need: {', '.join(needed) or 'a resource'}"))
    for name, schema in (
        ("Input", details.input_schema),
        ("Each event" if details.streams else "Output", details.output_schema),
    ):
        yield ""
        yield paint("bold", name)
        yield from _fields(schema)
    yield ""
    yield paint("bold", "Example")
    yield "  " + printable(shell_command(entry.id, details.example, streams=details.streams))
    more = "--schema, --python, --curl" if details.kind == "openapi" else "--schema, --python"
    yield "  " + paint("dim", f"more: ops show {printable(entry.id)} {more}")


def _fields(schema: Schema) -> Iterator[str]:
    """Format a schema: its fields with their types, or its one type."""
    fields = Fields(schema.document)
    names = fields.names()
    if not names:
        kind = _kind(fields, [])
        yield f"  {kind}" if kind != "anything" or schema.is_unknown else f"  {paint_json(str(schema.document))}"
        return
    required = fields.required()
    widest = min(max(len(name) for name in names), 30)
    kinds = [_kind(fields, [name]) for name in names]
    widest_kind = min(max(map(len, kinds)), 24)
    for name, kind in zip(names, kinds, strict=True):
        marker = paint("red", "*") if name in required else " "
        width = columns() - max(widest, len(name)) - max(widest_kind, len(kind)) - 8
        about = one_line(_about(fields, name), max(width, 0))
        yield f"  {marker} {printable(name):<{widest}}  {paint('cyan', f'{kind:<{widest_kind}}')}  {about}".rstrip()
    if required:
        yield paint("dim", "  * required")


def _kind(fields: Fields, path: list[str | int]) -> str:
    choices = fields.choices(path)
    if choices and len(choices) <= 6:
        return printable("|".join(str(choice) for choice in choices))
    types = sorted(fields.types(path), key=lambda kind: kind == "null")
    if "array" in types and len(path) < 4:
        inner = _kind(fields, [*path, 0])
        types = [f"{inner}[]" if kind == "array" else kind for kind in types]
    if fields.is_binary(path):
        types = ["bytes" if kind == "string" else kind for kind in types]
    return "|".join(types) or "anything"


def _about(fields: Fields, name: str) -> str:
    nodes = fields.at([name])
    text = next((str(node["description"]) for node in nodes if node.get("description")), "")
    default = next((node["default"] for node in nodes if node.get("default") is not None), None)
    if default is None:
        return text
    details = default if isinstance(default, str) and default else encode_json(default).decode()
    return f"{text} [{details}]".strip()


COMMAND = Command(
    name="show",
    summary=SUMMARIES["show"],
    run=run,
    arguments=(
        Argument("OPERATION", "the operation, as namespace.name", completes="operation"),
        Argument("INPUT", "input for --python and --curl", required=False, many=True, completes="field"),
    ),
    options=(
        Option("--schema", "print the JSON Schemas of input and output"),
        Option("--python", "print a Python program that calls it"),
        Option("--curl", "print its HTTP request as a curl command, without secrets (OpenAPI only)"),
        *LISTING_OPTIONS,
    ),
    forms=INPUT_FORMS,
    examples=(
        ("ops show shop.quote", "print fields and an example"),
        ("ops show shop.quote --python > quote.py", "save a Python program"),
        ("ops show pets.get id=7 --curl", "print the HTTP request"),
        ("ops show shop.quote --json | jq .inputSchema", "print JSON"),
    ),
)
