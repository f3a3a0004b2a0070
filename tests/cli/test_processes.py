"""`ops hub`, `spoke`, `worker`: the call protocol's processes, and calls through them."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from operations.calls import hub as hubs
from operations.cli.main import main
from tests.certificates import make_certificate
from tests.cli.conftest import OTHER
from tests.cli.driving import Project
from tests.ports import free_ports

pytestmark = pytest.mark.slow
TOKEN = {"OPERATIONS_TOKEN": "a-secret-of-the-test"}


def line_with(process: subprocess.Popen[bytes], text: str) -> str:
    """Read the output of a process until a line contains a text."""
    assert process.stderr is not None
    while line := process.stderr.readline().decode():
        if text in line:
            return line
    raise AssertionError(f"{text!r} was never said")


@contextlib.contextmanager
def running(
    project: Project, *words: str, said: str, env: Mapping[str, str] = TOKEN
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A long-running command, from its ready message until it is stopped."""
    process = project.start(*words, env=env, stdout=subprocess.DEVNULL)
    assert process.stderr is not None
    try:
        yield process, line_with(process, said)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()
            process.stderr.close()
            process.wait()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    directory = tmp_path / "hub"
    directory.mkdir()
    with running(Project(directory), "hub", "--port", "0", said="hub listening on") as (process, line):
        yield process, line.split()[4].rstrip(";")


def test_a_tls_handshake_that_ends_early_prints_no_traceback(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    config = f'[hub]\ntls = {{ certificate = "{certificate}", key = "{key}" }}\n'
    (tmp_path / "operations.toml").write_text(config)
    with running(Project(tmp_path), "hub", "--trust", "--port", "0", said="hub listening on") as (process, line):
        port = int(line.split()[4].rstrip(";/").rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port)).close()
        context = ssl.create_default_context(cafile=certificate)
        with socket.create_connection(("127.0.0.1", port)) as later:
            context.wrap_socket(later, server_hostname="127.0.0.1").close()  # the hub has handled the first one by now
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def test_a_spoke_offers_and_others_list_call_and_follow(
    hub: tuple[subprocess.Popen[bytes], str], project: Project, tmp_path: Path
) -> None:
    process, url = hub
    caller = Project(tmp_path / "caller")
    caller.directory.mkdir()
    with running(project, "spoke", "--url", url, said="serving") as (spoke, line):
        assert "serving 11 operations" in line
        line_with(process, "+ shop.ticks")
        assert caller.run("ls", "--url", url, env=TOKEN).out.startswith("other.double\tquery\t")
        done = caller.run("call", "shop.quote", "item=tea", "--url", url, env=TOKEN)
        assert done.data["total"] == 2.5
        missing = caller.run("call", "shop.qoute", "--url", url, env=TOKEN)
        assert missing.code == 3
        assert "did you mean shop.quote" in missing.err
        assert caller.run("call", "shop.fail", "--url", url, env=TOKEN).code == 5
        shown = caller.run("show", "shop.quote", "--url", url, "--json", env=TOKEN).data
        assert shown["inputSchema"]["required"] == ["item"]
        spoke.send_signal(signal.SIGTERM)
        line_with(spoke, "stopping")
        assert spoke.wait(30) == 0
        line_with(process, "- shop.ticks")
    gone = caller.run("call", "shop.quote", "item=tea", "--url", url, env=TOKEN)
    assert gone.code == 6


