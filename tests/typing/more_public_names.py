# ruff: noqa: T201  # it is checked, not run
"""The public names of the other modules, used as the guide uses them; mypy and pyright check it in strict mode."""

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from operations import (
    AccessControl,
    CallError,
    Identity,
    Operation,
    OperationContext,
    OperationRegistry,
    ResponseEnvelope,
)
from operations.access import AccessDecision, check_access, require_access
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.calls.signed_transport import SignedTransport
from operations.calls.signing_secrets import SigningSecret
from operations.cli.terminal_client import TerminalClient
from operations.config import (
    Catalogue,
    CatalogueEntry,
    Config,
    Source,
    SourceReport,
    Workspace,
    add_source,
    config_schema,
    describe_config,
    find_config,
    initialise,
    load_catalogue,
    load_config,
    open_workspace,
    remove_source,
    store_catalogue,
)
from operations.dispatch import CONCURRENCY, QUEUE, Dispatcher, RemoteCalls, Request, Slots
from operations.exports.code_limits import CodeLimits
from operations.exports.code_tool import CodeTool
from operations.exports.results import ToolResult
from operations.exports.search_tools import SearchTools
from operations.exports.tools import ToolSet
from operations.http import ClientOptions, HTTPClient, HTTPRequest, HTTPResponse, default_client, read_body
from operations.http.pyreqwest import PyreqwestClient
from operations.identity import (
    AnyAuthenticator,
    AsyncAuthenticator,
    Authenticator,
    Grants,
    JWTTokens,
    Principal,
    StaticTokens,
)
from operations.interceptors import (
    SECRET_NAMES,
    Approval,
    ApprovalPolicy,
    ApprovalRequest,
    Approved,
    Ask,
    Cache,
    CircuitBreaker,
    ConcurrencyLimit,
    Interceptor,
    Invocation,
    LogCalls,
    Only,
    Proceed,
    RateLimit,
    Redact,
    Refused,
    ResponseLimit,
    Retry,
    applies,
    asks,
    choose,
    compose,
)
from operations.interceptors.redaction import FieldRedactor
from operations.jobs import (
    ADMIN_SCOPE,
    JOB_NOT_ENDED,
    JOB_NOT_FOUND,
    JobLimits,
    JobProgress,
    Jobs,
    JobState,
    JobStatus,
    job_operations,
)
from operations.pubsub import (
    Arrival,
    Capabilities,
    Delivery,
    DeliveryRefused,
    Flushes,
    InProcess,
    KeepsRecords,
    Receive,
    Record,
    ReportsBacklog,
    ReportsCongestion,
    ReportsConnection,
    Stop,
    Stores,
    StoresKeys,
    Take,
    TooManyRecords,
    Transport,
    TransportWrapper,
    Undelivered,
    check_address,
    connect,
    nats,
    redis,
    require_extra,
)
from operations.pubsub.memory import MemoryBus, MemoryTransport
from operations.pubsub.nats import NatsTransport
from operations.pubsub.redis import RedisTransport
from operations.recording import FileRecorder, Replay, replay_operations
from operations.schema import (
    Field,
    Found,
    Policy,
    Problem,
    RecordCodec,
    Schema,
    TypeCodec,
    codec_for,
    deferred_schema,
    jsonable,
    record_codec,
    record_schema,
    validation_error,
)
from operations.search import SearchDocument, SearchIndex
from operations.serving import HTTPServer, Limits, ServedApp, app, mcp_server, serve_http, serve_mcp_stdio
from operations.serving.console import Sources, SourceState
from operations.serving.mcp import prompt
from operations.sources.entry_points import list_sources, open_source
from operations.sources.mcp import (
    MCPClient,
    MCPClientConfig,
    MCPClientState,
    MCPOAuth,
    MCPServerInfo,
    MCPServerRequest,
    ServerRequestHandler,
    is_progress,
)
from operations.sources.scanner import (
    FileEntry,
    LocalFS,
    ManifestChange,
    Scanner,
    ScannerFS,
    Skipped,
    watch_operations,
)
from operations.telemetry import (
    METRICS,
    AuditLog,
    Call,
    CallMetrics,
    CallQueued,
    CallRetried,
    CallSized,
    ConnectionChanged,
    EventObserver,
    HealthServer,
    JSONFormatter,
    LogContext,
    Measurable,
    Measure,
    Observation,
    Observer,
    Readiness,
    metrics_text,
)
from operations.testing import RecordedCall, RecordedMessage, Recorder, RecordingTransport


