# ruff: noqa: T201  # it is checked, not run
"""Every public name of the usual modules, used as the guide uses it; mypy and pyright check it in strict mode."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from operations import (
    RESPONSE_SOURCES,
    UNKNOWN,
    AccessControl,
    CallError,
    ErrorCode,
    Event,
    HTTPResponseMeta,
    HTTPResponseMetaSchema,
    Identity,
    LocalResponseMeta,
    LocalResponseMetaSchema,
    MCPAnnotations,
    MCPAudioContent,
    MCPContentBlock,
    MCPContentBlockSchema,
    MCPEmbeddedResource,
    MCPImageContent,
    MCPResourceContent,
    MCPResourceLink,
    MCPResponseMeta,
    MCPResponseMetaSchema,
    MCPTextContent,
    Operation,
    OperationContext,
    OperationRegistry,
    OperationSpec,
    OperationSpecSchema,
    OperationType,
    ResponseEnvelope,
    ResponseEnvelopeSchema,
    ResponseMeta,
    ResponseMetaSchema,
    ResponseSource,
    Schema,
    SSEEvent,
    build_env,
    collect_errors,
    format_value_errors,
    from_schema,
    from_type,
    http_envelope,
    is_response_envelope,
    local_envelope,
    mcp_envelope,
    operation,
    subscribe,
    unwrap,
    validate_or_throw,
)
from operations.blocking import BlockingRegistry
from operations.calls import (
    CALL_EVENT_SCHEMAS,
    CallEventSchema,
    CallHandler,
    Counters,
    PendingRequestMap,
    RemoteOperations,
    ServedRegistry,
    from_call,
    outside_request,
    read_event,
    serve_registry,
)
from operations.pubsub.memory import MemoryTransport
from operations.sources.mcp import MCPClientConfig, MCPClientLoader, close_mcp_client, create_mcp_client
from operations.sources.openapi import (
    APIOperations,
    HTTPAuth,
    HTTPCallOptions,
    HTTPLimits,
    HTTPRetry,
    HTTPServiceConfig,
    HTTPServices,
    OpenAPIFS,
    OpenAPIOperation,
    OpenAPIParameter,
    OpenAPISpec,
    Pagination,
    from_openapi,
    from_openapi_file,
    from_openapi_url,
    iterate_items,
    iterate_pages,
)
from operations.sources.scanner import OperationManifest, scan_operations
from operations.testing import (
    Recorder,
    error_of,
    sample_http_envelope,
    sample_mcp_envelope,
    stub_operation,
    stub_source,
)


@operation(id="shop.quote", type="query", access_control=AccessControl(required_scopes=["read"]))
async def quote(item: str, count: int = 1) -> dict[str, float]:
    """Quote a price."""
    return {item: count * 2.5}


@operation(id="shop.buy")
async def buy(context: OperationContext, item: str) -> str:
    """Buy an item, which calls another operation."""
    await context.report_progress(1, 2, "quoting")
    quoted = await context.env.shop.quote(item=item)
    identity = context.identity
    return f"{identity.id if identity else 'nobody'} pays {quoted.data[item]}"


@operation(id="shop.watch")
async def watch(item: str) -> AsyncIterator[Event[int]]:
    """Watch the stock of an item."""
    yield Event(12, id="1")


@operation(id="shop.weigh")
def weigh(item: str) -> float:
    """Weigh an item, in a thread."""
    return 0.5


async def handle(input: Any, context: OperationContext) -> Any:
    """A handler as it is registered for a spec."""
    return input


SPEC = OperationSpec(
    name="echo",
    namespace="shop",
    type=OperationType.QUERY,
    input_schema=from_schema({"type": "object"}),
    output_schema=UNKNOWN,
)
ECHO: Operation[Any] = Operation(spec=SPEC, handler=handle)


@operation(id="shop.total")
async def total(context: OperationContext, items: list[str]) -> float:
    """Add up prices by nested calls."""
    return sum([(await context.call(quote, item=item)).data[item] for item in items])


async def call(registry: OperationRegistry) -> None:
    """Registry, calls and envelopes."""
    quoted = await registry.call(quote, item="tea", count=2)
    price: float = quoted.data["tea"]
    by_object: ResponseEnvelope[dict[str, float]] = await registry.execute(quote, {"item": "tea"}, timeout=price)
    by_id: ResponseEnvelope[Any] = await registry.execute("shop.quote", {"item": "tea"}, raise_on_error=True)
    weighed: float = unwrap(await registry.call(weigh, "tea"))
    bought: str = (await registry.call(buy, item="tea")).data
    async for event in registry.subscribe(watch, {"item": "tea"}):
        print(event.data)
    async for envelope in subscribe(registry, "shop.watch", {"item": "tea"}):
        print(envelope.data)
    many = await registry.execute_many([("shop.quote", {"item": "tea"})], timeout=5)
    failed = [outcome.code is ErrorCode.TIMEOUT for outcome in many if isinstance(outcome, CallError)]
    context = OperationContext(identity=Identity(id="ada", scopes=["read"]))
    env: Any = build_env(registry, context, namespaces=["shop"])
    print(by_object.data, by_id.meta, weighed, bought, failed, await env.shop.quote(item="tea"))
    for spec in registry.search("price", limit=3):
        print(spec.id, registry[spec.id].spec.title)


def read(meta: ResponseMeta) -> str:
    """Metas, by class and by source."""
    source: ResponseSource = meta.source
    if isinstance(meta, HTTPResponseMeta):
        return f"{meta.status_code} {meta.headers.get('etag')} {meta.event}"
    if isinstance(meta, LocalResponseMeta):
        return f"{meta.operation_id} {meta.timestamp}"
    texts = [read_block(block) for block in meta.content]
    return f"{source} {RESPONSE_SOURCES} {meta.is_error} {texts}"


def read_block(block: MCPContentBlock) -> str:
    """Content blocks."""
    if isinstance(block, MCPTextContent):
        return block.text
    if isinstance(block, MCPImageContent | MCPAudioContent):
        return block.mime_type
    if isinstance(block, MCPEmbeddedResource):
        return block.resource.uri
    return block.name


def wrap() -> list[ResponseEnvelope[Any]]:
    """Factories of envelopes."""
    blocks: list[MCPContentBlock] = [
        MCPTextContent(text="tea", annotations=MCPAnnotations(audience=["user"], priority=1.0)),
        MCPEmbeddedResource(resource=MCPResourceContent(uri="file:///tea", text="tea")),
        MCPResourceLink(uri="file:///tea", name="tea"),
    ]
    return [
        local_envelope(1, "shop.count"),
        http_envelope(2, status_code=200, headers={"ETag": "a"}, event=SSEEvent("message", "1")),
        mcp_envelope(3, content=blocks, structured_content={"a": 1}),
    ]


def validate(value: object) -> None:
    """Schemas."""
    schema: Schema = from_type(dict[str, int])
    normalised = schema.cast(value, "total")
    print(schema.check(normalised), format_value_errors(collect_errors(schema, value)))
    validate_or_throw(schema, value, "not a price list")
    if is_response_envelope(value):
        print(unwrap(value))
    for each in (ResponseEnvelopeSchema, ResponseMetaSchema, LocalResponseMetaSchema, HTTPResponseMetaSchema):
        print(each.errors(value))
    for each in (MCPResponseMetaSchema, MCPContentBlockSchema, OperationSpecSchema, CallEventSchema):
        print(each.document, list(CALL_EVENT_SCHEMAS))


def is_failed(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether a tool reported an error."""
    return isinstance(envelope.meta, MCPResponseMeta) and envelope.meta.is_error