def test_a_call_with_a_timeout_waits_for_a_hub_that_is_still_starting(project: Project, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"ws://127.0.0.1:{port}/"
    directory = tmp_path / "hub"
    directory.mkdir()
    call = project.start("call", "shop.quote", "item=tea", "--url", url, "--timeout", "60", env=TOKEN)
    # A spoke reports that it is refused; without its time limit the call would have failed by then.
    with call, running(project, "spoke", "--url", url, said="refused") as (spoke, _):
        refused = project.run("call", "shop.quote", "item=tea", "--url", url, env=TOKEN)
        assert (refused.code, "or wait longer with --timeout" in refused.err) == (6, True)
        assert call.poll() is None
        with running(Project(directory), "hub", "--port", str(port), said="hub listening on"):
            line_with(spoke, "serving")
            out, err = call.communicate(timeout=60)
    assert (call.returncode, json.loads(out)["total"]) == (0, 2.5), err


def test_a_hub_that_loses_its_terminal_stops_normally(tmp_path: Path) -> None:
    with Project(tmp_path).terminal("hub", "--port", "0", env=TOKEN) as terminal:
        terminal.until("hub listening on")
        terminal.hang_up()
        assert terminal.process.wait(30) == 0


def test_a_repeated_signal_is_not_a_failure(hub: tuple[subprocess.Popen[bytes], str], project: Project) -> None:
    _, url = hub
    with (
        running(project, "spoke", "--url", url, said="serving") as (spoke, _),
        running(project, "hub", "--port", "0", said="hub listening on") as (other, _),
    ):
        for each in (spoke, other):
            for _ in range(3):
                each.send_signal(signal.SIGTERM)
            assert each.wait(30) == 0
            assert each.stderr is not None
            assert b"Traceback" not in each.stderr.read()


def test_a_second_signal_ends_running_calls_immediately(
    hub: tuple[subprocess.Popen[bytes], str], project: Project
) -> None:
    _, url = hub
    with running(project, "spoke", "--url", url, said="serving") as (spoke, _):
        call = project.start("call", "shop.slow", "seconds=60", "--url", url, env=TOKEN)
        while spoke.poll() is None:
            spoke.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                spoke.wait(1.1)
        assert spoke.returncode == 0
        assert spoke.stderr is not None
        assert b"Traceback" not in spoke.stderr.read()
        call.communicate(timeout=30)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_end_of_a_remote_stream_reaches_the_worker(
    number: signal.Signals, code: int, hub: tuple[subprocess.Popen[bytes], str], project: Project, tmp_path: Path
) -> None:
    _, url = hub
    closed = tmp_path / "closed"
    with running(project, "spoke", "--url", url, said="serving"):
        process = project.start("sub", "shop.ticks", f"closed={closed}", "--url", url, env=TOKEN)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"n": 0}
        assert not closed.exists()
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        assert process.returncode == code
        assert b"Traceback" not in err
        # The hub sends the abort to the worker immediately: a further call finds the file.
        assert project.run("call", "shop.quote", "item=tea", "--url", url, env=TOKEN).code == 0
        assert closed.read_text() == "closed"


def test_workers_may_share_operations_and_spokes_may_not(
    hub: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    _, url = hub
    project = Project(tmp_path / "workers")
    project.write("operations.toml", f'[sources.other]\npython = "./other"\n[transports.main]\nurl = "{url}"\n')
    project.write("other/numbers.py", OTHER)
    with (
        running(project, "worker", said="opening 1 source: other") as (worker, _),
        running(project, "worker", said="serving"),
    ):
        line_with(worker, "serving 1 operation;")
        assert project.run("call", "other.double", "value=2", "--url", "main", env=TOKEN).data == 4.0
        with running(project, "spoke", said="serving 0 of 1 operations"):
            pass


def test_a_spoke_reports_a_rejected_operation_once_and_then_its_acceptance(
    hub: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    _, url = hub
    project = Project(tmp_path / "spokes")
    project.write("operations.toml", f'[sources.other]\npython = "./other"\n[transports.main]\nurl = "{url}"\n')
    project.write("other/numbers.py", OTHER)
    rejected = "the hub rejected other.double: another spoke has registered it"
    with (
        running(project, "spoke", said="serving 1 operation;") as (first, _),
        running(project, "spoke", said=rejected) as (second, _),
    ):
        line_with(second, "serving 0 of 1 operations")
        first.terminate()
        line_with(second, "serving 1 operation;")
        second.terminate()
        _, err = second.communicate(timeout=30)
        assert b"rejected" not in err


def test_a_rejected_token_is_reported(hub: tuple[subprocess.Popen[bytes], str], project: Project) -> None:
    _, url = hub
    done = project.run("call", "shop.quote", "item=tea", "--url", url, env={"OPERATIONS_TOKEN": "wrong-token"})
    assert done.code == 4
    assert "wrong-token" not in done.err
    assert project.run("spoke", "--url", url).code == 4


def test_a_refused_connection_is_a_transport_failure(project: Project) -> None:
    done = project.run("call", "shop.quote", "--url", "ws://127.0.0.1:9/", env=TOKEN)
    assert done.code == 6
    assert "ws://127.0.0.1:9/" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["spoke"], "no transport selected"),
        (["spoke", "--url", "main"], "unknown transport 'main'"),
        (["call", "a.b", "--url", "ftp://x"], "'ftp://x' is not a valid address: unknown scheme 'ftp'"),
        (["call", "shop.quote", "--url", "ws://h:99999"], "'ws://h:99999' is not a valid address: invalid port 99999"),
        (["worker", "--url", "redis://[::1"], "'redis://[::1' is not a valid address: its IPv6 address"),
        (["worker", "--url", "nats://"], "'nats://' is not a valid address: it has no host"),
        (["spoke", "--url", "ws://"], "'ws://' is not a valid address: it has no host"),
        (["worker", "--url", "redis://127.0.0.1:9"], "pip install 'operations[redis]'"),
        (["worker", "--url", "nats://127.0.0.1:9"], "pip install 'operations[nats]'"),
        (["hub"], "no tokens configured"),
        (["hub", "--port", "99999"], "invalid --port '99999': expected a port number"),
    ],
)
def test_mistakes_are_reported(words: list[str], message: str, project: Project, blocked: list[str]) -> None:
    done = project.run("redis,nats,operations.pubsub.redis,operations.pubsub.nats", *words, program=blocked)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err


