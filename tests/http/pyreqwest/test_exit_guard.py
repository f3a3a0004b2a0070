"""A process that ends during requests exits normally."""

import asyncio
import sys

import pytest

PROGRAM = """
import asyncio, atexit, ctypes, sys

# What is registered first runs last: the process tells that the interpreter goes next, and stays a while without one.
atexit.register(lambda: print("ending", flush=True))
libc = ctypes.CDLL(None)
libc["__cxa_atexit"](libc.sleep, 2, None)

from operations.http import HTTPRequest, default_client

async def pieces():
    while True:
        yield b"x" * 65536

async def main(url):
    client = default_client()
    async def ask(**what):
        async with client.send(HTTPRequest(url=url, **what)) as response:
            async for _ in response.chunks():
                pass
    asks = [asyncio.ensure_future(ask(method="GET", stream=bool(n % 2))) for n in range(20)]
    asks.append(asyncio.ensure_future(ask(method="POST", body=pieces())))
    await asyncio.to_thread(sys.stdin.readline)
    asks[0].cancel()
    await asyncio.sleep(0)
    return asks

loop = asyncio.new_event_loop()
asks = loop.run_until_complete(main(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the process is kept alive without an interpreter by Linux's libc")
async def test_responses_after_the_end_of_the_interpreter_are_harmless() -> None:
    arrived = asyncio.Semaphore(0)
    ending = asyncio.Event()
    answered = asyncio.Semaphore(0)
    turns = iter(range(100))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upload = (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST")
        arrived.release()
        await ending.wait()
        await asyncio.sleep(0.02 * next(turns))  # one after the other, so that some responses arrive after the end
        if upload:
            await reader.read(1 << 20)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        answered.release()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        pipe = asyncio.subprocess.PIPE
        words = ("-W", "ignore", "-c", PROGRAM, f"http://127.0.0.1:{port}/")
        process = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=pipe, stdout=pipe, stderr=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(21):
            await asyncio.wait_for(arrived.acquire(), 30)
        process.stdin.write(b"now\n")
        assert await asyncio.wait_for(process.stdout.readline(), 30) == b"ending\n"
        ending.set()
        for _ in range(21):
            await asyncio.wait_for(answered.acquire(), 30)
        _, errors = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, errors.decode().splitlines()[-1:]) == (0, [])