async def serve(registry: OperationRegistry) -> None:
    """The call protocol."""
    transport = MemoryTransport()
    served: ServedRegistry = serve_registry(registry, transport, concurrency=10)
    async with served as handler, from_call(transport) as remote:
        worker: CallHandler = handler
        imported: RemoteOperations = remote
        await imported.ready("shop.quote", timeout=5)
        caller = PendingRequestMap(transport)
        envelope = await caller.call("shop.quote", {"item": "tea"}, identity=Identity(id="ada"))
        counters: Counters = worker.counters
        print(envelope.data, counters)
        async for item in caller.subscribe("shop.watch", {"item": "tea"}, idle_timeout=5):
            print(item.data)
        with outside_request():
            print(imported.registry)
        transport.listen("work.other", lambda message, arrival: print(read_event(message)["payload"]))


class Files:
    """A file system for documents."""

    def read(self, path: str) -> bytes:
        """Return a file."""
        return Path(path).read_bytes()


async def load(registry: OperationRegistry) -> None:
    """Sources."""
    parameter: OpenAPIParameter = {"name": "page", "in": "query", "schema": {"type": "integer"}}
    described: OpenAPIOperation = {"operationId": "list", "parameters": [parameter]}
    document: OpenAPISpec = {"openapi": "3.1.0", "info": {}, "paths": {"/items": {"get": described}}}
    config = HTTPServiceConfig(
        namespace="shop",
        base_url="https://shop.example",
        auth=HTTPAuth(type="bearer", token="secret"),
        retry=HTTPRetry(attempts=2),
        limits=HTTPLimits(redirects=1),
    )
    files: OpenAPIFS = Files()
    async with from_openapi(document, config) as operations:
        registry.register_all(operations)
    from_file: APIOperations = await from_openapi_file("shop.yaml", {"namespace": "shop"}, files)
    from_url: APIOperations = await from_openapi_url("https://shop.example/openapi.json", config)
    async with HTTPServices(registry) as services:
        await services.add(document, config)
    context = OperationContext(metadata={"http": HTTPCallOptions(dry_run=True)})
    async for item in iterate_items(registry, "shop.list", context=context, pagination=Pagination(kind="page")):
        print(item, from_file.diagnostics(), from_url)
    async for page in iterate_pages(registry, "shop.list"):
        print(page.data)
    client = await create_mcp_client("files", MCPClientConfig(command="mcp-files", args=["."]))
    client.register_all(registry)
    await close_mcp_client(client)
    async with MCPClientLoader() as loader:
        await loader.load({"files": {"command": "mcp-files"}})
        loader.register_all(registry)
    manifest: OperationManifest = scan_operations("shop")
    registry.register_all(manifest)


async def test() -> None:
    """What tests of operations use."""
    recorder = Recorder()
    stubs = [stub_operation("shop.stub", returns=1), *stub_source("other", {"a": 1})]
    registry = OperationRegistry(stubs, interceptors=[recorder])
    error = await error_of(registry.execute("shop.nothing"))
    print(error.code, recorder.calls, sample_http_envelope(1), sample_mcp_envelope(1))


def block() -> None:
    """Programs without an event loop."""
    with BlockingRegistry(OperationRegistry([quote, watch])) as registry:
        envelope = registry.execute(quote, {"item": "tea"})
        price: float = envelope.data["tea"]
        print(price, [item.data for item in registry.subscribe(watch, {"item": "tea"})])


if __name__ == "__main__":
    asyncio.run(call(OperationRegistry([quote, buy, watch, weigh, ECHO])))
