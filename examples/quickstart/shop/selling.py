"""A shop: plain functions and a stream, each an operation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from operations import CallError, OperationContext, operation

PRICES = {"tea": 2.5, "honey": 7.0, "umbrella": 18.0}


@dataclass
class Quote:
    """The price of some items."""

    item: str
    count: int
    total: float


@operation(id="shop.quote", type="query")
async def quote(item: str, count: int = 1) -> Quote:
    """Return the price of some items.

    Args:
        item: tea, honey or umbrella
        count: number of items
    """
    if item not in PRICES:
        raise CallError("NOT_SOLD", f"{item} is not sold here", {"sold": list(PRICES)})
    return Quote(item, count, PRICES[item] * count)


@operation(id="shop.advise", type="query")
async def advise(city: str, context: OperationContext) -> str:
    """Recommend what to buy for tomorrow, by the weather API and a tool of the MCP server.

    Args:
        city: city of the forecast
    """
    forecast = (await context.env.weather.forecast(city=city, days=2)).data
    item = {"rain": "umbrella", "sunny": "honey"}.get(forecast["days"][-1]["sky"], "tea")
    headline = await context.env.text.headline(text=f"{item} for {city}")
    return str(headline.data["result"])


@operation(id="shop.watch")
async def watch(item: str, times: int = 3, interval: float = 0.2) -> AsyncIterator[Quote]:
    """Follow the price of an item.

    Args:
        item: tea, honey or umbrella
        times: number of prices
        interval: seconds between two prices
    """
    for number in range(times):
        yield Quote(item, 1, round(PRICES.get(item, 0.0) * (1 + number / 10), 2))
        await asyncio.sleep(interval)