async def configure(path: Path) -> None:
    """Configuration files."""
    created: Path = initialise(path)
    add_source(created, "shop", {"python": "./shop"}, replace=True)
    remove_source(created, "shop")
    config: Config = load_config(find_config() or created, environ={})
    source: Source | None = config.sources.get("shop")
    print(config_schema()["type"], describe_config(config), source and source.kind)

    def show(report: SourceReport) -> None:
        print(report.name, report.state, report.problem)

    async with open_workspace(config, only=["shop"], on_progress=show) as workspace:
        opened: Workspace = workspace
        envelope = await opened.registry.execute("shop.quote", {"item": "tea"})
        print(envelope.data, store_catalogue(opened))
    catalogue: Catalogue | None = load_catalogue(created)
    entries: list[CatalogueEntry] = [] if catalogue is None else list(catalogue.entries)
    print([entry.title for entry in entries])


async def dispatch(registry: OperationRegistry, remote: RemoteCalls) -> None:
    """External calls."""
    slots = Slots(CONCURRENCY, QUEUE)
    dispatcher = Dispatcher(registry, concurrency=8, queue=100, remote=remote)
    print(slots, dispatcher.registry, Request.__doc__)


async def fetch() -> bytes:
    """HTTP."""
    own: HTTPClient = default_client(ClientOptions(timeout=5))
    other: HTTPClient = PyreqwestClient(ClientOptions(max_connections=4))
    await other.close()
    async with own.send(HTTPRequest(method="GET", url="https://shop.example")) as response:
        received: HTTPResponse = response
        return await read_body(received, limit=1_000_000)


class Tokens:
    """A custom authenticator."""

    def authenticate(self, token: str | None) -> Principal:
        """Return who a token belongs to."""
        return Principal(Identity(token or "guest"), namespaces=["shop.*"])


async def authenticate(registry: OperationRegistry) -> None:
    """Identities and a hub."""
    own: Authenticator = Tokens()
    tokens = StaticTokens({"secret": Principal(Identity("worker"), ("*",))})
    signed: Authenticator = JWTTokens("a key", algorithms=["HS256"], audience="shop")
    any_of: list[AnyAuthenticator] = [own, signed]
    slow: AsyncAuthenticator | None = None
    print(any_of, slow, Grants())
    require_access(registry["shop.quote"].spec, Identity("ada", ["read"]))
    async with Hub(tokens, port=0) as hub, Spoke(hub.url, token="secret") as spoke:
        print(hub.url, spoke.capabilities.tracks_peers, registry)


def sign(transport: Transport, secret: bytes) -> SignedTransport:
    """Signed identities."""
    decision: AccessDecision = check_access(AccessControl(required_scopes=["read"]), Identity("ada"))
    signing = SigningSecret(secret)
    print(decision.allowed, SignedTransport(transport, session=signing.session("token")))
    return SignedTransport(transport, secret=signing, tokens=Tokens())


async def stamp(invocation: Invocation, proceed: Proceed) -> Any:
    """An interceptor."""
    print(invocation.spec.id, invocation.input)
    return await proceed(invocation)


async def decide(request: ApprovalRequest) -> Approved | Refused:
    """Ask a person."""
    return Approved() if request.spec.id == "shop.buy" else Refused("not that one")


