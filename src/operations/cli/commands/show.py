"""`show`: all about one operation, or code that calls it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from operations.cli.arguments import LISTING_OPTIONS, Argument, Command, Given, Option
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


class Shown(msgspec.Struct):
    """An operation as it is shown."""

    entry: CatalogueEntry
    kind: str
    """That of its source; empty over a bus."""
    spec: dict[str, Any]
    input_schema: Schema
    output_schema: Schema
    example: Any

    @property
    def streams(self) -> bool:
        """Whether it is followed and not called."""
        return self.entry.type == "subscription"


def run(given: Given) -> Any:
    """Show."""
    shown = _find(given)
    entry, input_schema, output_schema, example = shown.entry, shown.input_schema, shown.output_schema, shown.example
    if given.curl:
        return _show_curl(given, shown)
    if given.python:
        code = python_code(entry.id, example, streams=shown.streams)
        write_either(given, {"python": code}, code)
    elif given.schema:
        write_json({"input": input_schema.document, "output": output_schema.document})
    elif given.json:
        write_json(_as_data(shown))
    else:
        write_text("".join(f"{line}\n" for line in _describe(shown)))
    return OK


def _find(given: Given) -> Shown:
    """The operation with its schemas, from the cache; over a bus, from whoever offers it."""
    listing = read_listing(given)
    entry = listing.find(given.operation)
    spec = listing.spec(entry.id)
    if spec is None:
        raise CommandError(f"{entry.id} is too large to be kept in the cache", "ops call checks its input all the same")
    input_schema, output_schema = from_schema(spec["inputSchema"]), from_schema(spec["outputSchema"])
    example, own = example_input(input_schema), read_input(given.input, input_schema.document)
    if own is not None:
        example = {**example, **own} if isinstance(example, dict) and isinstance(own, dict) else own
    return Shown(entry, listing.kinds.get(entry.source, ""), spec, input_schema, output_schema, example)


async def _show_curl(given: Given, shown: Shown) -> int:
    from operations.cli.session import open_session
    from operations.context import OperationContext

    async with open_session(given, shown.entry.id) as session:
        operation = session.find(shown.entry.id)
        session.require_dry_run(operation)
        from operations.sources.openapi.config import HTTPCallOptions

        context = OperationContext(metadata={"http": HTTPCallOptions(dry_run=True)})
        if operation.handler is None:
            stream = session.registry.subscribe(operation.id, shown.example, context)
            envelope = await anext(stream)
            await stream.aclose()
        else:
            envelope = await session.registry.execute(operation.id, shown.example, context)
        request = without_secrets(envelope.data, session.redact)
    command = curl_command(request)
    write_either(given, {"curl": command, "request": request}, command + "\n")
    return OK


def _as_data(shown: Shown) -> dict[str, Any]:
    return {**as_data(shown.entry), **shown.spec, "example": shown.example}


def _describe(shown: Shown) -> Iterator[str]:
    entry = shown.entry
    yield f"{paint('bold', printable(entry.id))}  {entry.type}  {paint('dim', f'from {printable(entry.source)}')}"
    for text in dict.fromkeys(filter(None, (entry.title, shown.spec.get("description", "")))):
        yield ""
        yield printable(text.strip())
    if entry.tags:
        yield paint("dim", printable(f"tags: {', '.join(entry.tags)}"))
    scopes = shown.spec.get("accessControl", {})
    if scopes:
        needed = [*scopes.get("requiredScopes", ()), *scopes.get("requiredScopesAny", ())]
        yield paint("dim", printable(f"callers over a bus need: {', '.join(needed) or 'a resource'}"))
    for name, schema in (
        ("Input", shown.input_schema),
        ("Each event" if shown.streams else "Output", shown.output_schema),
    ):
        yield ""
        yield paint("bold", name)
        yield from _fields(schema)
    yield ""
    yield paint("bold", "For example")
    yield "  " + printable(shell_command(entry.id, shown.example, streams=shown.streams))
    more = "--schema, --python, --curl" if shown.kind == "openapi" else "--schema, --python"
    yield "  " + paint("dim", f"ops show {printable(entry.id)} {more}: more")


def _fields(schema: Schema) -> Iterator[str]:
    """A schema for people: its fields with their types, or its one type."""
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
        mark = paint("red", "*") if name in required else " "
        room = columns() - max(widest, len(name)) - max(widest_kind, len(kind)) - 8
        about = one_line(_about(fields, name), max(room, 0))
        yield f"  {mark} {printable(name):<{widest}}  {paint('cyan', f'{kind:<{widest_kind}}')}  {about}".rstrip()
    if required:
        yield paint("dim", "  * must be there")


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
    shown = default if isinstance(default, str) and default else encode_json(default).decode()
    return f"{text} [{shown}]".strip()


COMMAND = Command(
    name="show",
    summary=SUMMARIES["show"],
    run=run,
    arguments=(
        Argument("OPERATION", "its id: namespace.name", completes="operation"),
        Argument("INPUT", "the input for --python and --curl", required=False, many=True, completes="field"),
    ),
    options=(
        Option("--schema", "the JSON Schemas of input and output"),
        Option("--python", "a program that calls it"),
        Option("--curl", "the request that calls it, for operations of an API; secrets are left out"),
        *LISTING_OPTIONS,
    ),
    forms=INPUT_FORMS,
    examples=(
        ("ops show shop.quote", "its fields, and an example"),
        ("ops show shop.quote --python > quote.py", "a program"),
        ("ops show pets.get id=7 --curl", "what would be sent"),
        ("ops show shop.quote --json | jq .inputSchema", "for programs"),
    ),
)
