"""Operations outside the scanned directories."""

from operations import operation


@operation(type="query")
async def ping() -> str:
    return "ping"


@operation(type="query")
async def pong() -> str:
    return "pong"


async def plain() -> str:
    return "plain"
