# ruff: noqa: T201  # a program that prints its report
"""Run API documents against prism, a mock server that validates each request: `python -m tests.sources.openapi.prism`.

Each operation is called with two inputs: the smallest valid one, and one with every property. The report counts the
outcomes, lists the requests that prism judged invalid by cause, and the documents that prism cannot load. It fails if
a rejection is not explained by one of the `EXCUSES`, each of which has to be proved by the request or the document.

Prism computes an example for each response, which can take minutes or crash it. The rest of such a document is judged
by prism as a proxy, which validates requests in the same way and leaves the response to a server of ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from operations import CallError, ErrorCode, HTTPResponseMeta, OperationRegistry
from operations.http import HTTPRequest
from operations.sources.openapi import APIOperations, HTTPAuth, HTTPRetry, HTTPServiceConfig, from_openapi_file
from operations.sources.openapi.documents import Documents, read_document
from operations.sources.openapi.template import security_schemes
from operations.spec import Operation
from tests.node_peers import npm_binary
from tests.ports import free_port
from tests.sources.openapi.inputs import fitting_input, full_input
from tests.sources.openapi.prism_excuses import Rejection, excuse_of

SECONDS = 20.0
TIMED_OUT = f"failed: {ErrorCode.TIMEOUT}"
DOCUMENT_SECONDS = 900.0
"""Time after which the rest of a document's requests is not sent; loading it counts."""
RUN_SECONDS = 2400.0
"""Time after which no further request of any document is sent."""
INVALID = frozenset({"UNPROCESSABLE_ENTITY", "INVALID_CONTENT_TYPE", "UNAUTHORIZED", "NO_PATH_MATCHED_ERROR"})
"""Errors of prism by which it rejects a request."""
NO_RESPONSE = frozenset(
    {"VIOLATIONS", "NO_RESPONSE_RESPONSE_DEFINED", "NO_RESPONSE_DEFINED", "NO_COMPLEX_OBJECT_TEXT", "NOT_ACCEPTABLE"}
)
"""Errors after it has accepted a request: it cannot make a response, or made one that its document does not allow."""


class Outcome(msgspec.Struct, frozen=True):
    """How one call ended."""

    kind: str
    causes: list[str] = []
    """Why prism rejected the request."""
    reason: str = ""
    """Why it was not sent, or not judged."""
    failed: bool = False


class Report(msgspec.Struct):
    """The outcomes of one or more documents."""

    outcomes: Counter[str] = msgspec.field(default_factory=Counter)
    invalid: list[Rejection] = []
    refused: dict[str, list[str]] = msgspec.field(default_factory=lambda: defaultdict(list))
    """Calls that were not sent, by reason."""

    def add(self, outcome: Outcome, rejection: Rejection) -> None:
        """Count an outcome; `rejection` is what is known of a request if it was judged invalid."""
        self.outcomes[outcome.kind] += 1
        self.invalid += [msgspec.structs.replace(rejection, cause=cause) for cause in outcome.causes]
        if outcome.reason:
            self.refused[outcome.reason].append(rejection.place)

    def extend(self, other: Report) -> None:
        """Add the outcomes of another document."""
        self.outcomes += other.outcomes
        self.invalid += other.invalid
        for reason, places in other.refused.items():
            self.refused[reason] += places

    def unexplained(self) -> dict[str, list[str]]:
        """Return the rejected requests without an excuse, by cause."""
        left = defaultdict(list)
        for rejection in self.invalid:
            if excuse_of(rejection) is None:
                left[rejection.cause].append(f"{rejection.place} [{rejection.kind}]")
        return left


class NotLoadedError(Exception):
    """Prism cannot load a document."""


