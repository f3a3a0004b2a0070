"""The HTTP endpoint: inputs, results, errors, limits."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from operations import (
    CallError,
    ErrorCode,
    Operation,
    OperationContext,
    OperationRegistry,
    OperationSpec,
    OperationType,
    from_schema,
    http_envelope,
    operation,
)
from operations.serving import Limits, app
from operations.serving.app import ServedApp
from operations.serving.asgi import Response
from tests.serving.asgi_client import exchange, post, request
from tests.serving.shop import Shop, tokens

OWN = "application/vnd.operations+json"
ENVELOPE = "application/vnd.operations.envelope+json"


@pytest.fixture
async def shop() -> Shop:
    return Shop()


@pytest.fixture
def served(shop: Shop) -> ServedApp:
    return app(shop.registry, mcp=False)


async def test_a_post_returns_data_and_its_source(served: ServedApp) -> None:
    answer = await post(served, "/shop/quote", {"item": "tea"})
    assert (answer.status, answer.json["item"]) == (200, "tea")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["operations-source"] == "local"
    assert answer.headers["operations-request-id"]
    assert answer.headers["operations-timestamp"].isdigit()
    assert answer.headers["content-length"] == str(len(answer.body))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("item=tea", {"item": "tea"}),
        ("item=tea&count=2", {"count": 2}),
        ("item=tea&count=2.0", {"count": 2}),
        ("item=tea&count=2e1", {"count": 20}),
        ("item=12&count=3", {"item": "12"}),
        ("item=tea&tags=a&tags=b", {"tags": ["a", "b"]}),
        ("item=tea&tags=a", {"tags": ["a"]}),
        ("item=tea&express=true", {"express": True}),
        ("item=tea&extra=%7B%22a%22%3A1%7D", {"extra": {"a": 1}}),
        ("item=t%C3%A9%20a+b", {"item": "té a b"}),
        ("item=", {"item": ""}),
    ],
)
async def test_a_query_string_is_read_by_the_schema(served: ServedApp, query: str, expected: dict[str, Any]) -> None:
    answer = await request(served, "GET", f"/shop/quote?{query}")
    assert answer.status == 200
    assert expected.items() <= answer.json.items()


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("count=2", ""),
        ("item=a&item=b", "/item"),
        ("item=a&colour=red", "/colour"),
        ("item=a&count=two", "/count"),
        ("item=a&count=2.5", "/count"),
        ("item=a&express=maybe", "/express"),
        ("item=a&extra=%7B", "/extra"),
        ("item=a&a~b%2Fc=1", "/a~0b~1c"),
    ],
)
async def test_an_invalid_query_is_422_with_the_path(served: ServedApp, query: str, pointer: str) -> None:
    answer = await request(served, "GET", f"/shop/quote?{query}")
    assert answer.status == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert [each["pointer"] for each in answer.json["errors"]] == [pointer]
    assert answer.json["executed"] == "no"


@pytest.mark.parametrize(
    ("query", "pointers"),
    [
        ("itm=tea&count=x", ["", "/count", "/itm"]),
        ("item=a&item=b&count=x&extra=%7B", ["/count", "/extra", "/item"]),
    ],
)
async def test_a_wrong_query_is_422_with_every_problem(served: ServedApp, query: str, pointers: list[str]) -> None:
    answer = await request(served, "GET", f"/shop/quote?{query}")
    assert answer.status == 422
    assert sorted(each["pointer"] for each in answer.json["errors"]) == pointers


async def test_a_wrong_form_is_422_with_every_problem(served: ServedApp) -> None:
    parts = {b"item": b"\xff", b"count": b"x", b"colour": b"red"}
    body = b"".join(b'--b\r\ncontent-disposition: form-data; name="%s"\r\n\r\n%s\r\n' % part for part in parts.items())
    headers = {"content-type": "multipart/form-data; boundary=b"}
    answer = await request(served, "POST", "/shop/quote", body=body + b"--b--\r\n", headers=headers)
    assert answer.status == 422
    assert sorted(each["pointer"] for each in answer.json["errors"]) == ["/colour", "/count", "/item"]


@pytest.mark.parametrize("path", ["/shop/quote?item=tea", "/shop/picture", "/shop/absent", "/vault/look"])
async def test_no_cache_keeps_a_response(shop: Shop, path: str) -> None:
    served = app(shop.registry, mcp=False, authenticator=tokens())
    for method in ("GET", "HEAD"):
        # A shared cache handles requests with this header like anonymous ones.
        answer = await request(served, method, path, headers={"x-api-key": "reader-token"})
        assert answer.headers["cache-control"] == "no-store"


async def test_head_runs_the_query_and_sends_no_body(served: ServedApp) -> None:
    whole = await request(served, "GET", "/shop/picture")
    head = await request(served, "HEAD", "/shop/picture")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == whole.headers["content-length"] == "4"


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/shop/quote", "GET, HEAD, OPTIONS, POST"),
        ("/shop/order", "OPTIONS, POST"),
        ("/shop/watch", "GET, OPTIONS, POST"),
        ("/math/double", "OPTIONS, POST"),
    ],
)
async def test_methods(served: ServedApp, path: str, methods: str) -> None:
    options = await request(served, "OPTIONS", path)
    assert (options.status, options.headers["allow"], options.body) == (204, methods, b"")
    for method in {"GET", "HEAD", "PUT", "DELETE", "PATCH"} - set(methods.split(", ")):
        refused = await request(served, method, path)
        assert (refused.status, refused.headers["allow"]) == (405, methods)


async def test_an_input_that_is_not_an_object(served: ServedApp) -> None:
    assert (await post(served, "/math/double", 21)).json == 42


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/json", b'{"item": "tea"}', 200),
        ("application/json; charset=utf-8", b'{"item": "tea"}', 200),
        (OWN, b'{"item": "tea"}', 200),
        ("application/json", b'{"item": ', 400),
        ("application/json", b'{"item": "\xff"}', 400),
        ("application/json", b"[" * 100_000, 400),
        ("text/plain", b'{"item": "tea"}', 415),
        ("application/x-www-form-urlencoded", b"item=tea", 415),
        ("application/octet-stream", b"tea", 415),
        ("multipart/form-data", b"", 400),
        ("", b'{"item": "tea"}', 415),
    ],
)
async def test_content_types(served: ServedApp, content_type: str, body: bytes, status: int) -> None:
    headers = {"content-type": content_type} if content_type else {}
    assert (await request(served, "POST", "/shop/quote", body=body, headers=headers)).status == status


@pytest.mark.parametrize(
    ("path", "accepted"),
    [("/shop/quote", "application/json or multipart/form-data"), ("/math/double", "application/json")],
)
async def test_a_refused_content_type_is_answered_with_the_accepted_ones(
    served: ServedApp, path: str, accepted: str
) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = await request(served, "POST", path, body=b"item=tea", headers=headers)
    assert answer.json["detail"].endswith(f": send {accepted}; got application/x-www-form-urlencoded")
    assert ("multipart/form-data" in answer.headers["accept-post"]) == ("multipart" in accepted)
    answer = await request(served, "POST", path, body=b"item=tea")
    assert answer.json["detail"].endswith(f": send {accepted}; got no Content-Type")


async def test_a_post_without_a_body_has_an_empty_input(served: ServedApp) -> None:
    assert (await request(served, "POST", "/shop/picture")).body == b"\x89PNG"


async def test_bytes_come_as_text_as_a_file_or_as_the_body(served: ServedApp) -> None:
    content = bytes(range(256))
    text = base64.b64encode(content).decode()
    assert (await post(served, "/shop/digest", {"content": text})).json == 256
    marked = await post(served, "/shop/digest", {"content": {"$bytes": text}}, headers={"content-type": OWN})
    assert marked.json == 256
    raw = {"content-type": "application/octet-stream"}
    assert (await request(served, "POST", "/shop/digest", body=content, headers=raw)).json == 256
    form = (
        b'--b\r\ncontent-disposition: form-data; name="content"; filename="a.bin"\r\n\r\n' + content + b"\r\n"
        b'--b\r\ncontent-disposition: form-data; name="name"\r\n\r\nlogo\r\n'
        b'--b\r\ncontent-disposition: form-data; name="copies"\r\n\r\n3\r\n--b--\r\n'
    )
    multipart = {"content-type": "multipart/form-data; boundary=b"}
    answer = await request(served, "POST", "/shop/label", body=form, headers=multipart)
    assert answer.json == "logo:256:3"
    cut = await request(served, "POST", "/shop/label", body=form[:-20], headers=multipart)
    assert cut.status == 400


async def test_an_envelope_is_sent_if_requested(served: ServedApp) -> None:
    answer = await post(served, "/shop/quote", {"item": "tea"}, headers={"accept": ENVELOPE})
    assert answer.headers["content-type"] == ENVELOPE
    assert answer.json["meta"]["operationId"] == "shop.quote"
    tool = await post(served, "/mcp/tool", {"fails": True}, headers={"accept": ENVELOPE})
    assert (tool.status, tool.json["meta"]["isError"]) == (200, True)


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("*/*", 200),
        ("application/*", 200),
        ("application/json;q=0.1, text/html", 200),
        ("text/html, */*;q=0.1", 200),
        ("application/json;q=0", 406),
        ("text/event-stream", 200),
    ],
)
async def test_accept(served: ServedApp, accept: str, status: int) -> None:
    assert (await post(served, "/shop/quote", {"item": "tea"}, headers={"accept": accept})).status == status


async def test_an_upstream_result_keeps_its_status_and_headers(served: ServedApp) -> None:
    answer = await post(served, "/api/users/get", {})
    assert (answer.status, answer.json) == (200, {"a": 1})
    assert answer.headers["operations-upstream-status"] == "201"
    assert (answer.headers["etag"], answer.headers["x-ratelimit-left"]) == ('"1"', "3")
    assert "set-cookie" not in answer.headers
    assert "server" not in answer.headers
    text = await post(served, "/api/users/get", {"text": True})
    assert (text.body, text.headers["content-type"]) == (b"hello", "text/csv; charset=utf-8")


@pytest.mark.parametrize("content_type", ["text/xsl", "text/html", "multipart/x-mixed-replace; boundary=b"])
@pytest.mark.parametrize("data", [b"<x/>", "<x/>"])
async def test_a_browser_runs_nothing_of_an_upstream_result(content_type: str, data: Any) -> None:
    def upstream(input: Any, context: Any) -> Any:
        return http_envelope(data, status_code=200, headers=[("Content-Type", content_type)])

    spec = OperationSpec(name="get", namespace="api", type=OperationType.QUERY, input_schema=from_schema(True))
    answer = await post(app(OperationRegistry([Operation(spec=spec, handler=upstream)])), "/api/get")
    # Browsers execute more types than those of HTML and XML, such as text/xsl.
    if answer.headers["content-type"] != "application/json":
        assert answer.headers["content-security-policy"] == "sandbox"
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [
        ("/api/users/get", 404, 404),
        ("/api/users/get", 422, 422),
        ("/api/users/get", 401, 502),
        ("/api/users/get", 403, 502),
        ("/api/users/get", 503, 502),
        ("/api/users/get", 302, 502),
        ("/api/outer", 404, 500),
    ],
)
async def test_the_status_of_an_upstream(served: ServedApp, path: str, status: int, expected: int) -> None:
    answer = await post(served, path, {"status": status})
    assert (answer.status, answer.json["details"]["statusCode"]) == (expected, status)
    assert b"a=1" not in answer.body


async def test_an_error_of_a_tool(served: ServedApp) -> None:
    answer = await post(served, "/mcp/tool", {"fails": True})
    assert (answer.status, answer.json["detail"]) == (409, "it broke")
    assert answer.json["details"]["content"] == [{"type": "text", "text": "it broke"}]
    assert answer.headers["operations-mcp-error"] == "true"


async def test_the_text_of_an_exception_is_not_sent(served: ServedApp) -> None:
    answer = await post(served, "/shop/fail", {"how": "text"})
    assert (answer.status, answer.json["code"]) == (500, "EXECUTION_ERROR")
    assert b"hunter2" not in answer.body
    assert b"ValueError" not in answer.body


async def test_a_domain_error_is_a_conflict(served: ServedApp) -> None:
    answer = await post(served, "/shop/fail", {"how": "domain"})
    assert (answer.status, answer.json["code"], answer.json["details"]) == (409, "SOLD_OUT", {"item": "tea"})
    assert answer.json["type"] == "urn:operations:SOLD_OUT"


async def test_an_unknown_path_suggests_only_permitted_operations(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, authenticator=tokens())
    for token, nearest in (("nobody-token", []), ("reader-token", ["vault.look", "vault.follow"])):
        answer = await post(served, "/vault/loo", token=token)
        assert (answer.status, answer.json["details"]["nearest"]) == (404, nearest)
    for path in ("/", "/shop", "/shop/", "//", "/shop//quote", "/quote", "/~/jobs/1"):
        assert (await post(served, path, token="reader-token")).status == 404
    assert "/docs lists them" in (await post(served, "/", token="reader-token")).json["detail"]


async def test_unexposed_operations_return_404(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, allow=["shop.*"], deny=["shop.order"], read_only=True)
    assert (await post(served, "/shop/quote", {"item": "tea"})).status == 200
    for path in ("/shop/order", "/shop/slow", "/api/users/get"):
        assert (await post(served, path)).status == 404
    shop.registry.unregister("shop.quote")
    assert (await post(served, "/shop/quote", {"item": "tea"})).status == 404


async def test_bodies_are_bounded(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, limits=Limits(body_bytes=100))
    assert (await post(served, "/shop/quote", {"item": "t" * 80})).status == 200
    large = await post(served, "/shop/quote", {"item": "t" * 200})
    assert (large.status, large.headers["connection"]) == (413, "close")
    for length in ("101", "9" * 5_000):
        announced = await post(served, "/shop/quote", {"item": "t"}, headers={"content-length": length})
        assert announced.status == 413
    pieces = [b'{"item": "', *[b"t" * 30] * 10, b'"}']
    async with exchange(
        served, "POST", "/shop/quote", body=pieces, headers={"content-type": "application/json"}
    ) as sent:
        assert (await sent.complete()).status == 413


async def test_a_slow_body_is_refused(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, limits=Limits(body_seconds=0.05))
    never = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await never.wait()
        return {}

    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async with exchange(served, "POST", "/shop/quote") as template:
        scope = template._scope
    async with asyncio.timeout(5):
        await served(scope, receive, send)
    assert sent[0]["status"] == 408


async def test_results_are_bounded(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, limits=Limits(response_bytes=50))
    answer = await post(served, "/shop/quote", {"item": "t" * 100})
    assert (answer.status, answer.json["executed"]) == (500, "yes")


async def test_a_call_ends_at_its_deadline(shop: Shop) -> None:
    served = app(shop.registry, mcp=False)
    answer = await post(served, "/shop/slow", headers={"operations-timeout": "0.05"})
    assert (answer.status, answer.json["code"]) == (504, "TIMEOUT")
    assert shop.cancelled.is_set()
    for invalid in ("soon", "-1", "nan", "0"):
        assert (await post(served, "/shop/slow", headers={"operations-timeout": invalid})).status == 400


async def test_a_call_stops_when_its_client_disconnects(served: ServedApp, shop: Shop) -> None:
    async with exchange(served, "POST", "/shop/slow") as sent:
        await shop.started.wait()
        sent.leave()
        async with asyncio.timeout(5):
            await shop.cancelled.wait()
    assert served.dispatcher.in_flight == 0


async def test_calls_of_one_identity_are_bounded(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, limits=Limits(calls=1))
    async with exchange(served, "POST", "/shop/slow") as first:
        await shop.started.wait()
        refused = await post(served, "/shop/quote", {"item": "tea"})
        assert (refused.status, refused.json["code"]) == (429, "UNAVAILABLE")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await post(served, "/shop/quote", {"item": "tea"}, address="10.0.0.2")).status == 200
        shop.go_on.set()
        assert (await first.complete()).json == "done"
    assert (await post(served, "/shop/quote", {"item": "tea"})).status == 200


async def test_the_rate_of_one_identity_is_bounded(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, authenticator=tokens(), limits=Limits(rate=0.001, burst=2))
    codes = [(await post(served, "/shop/quote", {"item": "t"}, token="reader-token")).status for _ in range(3)]
    assert codes == [200, 200, 429]
    assert (await post(served, "/shop/quote", {"item": "t"}, token="writer-token")).status == 200


async def test_slashes_in_names_are_found_however_they_are_written() -> None:
    from operations import Operation
    from operations.serving.http.routes import encoded_path
    from operations.spec import OperationSpec, OperationType

    def give(value: str) -> Any:
        return lambda input, context: value

    names = ["a/b", "/a", "a/", "a//b", "/", "//", "a/b/c", "a///b", "/a//b/"]
    registry = OperationRegistry(
        Operation(spec=OperationSpec(name=name, namespace="n", type=OperationType.QUERY), handler=give(name))
        for name in names
    )
    served = app(registry, mcp=False)
    for name in names:
        assert (await post(served, f"/n/{name}")).json == name
        operation = registry.get_operation(f"n.{name}")
        assert operation is not None
        written = encoded_path(operation)
        assert all(written.split("/")[1:])
        assert written.replace("%2F", "/") == f"/n/{name}"


async def test_numbers_that_json_cannot_express_are_an_error() -> None:
    from operations import Operation
    from operations.spec import OperationSpec, OperationType

    spec = OperationSpec(name="n", namespace="n", type=OperationType.QUERY)
    registry = OperationRegistry([Operation(spec=spec, handler=lambda i, c: {"a": [None, float("nan")]}, dump=None)])
    answer = await post(app(registry, mcp=False), "/n/n")
    assert (answer.status, answer.json["executed"]) == (500, "yes")


async def test_a_response_that_is_sent_twice_has_one_content_length() -> None:
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    response = Response(200, [(b"x", b"y")], b"abc")
    await response.send(send)
    await response.send(send)
    heads = [event["headers"] for event in sent if event["type"] == "http.response.start"]
    assert heads == [[(b"x", b"y"), (b"content-length", b"3")]] * 2


@pytest.mark.parametrize(
    ("wait", "sent"), [(19.2, "20"), (3, "3"), ("1\r\nset-cookie: a=b", "1"), (-1, "1"), (1e99, "1")]
)
async def test_retry_after_is_whole_seconds_for_any_error(wait: Any, sent: str) -> None:
    @operation(namespace="shop", type="query")
    async def busy() -> str:
        """Refuse."""
        raise CallError(ErrorCode.UNAVAILABLE, "busy", {"retryAfter": wait})

    answer = await post(app(OperationRegistry([busy]), mcp=False), "/shop/busy")
    assert (answer.status, answer.headers["retry-after"], "set-cookie" in answer.headers) == (503, sent, False)


async def test_a_call_that_cannot_ask_is_not_to_be_repeated() -> None:
    @operation(namespace="shop", type="mutation")
    async def confirm(context: OperationContext) -> str:
        """Ask."""
        return (await context.ask("Really?")).action

    answer = await post(app(OperationRegistry([confirm]), mcp=False), "/shop/confirm")
    assert (answer.status, answer.json["details"]["reason"]) == (503, "NO_ASK")
    assert "retry-after" not in answer.headers


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 400, "1e-400"])
async def test_numbers_out_of_range_are_no_internal_error(number: str) -> None:
    @operation(id="shop.double", type="query")
    async def double(number: float) -> float:
        return 2 * number

    answer = await request(app(OperationRegistry([double]), mcp=False), "GET", f"/shop/double?number={number}")
    assert answer.status in (200, 422), answer.body
