# ruff: noqa: T201  # a program that prints its report
"""Run API documents against prism, a mock server that validates each request: `python -m tests.sources.openapi.prism`.

Each operation is called with two inputs: the smallest valid one, and one with every property. The report counts the
outcomes, and lists the requests that prism judged invalid by cause. It fails if a rejection is not explained by one
of the `EXCUSES`, each of which has to be proved by the request or the document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from operations import CallError, ErrorCode, HTTPResponseMeta, OperationRegistry
from operations.http import HTTPRequest
from operations.sources.openapi import HTTPAuth, HTTPRetry, HTTPServiceConfig, from_openapi_file
from operations.sources.openapi.documents import Documents, read_document
from operations.sources.openapi.template import security_schemes
from operations.spec import Operation
from tests.node_peers import npm_binary
from tests.sources.openapi.inputs import fitting_input, full_input

SECONDS = 20.0
TIMED_OUT = f"failed: {ErrorCode.TIMEOUT}"
MOST_CRASHES = 8
"""Crashes of prism after which the rest of a document is not run."""
INVALID = frozenset({"UNPROCESSABLE_ENTITY", "INVALID_CONTENT_TYPE", "UNAUTHORIZED", "NO_PATH_MATCHED_ERROR"})
"""Errors of prism by which it rejects a request."""
NO_RESPONSE = frozenset(
    {"VIOLATIONS", "NO_RESPONSE_RESPONSE_DEFINED", "NO_RESPONSE_DEFINED", "NO_COMPLEX_OBJECT_TEXT", "NOT_ACCEPTABLE"}
)
"""Errors after it has accepted a request: it cannot make a response, or made one that its document does not allow."""


class Rejection(msgspec.Struct, frozen=True):
    """A request that prism judged invalid, with what a proof may look at."""

    place: str
    """The operation, as `document: METHOD path (input)`."""
    cause: str
    """Location, code and message of prism's judgement."""
    kind: str = ""
    """Media type of the body."""
    body: bytes = b""
    schema: Any = True
    """The operation's input schema."""
    notes: Sequence[str] = ()
    """Diagnostics of the operation's description."""

    def property(self) -> Any:
        """Return the schema of the input property that the cause names; an empty one if it names none."""
        named = re.match(r"(?:path|query|header|cookie|body)\.([^\s.]+)", self.cause)
        properties = self.schema.get("properties", {}) if isinstance(self.schema, dict) else {}
        found = properties.get(named[1], {}) if named else {}
        while isinstance(found, dict) and str(found.get("$ref", "")).startswith("#/$defs/"):
            found = self.schema["$defs"].get(found["$ref"][8:], {})
        return found if isinstance(found, dict) else {}

    def form_values(self) -> list[bytes]:
        """Return the values of the form field that the cause names, as they were sent."""
        named = re.match(r"body\.([^\s.]+)", self.cause)
        name = re.escape(named[1].encode() if named else b"?")
        if self.kind.startswith("multipart/"):
            return [part for part in self.body.split(b"\r\n--") if re.search(rb'name="' + name + rb'"', part)]
        return re.findall(rb"(?:^|&)" + name + rb"(?:%5B%5D)?=([^&]*)", self.body)


def _is_form(rejection: Rejection) -> bool:
    return rejection.kind.startswith(("multipart/", "application/x-www-form-urlencoded"))


def _sent_one_item(rejection: Rejection) -> bool:
    return _is_form(rejection) and len(rejection.form_values()) == 1


def _sent_json(rejection: Rejection) -> bool:
    values = rejection.form_values()
    return _is_form(rejection) and any(b"application/json" in each or each.startswith(b"%7B") for each in values)


def _branch_types(schema: Any) -> set[str]:
    branches = [*schema.get("oneOf", ()), *schema.get("anyOf", ())]
    return {str(branch.get("type")) for branch in branches if isinstance(branch, dict)}


def _is_number_or_text(rejection: Rejection) -> bool:
    types = _branch_types(rejection.property())
    return "string" in types and bool(types & {"integer", "number", "boolean"})


def _has_object_branch(rejection: Rejection) -> bool:
    return bool(rejection.property().keys() & {"oneOf", "anyOf"})


def _has_object_items(rejection: Rejection) -> bool:
    return bool(rejection.property().get("type") == "array")


def _was_repaired(rejection: Rejection) -> bool:
    text = json.dumps(rejection.schema)
    return '"anyOf"' in text and '"oneOf"' not in text


class Excuse(msgspec.Struct, frozen=True):
    """A reason why prism rejects a valid request, how such a rejection reads, and what else must hold."""

    whose: str
    """`prism`, `document`, or `input` where the generated input is at fault."""
    reason: str
    problem: str
    """Pattern of the cause."""
    proof: Callable[[Rejection], bool]

    def covers(self, rejection: Rejection) -> bool:
        """Whether it explains a rejection."""
        return re.search(self.problem, rejection.cause) is not None and self.proof(rejection)


