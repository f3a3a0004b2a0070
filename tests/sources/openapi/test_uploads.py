"""Files sent through operations: from paths, open files, bytes and streams, checked byte for byte by a real server."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from operations import ErrorCode, OperationContext, OperationRegistry
from operations.http.httpx2_client import Httpx2Client
from operations.sources.openapi import HTTPCallOptions, HTTPRetry, HTTPServiceConfig, from_openapi
from operations.testing import error_of
from tests.asgi_server import serving

BINARY = {"type": "string", "format": "binary"}
FORM = {
    "type": "object",
    "properties": {"file": BINARY, "files": {"type": "array", "items": BINARY}, "day": {"type": "string"}},
    "required": ["file"],
    "additionalProperties": False,
}
CONTENT = bytes(range(256)) * 4_000


def _operation(name: str, media_type: str, schema: Any) -> dict[str, Any]:
    return {"operationId": name, "requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "files", "version": "1"},
    "paths": {
        "/raw": {"put": _operation("raw", "application/octet-stream", BINARY)},
        "/moved": {"put": _operation("moved", "application/octet-stream", BINARY)},
        "/flaky": {"put": _operation("flaky", "application/octet-stream", BINARY)},
        "/image": {"put": _operation("image", "image/*", BINARY)},
        "/form": {"post": _operation("form", "multipart/form-data", FORM)},
        "/json": {"post": _operation("json", "application/json", {"type": "object", "properties": {"file": {}}})},
    },
}


class Files:
    """An API that returns what it received."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()

    async def raw(self, request: Request) -> Response:
        digest, size = hashlib.sha256(), 0
        async for chunk in request.stream():
            digest.update(chunk)
            size += len(chunk)
        headers = {name: request.headers.get(name) for name in ("content-type", "content-length", "transfer-encoding")}
        return JSONResponse({"sha256": digest.hexdigest(), "size": size, **headers})

    async def form(self, request: Request) -> Response:
        async with request.form(max_part_size=1 << 30) as form:
            parts: list[dict[str, Any]] = []
            for name, part in form.multi_items():
                if isinstance(part, str):
                    parts.append({"name": name, "text": part})
                else:
                    digest = hashlib.sha256()
                    while chunk := await part.read(1 << 20):
                        digest.update(chunk)
                    told = {"filename": part.filename, "type": part.content_type, "size": part.size}
                    parts.append({"name": name, **told, "sha256": digest.hexdigest()})
            return JSONResponse(parts)

    async def moved(self, request: Request) -> Response:
        async for _ in request.stream():
            pass
        return RedirectResponse("/raw", status_code=307)

    async def flaky(self, request: Request) -> Response:
        self.times["flaky"] += 1
        if self.times["flaky"] % 2:
            async for _ in request.stream():
                pass
            return Response(status_code=503)
        return await self.raw(request)

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/raw", self.raw, methods=["PUT"]),
                Route("/image", self.raw, methods=["PUT"]),
                Route("/moved", self.moved, methods=["PUT"]),
                Route("/flaky", self.flaky, methods=["PUT"]),
                Route("/form", self.form, methods=["POST"]),
            ]
        )


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Files().application()) as base:
        yield base


@pytest.fixture(params=["pyreqwest", "httpx2"])
async def registry(url: str, request: pytest.FixtureRequest) -> AsyncIterator[OperationRegistry]:
    client = None if request.param == "pyreqwest" else Httpx2Client()
    retry = HTTPRetry(first_delay=0.001)
    operations = from_openapi(DOCUMENT, HTTPServiceConfig(namespace="files", base_url=url, client=client, retry=retry))
    yield OperationRegistry(operations)
    await operations.close()
    if client is not None:
        await client.close()


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(CONTENT)
    return path


async def _pieces() -> AsyncIterator[bytes]:
    for start in range(0, len(CONTENT), 100_000):
        yield CONTENT[start : start + 100_000]


class _Pipe(io.RawIOBase):
    """A binary file that cannot go back."""

    def __init__(self, content: bytes) -> None:
        self._left = io.BytesIO(content)

    def read(self, size: int | None = -1) -> bytes:
        return self._left.read(size)

    def seekable(self) -> bool:
        return False


def _sent(size: int = len(CONTENT)) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(CONTENT).hexdigest(), "size": size}


async def test_a_raw_body_may_be_any_bytes(registry: OperationRegistry, photo: Path) -> None:
    length = str(len(CONTENT))
    with photo.open("rb") as opened:
        known = [photo, opened, io.BytesIO(CONTENT), CONTENT, bytearray(CONTENT), memoryview(CONTENT)]
        for body in known:
            data = (await registry.execute("files.raw", {"body": body})).data
            assert data.items() >= {**_sent(), "content-length": length, "transfer-encoding": None}.items()
    for body in (_pieces(), _Pipe(CONTENT)):
        data = (await registry.execute("files.raw", {"body": body})).data
        assert data.items() >= {**_sent(), "content-length": None, "transfer-encoding": "chunked"}.items()


async def test_an_open_file_is_sent_from_its_position_and_stays_open(registry: OperationRegistry, photo: Path) -> None:
    with photo.open("rb") as opened:
        opened.seek(1_000)
        data = (await registry.execute("files.raw", {"body": opened})).data
        assert not opened.closed
    assert data["sha256"] == hashlib.sha256(CONTENT[1_000:]).hexdigest()


