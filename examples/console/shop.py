"""The operations that the demo of the console serves: forms, tables, bytes, streams, nested calls and failures."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import math
import random
import wave
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal

import msgspec
from examples.console.controls import CONTROLS

from operations import AccessControl, CallError, Operation, OperationContext, mcp_envelope, operation
from operations.spec import OperationSpec, OperationType

_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAG0lEQVR4nGNk+M+AFTBhFx4EEizYhRkYGBgGjAsA8z4BD2LSwR8AAAAASUVORK5CYII="
)
ADMIN = AccessControl(required_scopes=("admin",))
_ITEMS = ("tea", "honey", "umbrella", "lamp", "map")


@dataclass
class Address:
    """Where a parcel goes."""

    street: str
    city: str
    country: Literal["DE", "FR", "IT", "NO", "PE"] = "DE"
    floor: int | None = None


@dataclass
class Line:
    """One line of an order."""

    item: str
    count: Annotated[int, msgspec.Meta(ge=1, le=99)] = 1
    gift: bool = False
    tags: list[str] = field(default_factory=list)


@dataclass
class Card:
    """Payment by card."""

    kind: Literal["card"]
    number: Annotated[str, msgspec.Meta(pattern="^[0-9]{8,19}$", extra_json_schema={"format": "password"})]
    reference: str = ""


@dataclass
class Invoice:
    """Payment by invoice."""

    kind: Literal["invoice"]
    due: date
    reference: str = ""


@operation(id="shop.quote", type="query", tags=["prices"])
async def quote(item: str, count: int = 1) -> dict[str, Any]:
    """Return the price of an item."""
    return {"item": item, "count": count, "total": round(len(item) * 1.25 * count, 2), "currency": "EUR"}


@operation(id="shop.order", type="mutation", title="Place an order", tags=["orders"])
async def order(
    lines: list[Line],
    address: Address,
    payment: Card | Invoice,
    note: str = "",
    express: bool = False,
    deliver_on: date | None = None,
    options: dict[str, int] | None = None,
) -> dict[str, Any]:
    """Place an order: nested objects, a list, a union, dates, a password field."""
    number = random.randrange(10_000, 99_999)
    return {"number": number, "lines": len(lines), "city": address.city, "paid": payment.kind, "express": express}


@operation(id="shop.stock", type="query", tags=["prices"])
async def stock(rows: Annotated[int, msgspec.Meta(ge=1, le=20_000)] = 25) -> list[dict[str, Any]]:
    """Return a table."""
    names = [f"{_ITEMS[number % len(_ITEMS)]} {number}" for number in range(rows)]
    return [
        {"id": number, "item": name, "left": number * 7 % 31, "price": round(1 + number * 0.37, 2)}
        for number, name in enumerate(names)
    ]


@operation(id="shop.picture", type="query")
async def picture() -> bytes:
    """Return a small PNG."""
    return _PIXEL


@operation(id="shop.slow", type="query")
async def slow(seconds: Annotated[float, msgspec.Meta(ge=0, le=50)] = 5.0) -> str:
    """Wait, so that the call can be cancelled."""
    await asyncio.sleep(seconds)
    return f"waited {seconds:g} s"


@operation(id="shop.fail", type="query")
async def fail(how: Literal["domain", "exception", "unavailable"] = "domain") -> None:
    """Fail in the chosen way."""
    if how == "exception":
        raise RuntimeError("a text that nobody outside reads")
    if how == "unavailable":
        raise CallError("UNAVAILABLE", "the till is closed until nine")
    raise CallError("SOLD_OUT", "no tea left", {"item": "tea", "next": "Thursday"})


@operation(id="shop.mismatch", type="query")
async def mismatch() -> dict[str, int]:
    """Return a result that differs from its declaration: it is normalised, and the differences are reported."""
    return {"one": "1", "two": "two"}  # type: ignore[dict-item]


@operation(id="shop.large", type="query")
async def large(
    megabytes: Annotated[int, msgspec.Meta(ge=1, le=40)] = 10,
    shape: Literal["table", "tree", "text", "bytes"] = "table",
) -> Any:
    """Return a large result."""
    if shape == "text":
        return "All work and no play. " * (megabytes * 47_662)
    if shape == "bytes":
        return bytes(range(256)) * (megabytes * 3_072)  # a third more as base64
    row = {"text": "x" * 200, "numbers": list(range(20)), "nested": {"a": {"b": [1, 2, 3]}}}
    rows = [{"id": number, **row} for number in range(megabytes * 3_300)]
    return rows if shape == "table" else {str(each["id"]): each for each in rows}


@operation(id="shop.report", type="mutation", tags=["orders"], durable=True)
async def report(
    context: OperationContext,
    month: str = "May",
    seconds: Annotated[float, msgspec.Meta(ge=0, le=600)] = 2.0,
    broken: bool = False,
) -> dict[str, Any]:
    """Write a report: takes long enough to be a job that reports progress and can be cancelled or retried."""
    for step in range(20):
        if context.progress is not None:
            context.progress(step, 20, f"page {step + 1} of 20")
        await asyncio.sleep(seconds / 20)
        if broken and step == 2:
            raise CallError("PRINTER_JAM", "the printer has a paper jam")
    return {"month": month, "pages": 20}


_MARKUP = "<img src=x onerror=\"document.title='attacked'\"><script>document.title='attacked'</script>"


@operation(
    id="text.markup",
    type="query",
    title=f"Markup {_MARKUP}",
    description=f"Markup is text. {_MARKUP} [a link](javascript:document.title='attacked') **bold** `<b>code</b>`",
    tags=[_MARKUP],
)
async def markup(
    text: Annotated[str, msgspec.Meta(title=_MARKUP, description=_MARKUP, examples=[_MARKUP])] = _MARKUP,
    fails: bool = False,
) -> dict[str, Any]:
    """Return text that would be harmful if the page used it as HTML."""
    if fails:
        raise CallError(f"<b>{_MARKUP}</b>", _MARKUP, {_MARKUP: _MARKUP})
    return {_MARKUP: _MARKUP, "svg": f"<svg onload=alert(1)>{_MARKUP}</svg>", "url": "javascript:alert(1)", "is": text}


@operation(id="shop.clear", type="mutation", annotations={"destructiveHint": True}, access_control=ADMIN)
async def clear() -> str:
    """Clear the shop; needs the scope `admin`."""
    return "cleared"


@operation(id="shop.temperatures")
async def temperatures(per_second: Annotated[float, msgspec.Meta(gt=0, le=10_000)] = 5.0) -> AsyncIterator[Any]:
    """Follow the thermometer of the store."""
    began = asyncio.get_running_loop().time()
    number = 0
    while True:
        now = datetime.now(UTC).isoformat()
        yield {"number": number, "at": now, "celsius": round(14 + 6 * math.sin(number / 20), 2), "room": "cellar"}
        number += 1
        # At thousands of events a second, many are due at the same moment: a timer for each would be too slow.
        await asyncio.sleep(max(0.0, began + number / per_second - asyncio.get_running_loop().time()))


@operation(id="shop.breaks")
async def breaks(after: int = 5) -> AsyncIterator[int]:
    """Follow a stream that fails."""
    for number in range(after):
        yield number
        await asyncio.sleep(0.2)
    raise CallError("UNAVAILABLE", "the thermometer fell down")


@operation(id="shop.restock", type="mutation")
async def restock(context: OperationContext, cities: list[str] | None = None) -> dict[str, Any]:
    """Decide what to order: nested calls, some at workers; one of them fails and one is retried."""
    env = context.env
    prices = [(await env.shop.quote(item=item)).data["total"] for item in _ITEMS[:3]]
    plan = (await env.travel.plan(cities=cities or ["Rome", "Oslo", "Lima"])).data
    reading = (await env.shop.flaky()).data
    return {"prices": prices, "plan": plan, "reading": reading}


@operation(id="shop.prices", type="query", tags=["prices"])
async def prices(context: OperationContext, count: Annotated[int, msgspec.Meta(ge=1, le=2_000)] = 600) -> float:
    """Add the prices of many items: a nested call for each."""
    quotes = [await context.env.shop.quote(item=_ITEMS[number % len(_ITEMS)]) for number in range(count)]
    return float(round(sum(each.data["total"] for each in quotes), 2))


@operation(id="shop.advise", type="query")
async def advise(context: OperationContext, city: Annotated[str, msgspec.Meta(description="where you will be")]) -> str:
    """Recommend what to buy for tomorrow, by the weather worker and the text worker."""
    weather = (await context.env.weather.forecast(city=city)).data
    return str((await context.env.text.headline(text=f"{weather['days'][0]['sky']} in {city}")).data)


_failures = {"left": 0}


@operation(id="shop.flaky", type="query")
async def flaky() -> int:
    """Fail twice, then succeed: the server retries it."""
    _failures["left"] = (_failures["left"] + 1) % 3
    await asyncio.sleep(0.05)
    if _failures["left"]:
        raise CallError("UNAVAILABLE", "the scale is warming up")
    return 42


@operation(id="weather.cities", type="query")
async def cities() -> list[str]:
    """List the stations."""
    await asyncio.sleep(0.03)
    return ["Rome", "Oslo", "Quito"]


@dataclass
class Day:
    """The weather of a day."""

    sky: str
    celsius: float


@dataclass
class Forecast:
    """The weather of the next days."""

    city: str
    days: list[Day]


@operation(id="weather.forecast", type="query")
async def forecast(
    city: Annotated[str, msgspec.Meta(description="where")],
    days: Annotated[int, msgspec.Meta(ge=1, le=7, description="how many days")] = 1,
) -> Forecast:
    """Return the weather of the next days."""
    await asyncio.sleep(0.1 + len(city) / 50)
    if city not in ("Rome", "Oslo", "Quito"):
        message = f"no station in {city}; there are Rome, Oslo, Quito"
        details = {"statusCode": 404, "method": "GET", "path": f"/forecast/{city}", "body": {"message": message}}
        raise CallError("EXECUTION_ERROR", f"GET /forecast/{{city}} answered 404 Not Found: {message}", details)
    skies = ("cloudy", "rain", "sunny")
    return Forecast(city, [Day(skies[number % 3], 11 + number) for number in range(days)])


@operation(id="weather.watch")
async def watch(city: str, interval: Annotated[float, msgspec.Meta(gt=0)] = 1.0) -> AsyncIterator[Day]:
    """Stream measurements until the client disconnects."""
    for number in itertools.count():
        celsius = "n/a" if number % 120 == 60 else round(12.6 + 2 * math.sin(number / 40) + random.random() - 0.5, 1)
        yield {"sky": "cloudy", "celsius": celsius}  # type: ignore[misc]
        await asyncio.sleep(interval)


@operation(id="text.headline", type="query")
async def headline(text: str) -> str:
    """Write a headline."""
    await asyncio.sleep(0.2)
    return text.upper()


@operation(id="travel.plan", type="query")
async def plan(context: OperationContext, cities: list[str]) -> dict[str, Any]:
    """Plan a journey: calls the weather worker for each city, and the text worker."""
    await context.env.weather.cities()
    results = await asyncio.gather(
        *(context.env.weather.forecast(city=city) for city in cities), return_exceptions=True
    )
    good = [result.data["city"] for result in results if not isinstance(result, BaseException)]
    title = (await context.env.text.headline(text=" and ".join(good) or "nowhere")).data
    return {"title": title, "cities": good, "failed": len(results) - len(good)}


def _tone() -> bytes:
    """Return a short tone as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8_000)
        sound.writeframes(bytes(int(128 + 60 * math.sin(number * math.tau * 440 / 8_000)) for number in range(4_000)))
    return file.getvalue()


def _blocks() -> Operation[Any]:
    async def handler(input: Any, context: OperationContext) -> Any:
        content = [
            {"type": "text", "text": "# A heading\n<script>alert(1)</script> stays text"},
            {"type": "image", "data": base64.b64encode(_PIXEL).decode(), "mimeType": "image/png"},
            {"type": "audio", "data": base64.b64encode(_tone()).decode(), "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "file:///notes.txt", "name": "notes"},
        ]
        return mcp_envelope({"blocks": len(content)}, content=content, is_error=bool(input.get("fails")))

    schema = {"type": "object", "properties": {"fails": {"type": "boolean", "default": False}}}
    spec = OperationSpec(
        name="blocks",
        namespace="text",
        type=OperationType.QUERY,
        description="Return MCP content blocks.",
        input_schema=schema,  # type: ignore[arg-type]
    )
    return Operation(spec=spec, handler=handler)


LOCAL: list[Operation[Any]] = [
    *(quote, order, stock, picture, slow, fail, mismatch, large, clear, temperatures, breaks, restock, flaky, advise),
    *(prices, report, markup, _blocks(), CONTROLS),
]
WEATHER: list[Operation[Any]] = [cities, forecast, watch, headline]
TRAVEL: list[Operation[Any]] = [plan]