class Mock:
    """A mock of a document's API, or a proxy before `upstream` that judges requests as a mock does."""

    def __init__(self, document: Path, end: float) -> None:
        self._document = document
        self._end = end
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by stop()
        self._process: subprocess.Popen[str] | None = None
        self.is_proxy = False

    def start(self, upstream: str = "") -> None:
        """Start prism and wait until it listens; its log is a file, so that its many lines never block it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.is_proxy = bool(upstream)
        options = ["--host", "127.0.0.1", "--port", str(self._port), "--errors", str(self._document)]
        command = [npm_binary("prism"), *(["proxy", *options, upstream] if upstream else ["mock", *options])]
        self.log.truncate(0)
        self._process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, text=True)
        while time.monotonic() < self._end:
            if "is listening on" in self.tail(-1):
                return
            try:
                self._process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            raise NotLoadedError(_reason(self.tail(-1)))
        raise NotLoadedError("it does not listen in time")

    def tail(self, length: int) -> str:
        """Return the end of the log; all of it for -1."""
        self.log.seek(0)
        text = self.log.read()
        return text if length < 0 else text[-length:]

    def crashed(self) -> bool:
        """Whether prism has ended by itself, or does within a second."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        return self._process.poll() is not None

    def stop(self) -> None:
        """End prism."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.log.close()


@contextmanager
def prism(document: Path, end: float | None = None) -> Iterator[Mock]:
    """A mock of the document's API on a free port, which has to be loaded by `end`."""
    mock = Mock(document, time.monotonic() + DOCUMENT_SECONDS if end is None else end)
    try:
        mock.start()
        yield mock
    finally:
        mock.stop()


def credentials(document: Path) -> dict[str, HTTPAuth]:
    """Return credentials for each of the document's security schemes."""
    schemes = security_schemes(Documents(read_document(document.read_bytes(), document.name)))
    return {name: _credential(scheme) for name, scheme in schemes.items()}


def _credential(scheme: Mapping[str, Any]) -> HTTPAuth:
    if scheme.get("type") == "apiKey":
        return HTTPAuth(type="api_key", token="key")
    if str(scheme.get("scheme", "")).lower() == "basic":
        return HTTPAuth(type="basic", username="ada", password="secret")
    return HTTPAuth(type="bearer", token="token")


async def run_document(document: Path, report: Report, end: float) -> None:
    """Call every operation of a document twice, until `end`."""
    with prism(document, end) as mock:
        async with _upstream() as upstream, Judge.open(document, mock, upstream) as judge:
            for operation in judge.operations:
                for make in (fitting_input, full_input):
                    if time.monotonic() > end:
                        report.outcomes["not sent: out of time"] += 1
                    else:
                        report.add(*await judge.call(operation, make))


class Judge:
    """The operations of a document before prism, which is restarted as a proxy where it fails as a mock."""

    def __init__(self, document: Path, mock: Mock, upstream: str, operations: APIOperations) -> None:
        self.operations = operations
        self.sent: list[HTTPRequest] = []
        self._document = document
        self._written = read_document(document.read_bytes(), document.name)
        self._mock = mock
        self._upstream = upstream
        self._registry = OperationRegistry(operations)
        self._notes = operations.diagnostics()

    @classmethod
    @asynccontextmanager
    async def open(cls, document: Path, mock: Mock, upstream: str) -> AsyncIterator[Judge]:
        """Load the document with the mock as its server."""
        sent: list[HTTPRequest] = []
        config = HTTPServiceConfig(
            namespace="mock",
            base_url=mock.url,
            auth=credentials(document),
            timeout=SECONDS,
            retry=HTTPRetry(attempts=1),
            on_request=sent.append,
        )
        async with await from_openapi_file(document, config) as operations:
            judge = cls(document, mock, upstream, operations)
            judge.sent = sent
            yield judge

    async def call(self, operation: Operation[Any], make: Any) -> tuple[Outcome, Rejection]:
        """Send one request; again to the proxy if the mock crashed, hung or did not judge it."""
        outcome = await self._judge(operation, make)
        if outcome.failed:
            crashed = self._mock.crashed()
            reason = f"prism crashed: {_reason(self._mock.tail(3000))}" if crashed else outcome.reason
            if crashed or outcome.kind == TIMED_OUT or not self._mock.is_proxy:
                self._mock.start(self._upstream)
                outcome = await self._judge(operation, make)
            if outcome.failed:
                outcome = Outcome(outcome.kind, reason=reason)
        annotations = operation.spec.annotations
        place = f"{self._document.stem}: {annotations['method']} {annotations['path']} ({make.__name__})"
        rejection = _rejection(place, operation, self.sent, self._notes.get(operation.id, ()))
        return outcome, msgspec.structs.replace(rejection, described=self._described(annotations))

    def _described(self, annotations: Mapping[str, Any]) -> Any:
        """Return the description of an operation as it is written, if the document is of OpenAPI 3.0."""
        if not str(self._written.get("openapi", "")).startswith("3.0"):
            return None
        return self._written["paths"].get(annotations["path"], {}).get(annotations["method"].lower())

    async def _judge(self, operation: Operation[Any], make: Any) -> Outcome:
        self.sent.clear()
        return await _call(self._registry, operation, make)


