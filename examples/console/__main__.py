"""A server with everything that the console shows: `python -m examples.console`, then open the address it prints.

It serves local operations, among them nested calls, streams, failures and jobs, and operations of two workers at a hub.
`--document github-api.json` adds the operations of GitHub's API, which call a small server in place of GitHub.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
from pathlib import Path

from examples.console import upstream
from examples.console.shop import LOCAL, TRAVEL, WEATHER

from operations import Identity, OperationRegistry
from operations.calls import from_call, serve_registry
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.interceptors import Retry
from operations.jobs import Jobs
from operations.serving import HTTPServer, Limits, app
from operations.sources.openapi import HTTPServiceConfig, from_openapi_file

TOKENS = {
    "maria-token": Principal(Identity("maria.k", ("admin", "operations:watch", "operations:manage", "jobs.admin"))),
    "guest-token": Principal(Identity("guest")),
    "weather-token": Principal(Identity("weather"), ("weather", "text")),
    "travel-token": Principal(Identity("travel"), ("travel",)),
}
"""The accepted tokens: an operator, a caller without rights, and the two workers."""


async def main(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    authenticator = None if arguments.open else StaticTokens(TOKENS)
    async with contextlib.AsyncExitStack() as stack:
        hub = await stack.enter_async_context(Hub(StaticTokens(TOKENS)))
        for token, operations, slots in (("weather-token", WEATHER, 2), ("travel-token", TRAVEL, 8)):
            spoke = await stack.enter_async_context(Spoke(hub.url, token=token))
            worker = await stack.enter_async_context(
                serve_registry(OperationRegistry(operations), spoke, concurrency=slots)
            )
            await worker.registered()
        registry = OperationRegistry(LOCAL, interceptors=[Retry(4, first_delay=0.1, reserve=1_000)])
        remote = await stack.enter_async_context(from_call(hub.transport(), registry=registry))
        await remote.ready("weather.forecast", "travel.plan", timeout=10)
        if arguments.document is not None:
            base_url = await stack.enter_async_context(upstream.running())
            config = HTTPServiceConfig(namespace="github", base_url=base_url)
            registry.register_all(await from_openapi_file(arguments.document, config))
        jobs = await stack.enter_async_context(Jobs(registry))
        served = app(
            registry,
            authenticator=authenticator,
            hub=hub,
            title="shop",
            console=True,
            console_bodies=True,
            metrics=True,
            jobs=jobs,
            limits=Limits(concurrency=64, deadline_seconds=120, replay_seconds=30),
        )
        server = await stack.enter_async_context(HTTPServer(served, arguments.address))
        tokens = {} if arguments.open else {"operator": "maria-token", "guest": "guest-token"}
        print(json.dumps({"url": f"{server.url}/console/", "tokens": tokens, "operations": len(registry)}), flush=True)
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await stopped.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1:8000", help="host:port; port 0 for any free one")
    parser.add_argument("--open", action="store_true", help="require no token")
    parser.add_argument("--document", type=Path, help="GitHub's OpenAPI document")
    asyncio.run(main(parser.parse_args()))