def test_missing_extras_are_named(project: Project, blocked: list[str]) -> None:
    for words in (["hub", "--port", "0"], ["spoke", "--url", "ws://127.0.0.1:9/"]):
        done = project.run("picows", *words, program=blocked, env=TOKEN)
        assert done.code == 2
        assert "pip install 'operations[ws]'" in done.err


def test_a_hub_has_the_limits_of_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}

    class Unwilling:
        def __init__(self, authenticator: object, **options: Any) -> None:
            made.update(options)

        async def start(self) -> None:
            raise OSError("enough was seen")

    monkeypatch.setattr(hubs, "Hub", Unwilling)
    table = '[hub]\nport = 0\nheartbeat = 3\nmax_payload = 1000\n[[hub.tokens]]\ntoken = "t"\nidentity = "ada"\n'
    path = Project(tmp_path).write("operations.toml", table)
    assert main(["hub", "--config", str(path)]) == 6
    assert (made["heartbeat"], made["max_payload"]) == (3.0, 1000)


def test_a_hub_accepts_the_tokens_of_its_configuration(tmp_path: Path, project: Project) -> None:
    directory = tmp_path / "configured"
    hub = Project(directory)
    hub.write(
        "operations.toml",
        "[hub]\nport = 0\n"
        '[[hub.tokens]]\ntoken = "${WORKER_TOKEN}"\nidentity = "worker"\nnamespaces = ["shop", "other"]\n'
        '[[hub.tokens]]\ntoken = "ada"\nidentity = "ada"\n',
    )
    hub.environment["WORKER_TOKEN"] = TOKEN["OPERATIONS_TOKEN"]
    with running(hub, "hub", said="hub listening on") as (_, line):
        url = line.split()[4].rstrip(";")
        with running(project, "spoke", "--url", url, said="serving"):
            done = project.run("call", "shop.quote", "item=tea", "--url", url, env={"OPERATIONS_TOKEN": "ada"})
            assert done.data["item"] == "tea"


def test_the_hub_reports_a_missing_scope_to_the_caller(tmp_path: Path) -> None:
    hub = Project(tmp_path / "hub")
    hub.write(
        "operations.toml",
        '[hub]\nport = 0\n[[hub.tokens]]\ntoken = "worker"\nidentity = "worker"\nnamespaces = ["t"]\n'
        '[[hub.tokens]]\ntoken = "ada"\nidentity = "ada"\n[sources.t]\npython = "./code"\n',
    )
    hub.write(
        "code/t.py",
        "from operations import AccessControl, operation\n"
        '@operation(access_control=AccessControl(required_scopes=("t:write",)))\n'
        "async def denied(text: str) -> str: return text\n"
        '@operation(access_control=AccessControl(required_scopes=("t:write",)))\n'
        "async def ticks():\n    yield 1\n",
    )
    assert hub.run("ls").code == 0
    ada = {"OPERATIONS_TOKEN": "ada"}
    with running(hub, "hub", said="hub listening on") as (_, line):
        url = line.split()[4].rstrip(";")
        hub.write("token", "worker")
        with running(hub, "spoke", "--url", url, "--token-file", "token", said="serving 2 operations"):
            denied = hub.run("call", "t.denied", "text=x", "--url", url, env=ada)
            assert denied.code == 4
            assert "error: 'ada' may not call t.denied: missing scope t:write" in denied.err
            assert hub.run("sub", "t.ticks", "--url", url, env=ada).code == 4
            missing = hub.run("call", "t.nothing", "--url", url, env=ada)
            assert missing.code in (3, 6)
            assert "did you mean" not in missing.err
            listed = hub.run("ls", "--url", url, env=ada)
            assert (listed.code, listed.out) == (6, "")
            assert f"error: no operations that this caller may call at {url}" in listed.err
            assert "check the scopes of the token" in listed.err
            refused = hub.run("call", "t.denied", "--url", url, env={"OPERATIONS_TOKEN": "nobody"})
            assert refused.code == 4
            assert "source" not in refused.err
            assert "OPERATIONS_TOKEN" in refused.err