EXCUSES = [
    Excuse(
        "prism",
        "it reads the only item of an array in a form as a string",
        r"^body\.\S+ type: .* must be array$",
        _sent_one_item,
    ),
    Excuse(
        "prism",
        "it reads a JSON part of a form as a string",
        r"^body\.\S+ type: .* must be (array|object)$",
        _sent_json,
    ),
    Excuse(
        "input",
        "the generated text does not have the format, which is an annotation",
        r"^\S+ format: .* must match format",
        lambda rejection: True,
    ),
    Excuse(
        "input",
        "the generated text is not base64, which prism requires for the format `byte` by a pattern of its own",
        r'^\S+ pattern: .* must match pattern "\^\[\\w\\d\+\\/=\]\*\$"$',
        lambda rejection: '"byte"' in json.dumps(rejection.schema) or "base64" in json.dumps(rejection.schema),
    ),
    Excuse(
        "document",
        "it declares the header Content-Type, which OpenAPI ignores, with a value that its bodies do not have",
        r"415: Supported content types: ",
        lambda rejection: any(name.lower() == "content-type" for name in rejection.schema.get("properties", {})),
    ),
    Excuse(
        "document",
        "its oneOf requires members that it has no `properties` for",
        r"^body\S* oneOf: .* in oneOf$",
        lambda rejection: (
            ": POST /v2/load_balancers" in rejection.place or ": PUT /v2/load_balancers" in rejection.place
        ),
    ),
    Excuse(
        "document",
        "several of its operations have this URL and differ in the fragment",
        "",
        lambda rejection: re.search(r"\S#\S+ \(", rejection.place) is not None,
    ),
    Excuse(
        "prism",
        "it reads an exploded object by `properties` only, not by those of `oneOf`",
        r"^query\.\S+ oneOf",
        _has_object_branch,
    ),
    Excuse(
        "document",
        "it has an array of objects in a query or header, which OpenAPI does not define",
        r"^(query|header)\.\S+ type: .*\.N must be object$",
        _has_object_items,
    ),
    Excuse(
        "prism",
        "it takes a body that is null for none",
        r"required: Body parameter is required$",
        lambda rejection: rejection.body == b"null",
    ),
    Excuse(
        "prism",
        "it reads a body of text as a string",
        r"^body type: .* must be (boolean|integer|number)$",
        lambda rejection: rejection.kind.startswith("text/plain"),
    ),
    Excuse(
        "document",
        "it requires a member of a form that it does not describe",
        r"^body required: ",
        lambda rejection: _is_form(rejection) and any("is not described" in note for note in rejection.notes),
    ),
    Excuse(
        "prism",
        "a number in a path matches both an integer and a string",
        r"^path\.\S+ oneOf: .* exactly one schema in oneOf$",
        _is_number_or_text,
    ),
    Excuse(
        "document",
        "it declares the header Accept, which OpenAPI ignores",
        r"^header\.accept enum: ",
        lambda rejection: True,
    ),
    Excuse(
        "document",
        "it declares the header Authorization, which OpenAPI ignores",
        r"^header required: .* required property 'authorization'$",
        lambda rejection: True,
    ),
    Excuse(
        "document",
        "its oneOf has no value that matches exactly one branch, and is read as anyOf",
        r"^body\S* oneOf: .* must match exactly one schema in oneOf$",
        _was_repaired,
    ),
    Excuse(
        "document",
        "it declares no media type for its body",
        r"^INVALID_CONTENT_TYPE: No supported content types, but request included a non-empty body$",
        lambda rejection: rejection.kind == "application/json",
    ),
    Excuse(
        "prism",
        "it does not parse XML",
        r"^body type: Request body must be (object|array)$",
        lambda rejection: "xml" in rejection.kind,
    ),
]
"""What is provably not a fault of the request: a pattern of prism's words is never enough where more can be checked."""


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