@asynccontextmanager
async def _upstream() -> AsyncIterator[str]:
    """The URL of a server that answers each request with 204."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *([0-9]+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, limit=2**24) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _rejection(place: str, operation: Operation[Any], sent: Sequence[HTTPRequest], notes: Sequence[str]) -> Rejection:
    if not sent:
        return Rejection(place, "")
    kinds = [value for name, value in sent[0].headers if name.lower() == "content-type"]
    body = sent[0].body if isinstance(sent[0].body, bytes) else b""
    return Rejection(place, "", " ".join(kinds), body, operation.spec.input_schema.document, notes, sent[0].url)


def _reason(log: str) -> str:
    """Return the line of a log that says why prism ended."""
    fatal = re.search(r"fatal +(.+)", log)
    lines = [line.strip() for line in log.splitlines() if re.search(r"Error\b", line)]
    return fatal[1].strip()[:160] if fatal else lines[-1][:160] if lines else log.strip()[-160:]


async def _call(registry: OperationRegistry, operation: Operation[Any], make: Any) -> Outcome:
    schema = operation.spec.input_schema
    input = make(schema)
    if not schema.check(input):
        return Outcome("not sent: no valid input was found", reason="no valid input was found")
    try:
        if operation.handler is None:
            async with aclosing(registry.subscribe(operation.id, input, timeout=SECONDS)) as stream:
                envelope = await anext(stream)
        else:
            envelope = await registry.execute(operation.id, input, timeout=SECONDS)
    except StopAsyncIteration:
        return Outcome("accepted")
    except CallError as error:
        return _read_error(error)
    assert isinstance(envelope.meta, HTTPResponseMeta)
    return read_outcome(envelope.meta.status_code, envelope.meta.headers, envelope.data)


def _read_error(error: CallError) -> Outcome:
    details = error.details if isinstance(error.details, dict) else {}
    if "statusCode" in details:
        return read_outcome(details["statusCode"], details.get("headers", {}), details.get("body"))
    if error.code is ErrorCode.VALIDATION_ERROR:
        return Outcome("not sent: refused", reason=f"refused: {error.message[:160]}")
    if error.code is ErrorCode.UNAVAILABLE and "//127.0.0.1" not in error.message:
        return Outcome("accepted, with a redirect to the real API")
    return Outcome(f"failed: {error.code}", reason=f"{error.code}: {error.message[:160]}", failed=True)


def read_outcome(status: int, headers: Mapping[str, str], body: Any) -> Outcome:
    """Return how a call ended, by its response."""
    problem = str(body.get("type", "")) if isinstance(body, dict) else ""
    kind = problem.rpartition("#")[2] if "stoplight.io/prism" in problem else ""
    causes = _violations(headers, body)
    if not causes and kind == "UNPROCESSABLE_ENTITY" and body.get("validation"):
        return Outcome("accepted, with warnings")  # a proxy also rejects deprecated parameters
    if causes or kind in INVALID:
        return Outcome("judged invalid", causes or [f"{kind}: {str(body.get('detail'))[:160]}"])
    if kind in NO_RESPONSE:
        return Outcome("accepted, without a response to give")
    if kind:
        return Outcome(f"prism: {kind}", reason=f"prism: {kind}: {str(body.get('detail'))[:160]}", failed=True)
    return Outcome("accepted" if status < 400 else "accepted, with a documented error")


def _violations(headers: Mapping[str, str], body: Any) -> list[str]:
    """Return the causes for which a request was rejected; violations of prism's own response do not count."""
    found: Any = body.get("validation") if isinstance(body, dict) else None
    if not isinstance(found, list):
        try:
            found = json.loads(headers.get("sl-violations", "[]"))
        except ValueError:
            found = []
    nested = [each for each in found if each.get("code") in ("oneOf", "anyOf")]
    causes = []
    for each in nested or found:  # the others are about its branches
        location = [str(part) for part in each.get("location") or ["?"]]
        if location[0] != "response" and each.get("severity") in ("Error", 0):
            place = ".".join(location[1:3] if location[0] == "request" else location[:2])
            causes.append(f"{place} {each.get('code')}: {re.sub(r'[0-9]+', 'N', str(each.get('message')))[:160]}")
    return list(dict.fromkeys(causes))