def test_credentials_in_an_address_are_not_shown(project: Project) -> None:
    done = project.run("call", "shop.quote", "--url", "ws://ada:s3cret-word@127.0.0.1:9/?token=s3cret-word")
    assert done.code in (2, 6)
    assert "s3cret-word" not in done.err
    assert "s3cret-word" not in project.run("spoke", "--url", "ftp://ada:s3cret-word@host").err


def test_a_worker_logs_a_failing_handler_once_as_json_and_audits_it(
    hub: tuple[subprocess.Popen[bytes], str], project: Project, tmp_path: Path
) -> None:
    _, url = hub
    audit = tmp_path / "audit.jsonl"
    words = ["spoke", "--url", url, "--log-format", "json", "--audit-log", str(audit)]
    with running(project, *words, said="serving") as (spoke, _):
        assert project.run("call", "shop.crash", "--url", url, env=TOKEN).code == 5
        assert project.run("call", "shop.quote", "item=tea", "--url", url, env=TOKEN).code == 0
        spoke.send_signal(signal.SIGTERM)
        assert spoke.stderr is not None
        lines = spoke.stderr.read().decode().splitlines()
    logged = [json.loads(line) for line in lines]
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, logged))
    assert [record["message"] for record in logged if record.get("event") == "stopping"]
    (failure,) = [record for record in logged if "traceback" in record]
    assert "RuntimeError: a bug" in failure["traceback"]
    assert (failure["operation"], failure["level"], failure["logger"]) == ("shop.crash", "ERROR", "operations")
    audited = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["operation"], line["outcome"]) for line in audited] == [
        ("shop.crash", "EXECUTION_ERROR"),
        ("shop.quote", "ok"),
    ]
    assert audited[0]["request_id"] == failure["request_id"]
    assert audited[0]["caller"] == "operator"


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_every_line_on_stderr_is_a_log_record_if_the_format_is_json(project: Project, more: list[str]) -> None:
    project.write(
        "other/chatty.py", "import logging\nprint('loaded')\nlogging.getLogger('chatty').warning('careful')\n"
    )
    words = ["spoke", "--url", "ws://127.0.0.1:9", "--log-format", "json", "--audit-log", "missing/audit.jsonl"]
    done = project.run(*words, *more)
    assert done.code == 2
    records = [json.loads(line) for line in done.err.splitlines()]
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, records))
    found = {(record["level"], record["logger"], record["message"].split(":")[0]) for record in records}
    assert {
        ("INFO", "output", "loaded"),
        ("WARNING", "chatty", "careful"),
        ("ERROR", "operations", "the audit log cannot be opened"),
    } <= found
    assert more or [record["event"] for record in records if "event" in record] == ["opening"]


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_hub_and_spoke_serve_their_health(tmp_path: Path, project: Project) -> None:
    folder = tmp_path / "hub"
    folder.mkdir()
    words = ["hub", "--port", "0", "--health", "0"]
    with running(Project(folder), *words, said="health is at") as (process, line):
        hub_health = line.split()[-1]
        url = line_with(process, "hub listening on").split()[4].rstrip(";")
        assert fetched(f"{hub_health}/readyz") == (200, "ready\n")
        with running(project, "spoke", "--url", url, "--health", "0", said="health is at") as (spoke, line):
            health = line.split()[-1]
            assert fetched(f"{health}/healthz") == (200, "ok\n")
            line_with(spoke, "serving")
            assert fetched(f"{health}/readyz") == (200, "ready\n")
            assert project.run("call", "shop.quote", "item=tea", "--url", url, env=TOKEN).code == 0
            text = fetched(f"{health}/metrics")[1]
            assert 'operations_calls_total{operation="shop.quote",kind="served",outcome="ok"} 1' in text
            assert "operations_hub_peers 1" in fetched(f"{hub_health}/metrics")[1]
            process.kill()
            line_with(spoke, "disconnected")
            assert fetched(f"{health}/readyz") == (503, "not connected\n")
            assert fetched(f"{health}/healthz")[0] == 200


def test_an_address_in_use_is_reported(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = project.run("worker", "--url", "memory:", "--health", str(port))
        hub = project.run("hub", "--port", str(port), env=TOKEN)
        served = project.run("serve", "--http", str(port))
    in_use = f"cannot listen on 127.0.0.1:{port}: Address already in use"
    assert done.code == 2
    assert f"error: --health {in_use}" in done.err
    assert f"error: {in_use}" in hub.err
    assert f"error: cannot listen on {port}: Address already in use" in served.err
    assert project.run("worker", "--health", "nowhere").code == 2