def excuse_of(rejection: Rejection) -> Excuse | None:
    """Return what explains a rejection; None if nothing does."""
    return next((excuse for excuse in EXCUSES if excuse.covers(rejection)), None)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Mock:
    """A mock of a document's API, which is started again where it crashed."""

    def __init__(self, document: Path) -> None:
        self._document = document
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by stop()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start prism and wait until it listens; its log is a file, so that its many lines never block it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        command = [npm_binary("prism"), "mock", "--host", "127.0.0.1", "--port", str(self._port), "--errors"]
        self.log.truncate(0)
        self._process = subprocess.Popen(
            [*command, str(self._document)], stdout=self.log, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(6000):
            if "is listening on" in self.tail(-1):
                return
            try:
                self._process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            break
        raise RuntimeError(f"prism did not start: {self.tail(400)}")

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
def prism(document: Path) -> Iterator[Mock]:
    """A mock of the document's API on a free port."""
    mock = Mock(document)
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


async def run_document(document: Path, report: Report) -> None:
    """Call every operation of a document twice."""
    sent: list[HTTPRequest] = []
    with prism(document) as mock:
        config = HTTPServiceConfig(
            namespace="mock",
            base_url=mock.url,
            auth=credentials(document),
            timeout=SECONDS,
            retry=HTTPRetry(attempts=1),
            on_request=sent.append,
        )
        async with await from_openapi_file(document, config) as operations:
            registry = OperationRegistry(operations)
            notes = operations.diagnostics()
            crashes = 0
            for operation in operations:
                for make in (fitting_input, full_input):
                    annotations = operation.spec.annotations
                    place = f"{document.stem}: {annotations['method']} {annotations['path']} ({make.__name__})"
                    if crashes > MOST_CRASHES:
                        report.outcomes["not sent: prism crashes too often"] += 1
                        continue
                    sent.clear()
                    outcome = await _call(registry, operation, make)
                    if outcome.failed and mock.crashed():
                        crashes += 1
                        outcome = Outcome("prism crashed", reason=f"prism crashed: {_reason(mock.tail(3000))}")
                        mock.start()
                    elif outcome.kind == TIMED_OUT:
                        mock.start()  # it computes an example for minutes, and all later requests would wait
                    report.add(outcome, _rejection(place, operation, sent, notes.get(operation.id, ())))


def _rejection(place: str, operation: Operation[Any], sent: Sequence[HTTPRequest], notes: Sequence[str]) -> Rejection:
    if not sent:
        return Rejection(place, "")
    kinds = [value for name, value in sent[0].headers if name.lower() == "content-type"]
    body = sent[0].body if isinstance(sent[0].body, bytes) else b""
    return Rejection(place, "", " ".join(kinds), body, operation.spec.input_schema.document, notes)


def _reason(log: str) -> str:
    """Return the line of a log that says why prism ended."""
    lines = [line.strip() for line in log.splitlines() if re.search(r"Error\b", line)]
    return lines[-1][:160] if lines else log.strip()[-160:]


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
    return _read(envelope.meta.status_code, envelope.meta.headers, envelope.data)


def _read_error(error: CallError) -> Outcome:
    details = error.details if isinstance(error.details, dict) else {}
    if "statusCode" in details:
        return _read(details["statusCode"], details.get("headers", {}), details.get("body"))
    if error.code is ErrorCode.VALIDATION_ERROR:
        return Outcome("not sent: refused", reason=f"refused: {error.message[:160]}")
    return Outcome(f"failed: {error.code}", reason=f"{error.code}: {error.message[:160]}", failed=True)


def _read(status: int, headers: Mapping[str, str], body: Any) -> Outcome:
    problem = str(body.get("type", "")) if isinstance(body, dict) else ""
    kind = problem.rpartition("#")[2] if "stoplight.io/prism" in problem else ""
    causes = _violations(headers, body)
    if causes or kind in INVALID:
        return Outcome("judged invalid", causes or [f"{kind}: {str(body.get('detail'))[:160]}"])
    if kind in NO_RESPONSE:
        return Outcome("accepted, without a response to give")
    if kind:
        return Outcome(f"prism: {kind}", reason=f"prism: {kind}: {str(body.get('detail'))[:160]}")
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
    print(", ".join(f"{count} {outcome}" for outcome, count in report.outcomes.most_common()))
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
    parser.add_argument("-v", "--verbose", action="store_true", help="list calls that were not judged, too")
    args = parser.parse_args()
    logging.getLogger("operations").setLevel(logging.ERROR)
    total = Report()
    with tempfile.TemporaryDirectory() as scratch:
        for document in _documents(args.folder, Path(scratch), args.words):
            print(f"== {document.name}", flush=True)
            report = Report()
            try:
                asyncio.run(run_document(document, report))
            except (RuntimeError, CallError) as error:
                report.outcomes["document not run"] += 1
                print(f"  {error}")
            _print(report, verbose=args.verbose)
            total.extend(report)
    excuses = [excuse for rejection in total.invalid if (excuse := excuse_of(rejection)) is not None]
    print("== all documents")
    _print(total, verbose=False)
    for reason, count in Counter(f"{excuse.whose}: {excuse.reason}" for excuse in excuses).most_common():
        print(f"  {count:5} {reason}")
    return 1 if total.unexplained() else 0


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