def intercept() -> OperationRegistry:
    """Interceptors."""
    ask: Ask = decide
    policy: ApprovalPolicy = "ask"
    chain: list[Interceptor] = [
        LogCalls(slow=1.0),
        Approval({"shop.buy": policy}, ask=ask),
        RateLimit(10, by=("identity",)),
        ConcurrencyLimit(4, queue=10),
        Retry(3),
        CircuitBreaker(failure_rate=0.5),
        Cache(60.0),
        ResponseLimit(1_000_000),
        Redact(SECRET_NAMES),
        Only(stamp, ["shop.*"], types=["query"]),
    ]
    registry = OperationRegistry(interceptors=chain)
    for spec in registry.search("quote"):
        print([applies(each, spec) for each in chain], [asks(each, spec) for each in choose(chain, spec)])

    async def innermost(invocation: Invocation) -> Any:
        return invocation.input

    print(compose(chain, innermost))
    return registry


async def offer(registry: OperationRegistry) -> None:
    """Tools of a language model."""
    tools: ToolSet = registry.tools(allow=["shop.*"], read_only=True, client=TerminalClient())
    result: ToolResult = await tools.call("shop_quote", {"item": "tea"})
    print(result.text, tools.openai(api="responses"), SearchTools(tools))
    async with CodeTool(tools, limits=CodeLimits(calls=10)) as code:
        print(code)


async def submit(registry: OperationRegistry) -> None:
    """Jobs."""
    async with Jobs(registry, limits=JobLimits(jobs=100)) as jobs:
        job_id: str = await jobs.submit("shop.report", {"month": 5})
        status: JobStatus = await jobs.status(job_id)
        progress: JobProgress | None = status.progress
        if status.state is JobState.FAILED:
            print(status.code, status.message, progress)
        try:
            envelope: ResponseEnvelope[Any] = await jobs.result(job_id)
            print(envelope.data)
        except CallError as error:
            print(error.code in (JOB_NOT_ENDED, JOB_NOT_FOUND))
        registry.register_all(job_operations(jobs))
    print(OperationContext(identity=Identity("ada", scopes=[ADMIN_SCOPE])))


async def carry(transport: Transport) -> None:
    """Transports and their optional parts."""
    receive: Receive = print_message
    undelivered: Undelivered = print
    stop: Stop = transport.listen("work.shop", receive)
    stop()
    capabilities: Capabilities = transport.capabilities
    wrapped = TransportWrapper(transport)
    parts = [Flushes, InProcess, KeepsRecords, StoresKeys, ReportsBacklog, ReportsCongestion, ReportsConnection, Stores]
    print(capabilities.durable, wrapped, parts, undelivered)
    check_address("redis://127.0.0.1:6379")
    async with connect("memory:") as memory:
        print(memory, MemoryTransport(), MemoryBus(), require_extra("redis", "redis"))
    buses: Sequence[type[RedisTransport] | type[NatsTransport]] = [RedisTransport, NatsTransport]
    print(buses, redis.connect, nats.connect, Record(key="a", value=b"", seconds=1.0), TooManyRecords)


def print_message(message: bytes, arrival: Arrival) -> None:
    """Receive a message."""
    print(message, arrival.address, arrival.sender)


def take(take_one: Take, delivery: Delivery) -> None:
    """Stored messages."""
    delivery.done()
    print(take_one, DeliveryRefused)


def record(path: Path) -> OperationRegistry:
    """Recorded calls."""
    operations: list[Operation[Any]] = replay_operations(path)
    return OperationRegistry(operations, interceptors=[FileRecorder(path, secrets=["secret"]), Replay(path)])


def describe(value: object, policy: Policy) -> CallError:
    """Schemas of types and records."""
    codec: TypeCodec[Any] = codec_for(dict[str, int])
    fields: RecordCodec = record_codec([Field("item", str), Field("count", int, required=False)])
    deferred: Schema = deferred_schema(lambda: {"type": "object"})
    objects: Schema = record_schema({"type": "object"}, jsonable)
    found: list[Found] = [("/item", "expected a string")]
    problems: Sequence[Problem] = fields.schema.errors(value, found)
    print(codec.schema.cast(value, policy), deferred.check(value), objects.check(value))
    return validation_error(problems, "not an order")