async def test_parts_have_the_right_names_and_types(registry: OperationRegistry, photo: Path) -> None:
    with photo.open("rb") as opened:
        files = [opened, {"filename": "a.txt", "content": photo, "contentType": "text/plain"}, CONTENT, _pieces()]
        data = (await registry.execute("files.form", {"file": photo, "files": files, "day": "monday"})).data
    names = [("photo.png", "file"), ("photo.png", "files"), ("a.txt", "files"), ("files", "files"), ("files", "files")]
    assert [(part["filename"], part["name"]) for part in data[:-1]] == names
    assert {part["sha256"] for part in data[:-1]} == {_sent()["sha256"]}
    assert [part["type"] for part in data[:3]] == ["application/octet-stream"] * 2 + ["text/plain"]
    assert data[-1] == {"name": "day", "text": "monday"}


async def test_the_type_of_a_file_is_guessed_from_its_name_if_undeclared(
    registry: OperationRegistry, photo: Path
) -> None:
    data = (await registry.execute("files.image", {"body": photo})).data
    assert data["content-type"] == "image/png"


async def test_text_is_never_a_path(registry: OperationRegistry, photo: Path) -> None:
    data = (await registry.execute("files.raw", {"body": str(photo)})).data
    assert data["size"] == len(str(photo))
    [part] = (await registry.execute("files.form", {"file": str(photo)})).data
    assert part["sha256"] == hashlib.sha256(str(photo).encode()).hexdigest()
    described = {"file": {"filename": "a", "content": str(photo)}}
    [part] = (await registry.execute("files.form", described)).data
    assert part["size"] == len(str(photo))


async def test_the_rest_of_the_input_is_still_checked(registry: OperationRegistry, photo: Path) -> None:
    error = await error_of(registry.execute("files.form", {"file": photo, "day": 3, "extra": photo}))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert "/day" in str(error.details)
    assert "extra" in str(error.details)


async def test_a_missing_file_is_reported(registry: OperationRegistry, tmp_path: Path) -> None:
    error = await error_of(registry.execute("files.raw", {"body": tmp_path / "none"}))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert "none': No such file" in error.message
    error = await error_of(registry.execute("files.form", {"file": tmp_path}))
    assert "is a directory" in error.message


async def test_a_path_is_opened_again_for_another_attempt(registry: OperationRegistry, photo: Path) -> None:
    assert (await registry.execute("files.flaky", {"body": photo})).data.items() >= _sent().items()
    assert (await registry.execute("files.moved", {"body": photo})).data.items() >= _sent().items()
    with photo.open("rb") as opened:
        assert (await registry.execute("files.flaky", {"body": opened})).data.items() >= _sent().items()


async def test_single_use_bodies_are_sent_once(registry: OperationRegistry) -> None:
    error = await error_of(registry.execute("files.flaky", {"body": _pieces()}))
    assert error.details["statusCode"] == 503
    # The attempt was counted, so that the next one is answered.
    assert (await registry.execute("files.flaky", {"body": _pieces()})).data.items() >= _sent().items()
    error = await error_of(registry.execute("files.moved", {"body": _Pipe(CONTENT)}))
    assert error.details["statusCode"] == 307


async def test_a_stream_must_give_bytes(registry: OperationRegistry) -> None:
    async def words() -> AsyncIterator[str]:
        yield "word"

    error = await error_of(registry.execute("files.raw", {"body": words()}))
    assert error.code in (ErrorCode.VALIDATION_ERROR, ErrorCode.UNAVAILABLE)


async def test_a_dry_run_names_the_files(registry: OperationRegistry, photo: Path) -> None:
    context = OperationContext(metadata={"http": HTTPCallOptions(dry_run=True)})
    data = (await registry.execute("files.form", {"file": photo}, context)).data
    assert data["body"][1] == {"path": str(photo), "size": len(CONTENT)}


CLIENT = """
import asyncio, sys
from pathlib import Path
from operations import OperationRegistry
from operations.sources.openapi import HTTPServiceConfig, from_openapi
from tests.sources.openapi.test_uploads import DOCUMENT

def resident(): return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

async def main(url, path):
    operations = from_openapi(DOCUMENT, HTTPServiceConfig(namespace="files", base_url=url, timeout=300))
    registry = OperationRegistry(operations)
    await registry.execute("files.form", {"file": b"warm"})
    await registry.execute("files.raw", {"body": b"warm"})
    before = resident()
    [part] = (await registry.execute("files.form", {"file": path})).data
    raw = (await registry.execute("files.raw", {"body": path})).data
    print(part["sha256"], raw["sha256"], resident() - before, flush=True)
    await operations.close()

asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_a_large_file_is_never_in_memory(url: str, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.write(b"begin")
        file.seek(200 * 1024 * 1024)
        file.write(b"end")
    with path.open("rb") as file:
        expected = hashlib.file_digest(file, "sha256").hexdigest()
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, url, str(path)], capture_output=True, text=True, check=True, cwd=os.getcwd()
    )
    form, raw, kilobytes = done.stdout.split()
    assert form == raw == expected
    assert int(kilobytes) < 32 * 1024