def _print(report: Report, *, verbose: bool) -> None:
    print(", ".join(f"{count} {outcome}" for outcome, count in report.outcomes.most_common()), flush=True)
    unexplained = report.unexplained()
    groups: dict[str, list[str]] = {**unexplained, **(report.refused if verbose else {})}
    for cause, places in sorted(groups.items(), key=lambda pair: -len(pair[1])):
        mark = "!" if cause in unexplained else " "
        print(f"{mark} {len(places):5} {cause}\n        {'; '.join(places[:3])}")


def main() -> int:
    """Run all documents, or those whose names contain one of the words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="directory with documents.tar.xz and manifest.json, or of documents")
    parser.add_argument("words", nargs="*", help="only documents whose file contains one of these")
    parser.add_argument("--jobs", type=int, default=2, help="documents that run at the same time")
    parser.add_argument("--seconds", type=float, default=RUN_SECONDS, help="time limit of the whole run")
    parser.add_argument("-v", "--verbose", action="store_true", help="list calls that were not judged, too")
    args = parser.parse_args()
    total = Report()
    not_run: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch, ProcessPoolExecutor(args.jobs) as pool:
        # Large ones first, so that none of them is left to run alone at the end.
        documents = sorted(_documents(args.folder, Path(scratch), args.words), key=_size, reverse=True)
        end = time.monotonic() + args.seconds
        runs = {pool.submit(run_alone, document, end): document for document in documents}
        for run in as_completed(runs):
            document, (report, problem) = runs[run], run.result()
            print(f"== {document.name}")
            if problem:
                not_run[document.name] = problem
                print(f"  prism cannot load it: {problem}")
            _print(report, verbose=args.verbose)
            total.extend(report)
    excuses = [excuse for rejection in total.invalid if (excuse := excuse_of(rejection)) is not None]
    print("== all documents")
    _print(total, verbose=False)
    for reason, count in Counter(f"{excuse.whose}: {excuse.reason}" for excuse in excuses).most_common():
        print(f"  {count:5} {reason}")
    for name, why in not_run.items():
        print(f"  prism cannot load {name}: {why}")
    return 1 if total.unexplained() else 0


def _size(document: Path) -> int:
    return document.stat().st_size


def run_alone(document: Path, end: float) -> tuple[Report, str]:
    """Run a document in this process, until `end` or its own limit.

    Return its report, and why prism could not load it, or an empty string.
    """
    logging.getLogger("operations").setLevel(logging.ERROR)
    report = Report()
    try:
        asyncio.run(run_document(document, report, min(end, time.monotonic() + DOCUMENT_SECONDS)))
    except (NotLoadedError, CallError) as error:
        return report, str(error)
    return report, ""


def _documents(folder: Path, scratch: Path, words: list[str]) -> Iterator[Path]:
    archive = folder / "documents.tar.xz"
    if archive.exists():
        with tarfile.open(archive) as opened:
            opened.extractall(scratch, filter="data")
        listed = [scratch / each["file"] for each in json.loads((folder / "manifest.json").read_text())["specs_list"]]
    else:
        listed = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".yaml", ".yml"))
    for path in listed:
        if not words or any(word in str(path.relative_to(scratch if archive.exists() else folder)) for word in words):
            yield path


if __name__ == "__main__":
    sys.exit(main())