def search() -> list[str]:
    """A custom search index."""
    index = SearchIndex([SearchDocument("shop.quote", title="Quote a price", type="query")])
    return [str(hit) for hit in index.search("price", limit=3)]


@prompt("welcome")
async def welcome(name: str) -> str:
    """A prompt of an MCP server."""
    return f"Welcome, {name}!"


async def serve(registry: OperationRegistry, tokens: AnyAuthenticator) -> None:
    """Serving."""
    served: ServedApp = app(registry, authenticator=tokens, limits=Limits(body_bytes=1_000), read_only=True)
    async with HTTPServer(served, "127.0.0.1:0") as server:
        print(server.url)
    await serve_http(registry, 8000, allow=["shop.*"])
    only_mcp: ServedApp = mcp_server(registry, allow=["shop.*"])
    await serve_http(only_mcp)
    await serve_mcp_stdio(registry, allow=["shop.*"])
    print(welcome)


class Shelf:
    """Custom sources."""

    def states(self) -> Iterable[SourceState]:
        """List them."""
        return [SourceState("shop", "python")]

    def source_of(self, operation_id: str) -> str | None:
        """Find one."""
        return operation_id.partition(".")[0]


async def list_operations() -> Sources:
    """Sources of installed packages."""

    async def source(options: dict[str, Any]) -> AsyncIterator[Operation[Any]]:
        for operation in replay_operations("calls.jsonl"):
            yield operation

    async with open_source(source, {}) as operations:
        print(list_sources(), operations)
    return Shelf()


async def answer(request: MCPServerRequest) -> dict[str, Any]:
    """Answer a question of an MCP server."""
    return {"action": "decline", "method": request.method}


async def connect_mcp() -> None:
    """MCP clients."""
    handler: ServerRequestHandler = answer
    config = MCPClientConfig(url="https://mcp.example", oauth=MCPOAuth(scope="read"), elicitation=handler)
    async with MCPClient("files", config) as client:
        info: MCPServerInfo | None = client.server_info
        print(info and info.name, client.state is MCPClientState.CONNECTED)
        registry = OperationRegistry()
        client.register_all(registry)
        async for envelope in registry.subscribe("files.copy"):
            print(is_progress(envelope), envelope.data)


class Memory:
    """A custom file system."""

    def list(self, path: str) -> Iterable[FileEntry]:
        """List a directory."""
        return [FileEntry("selling.py", is_directory=False)]

    def read(self, path: str) -> bytes:
        """Read a file."""
        return LocalFS().read(path)


async def scan(registry: OperationRegistry) -> None:
    """The scanner."""
    files: ScannerFS = Memory()
    change: ManifestChange | None = Scanner("shop", files).rescan()
    skipped: Sequence[Skipped] = () if change is None else change.skipped
    print([each.reason for each in skipped])
    await watch_operations("shop", registry=registry)


class Counting:
    """An observer that also sees other events."""

    def begin(self, call: Call) -> Observation | None:
        """Observe a call."""
        return None

    def note(self, event: CallQueued | CallRetried | CallSized | ConnectionChanged) -> None:
        """Observe another event."""
        if isinstance(event, CallRetried):
            print(event.attempt, event.delay)


async def observe(registry: OperationRegistry) -> str:
    """Telemetry."""
    observers: list[Observer] = [
        CallMetrics(),
        AuditLog("audit.jsonl", inputs=FieldRedactor().clean),
        LogContext(),
        Counting(),
    ]
    events: EventObserver = Counting()
    handler = logging.StreamHandler()
    handler.setFormatter(JSONFormatter())
    readiness = Readiness()
    async with HealthServer(readiness, lambda: [registry]) as health:
        readiness.ready()
        print(health.url, observers, events)
    measured: Measurable = registry
    measures: list[Measure] = list(measured.measures())
    print(METRICS.keys(), measures)
    return await metrics_text(registry)


async def watch(recorder: Recorder) -> AsyncIterator[RecordedMessage]:
    """Recorders of tests."""
    calls: Sequence[RecordedCall] = recorder.calls
    print([call.operation_id for call in calls])
    for message in RecordingTransport().messages:
        yield message
