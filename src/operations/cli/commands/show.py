"""`ops show`: show an operation, or code that calls it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from operations.cli.arguments import LISTING_OPTIONS, Argument, Command, Option, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.direct_sources import DIRECT_OPTIONS
from operations.cli.failures import OK, CommandError
from operations.cli.inputs import INPUT_FORMS, read_input
from operations.cli.listing import as_data, read_listing
from operations.cli.output import write_either, write_json
from operations.cli.schema_text import schema_lines
from operations.cli.snippets import curl_command, example_input, python_code, shell_command, without_secrets
from operations.cli.terminal import paint, printable, write_text
from operations.config.cache import CatalogueEntry
from operations.config.trust import shell_quoted
from operations.schema import Schema, from_schema
from operations.schema.parts import Fields

_MAX_INPUT_LINES = 80
_MAX_OUTPUT_LINES = 16
"""Maximum number of lines of the output schema, so that the input stays on the screen."""
_MAX_USAGE_FIELDS = 6


class OperationDetails(msgspec.Struct):
    """An operation with the details that `ops show` prints."""

    entry: CatalogueEntry
    kind: str
    """Kind of the operation's source; empty for an operation of a transport."""
    spec: dict[str, Any]
    input_schema: Schema
    output_schema: Schema
    example: Any

    @property
    def streams(self) -> bool:
        """Whether the operation is a subscription."""
        return self.entry.type == "subscription"


def run(args: ParsedArguments) -> Any:
    """Show an operation, or code that calls it."""
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
        write_json({**as_data(entry), **details.spec, "example": example})
    else:
        write_text("".join(f"{line}\n" for line in describe(details)))
    return OK


def _find(args: ParsedArguments) -> OperationDetails:
    """Return the operation with its schemas, from the cache or from the transport."""
    listing = read_listing(args)
    entry = listing.find(args.operation)
    spec = listing.spec(entry.id)
    if spec is None:
        message = f"the schemas of {entry.id} are not in the cache: they are too large"
        raise CommandError(message, "'ops call' validates the input anyway")
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
        session.require_request(operation, "--curl")
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


def describe(details: OperationDetails) -> Iterator[str]:
    """Yield the lines that describe an operation."""
    entry = details.entry
    yield f"{paint('bold', printable(entry.id))}  {entry.type}  {paint('dim', f'from {printable(entry.source)}')}"
    for text in dict.fromkeys(filter(None, (entry.title, details.spec.get("description", "")))):
        yield ""
        yield printable(text.strip())
    if entry.tags:
        yield paint("dim", printable(f"tags: {', '.join(entry.tags)}"))
    if needed := list(_requirements(details.spec.get("accessControl", {}))):
        yield paint("dim", printable(f"remote callers need: {'; '.join(needed)}"))
    credentials = describe_credentials(details.spec)
    if credentials:
        yield paint("dim", printable(f"credentials: {credentials}"))
    yield ""
    yield paint("bold", "Input")
    more = f"ops show {entry.id} --schema"
    yield from schema_lines(details.input_schema.document, limit=_MAX_INPUT_LINES, more=more)
    yield ""
    yield paint("bold", "Each event" if details.streams else "Output")
    yield from schema_lines(details.output_schema.document, limit=_MAX_OUTPUT_LINES, more=more)
    yield ""
    yield paint("bold", "Example")
    fields = Fields(details.input_schema.document)
    yield "  " + printable(shell_command(entry.id, details.example, fields, streams=details.streams))
    options = "--schema, --python, --curl" if details.kind == "openapi" else "--schema, --python"
    yield "  " + paint("dim", f"more: ops show {printable(entry.id)} {options}")


def _requirements(access: Mapping[str, Any]) -> Iterator[str]:
    """Yield the scopes and the resource that callers need, as text."""
    if scopes := access.get("requiredScopes"):
        yield ", ".join(scopes)
    if scopes := access.get("requiredScopesAny"):
        yield f"one of {', '.join(scopes)}"
    kind, action = access.get("resourceType"), access.get("resourceAction")
    if kind is not None or action is not None:
        of_type = f" of type {kind}" if kind is not None else ""
        with_action = f" with action {action}" if action is not None else ""
        yield f"a resource{of_type}{with_action}"


def describe_credentials(spec: Mapping[str, Any]) -> str:
    """Return the credentials that an operation requires, such as `bearerAuth, or key and app`; empty for none."""
    alternatives = spec.get("annotations", {}).get("security") or ()
    named = [" and ".join(alternative) for alternative in alternatives if alternative]
    return ", or ".join(named) + (" (optional)" if named and len(named) < len(alternatives) else "")


def call_help(command: Command, args: ParsedArguments, operation_id: str) -> str:
    """Return the help of a command for one operation: its input and how to call it."""
    details = _find(args.with_values(operation=operation_id, input=[], refresh=False, cached=False))
    name = printable(details.entry.id)
    fields = Fields(details.input_schema.document)
    needed = fields.merged(details.input_schema.document).get("required", ())
    shown = {each: f"{shell_quoted(each)}=…" for each in fields.names()}
    words = [word if each in needed else f"[{word}]" for each, word in shown.items()]
    if len(words) > _MAX_USAGE_FIELDS:
        words = [*words[:_MAX_USAGE_FIELDS], "…"]
    lines = list(describe(details))[1:]
    usage = " ".join([f"ops {command.name} {name}", *map(printable, words), "[options]"])
    after = f"Run 'ops {command.name} --help' for the options and the forms of input."
    return "\n".join([f"{paint('bold', 'usage')}  {usage}", *lines, "", after])


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
        Option("--python", "print a Python program that calls the operation"),
        Option("--curl", "print the HTTP request as a curl command, without secrets (OpenAPI only)"),
        *LISTING_OPTIONS,
        *DIRECT_OPTIONS,
    ),
    forms=INPUT_FORMS,
    examples=(
        ("ops show shop.quote", "print fields and an example"),
        ("ops show shop.quote --python > quote.py", "save a Python program"),
        ("ops show pets.get id=7 --curl", "print the HTTP request"),
        ("ops show shop.quote --json | jq .inputSchema", "print JSON"),
    ),
)
