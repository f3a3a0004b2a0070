"""`ops hub`, `spoke`, `worker`: the call protocol's processes, and calls through them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from operations.calls import hub as hubs
from operations.cli.main import main
from tests.cli.conftest import OTHER
from tests.cli.driving import Project

pytestmark = pytest.mark.slow
TOKEN = {"OPERATIONS_TOKEN": "a-secret-of-the-test"}


def line_with(process: subprocess.Popen[bytes], text: str) -> str:
    """Read what a process says until a line has a text."""
    assert process.stderr is not None
    while line := process.stderr.readline().decode():
        if text in line:
            return line
    raise AssertionError(f"{text!r} was never said")


@contextlib.contextmanager
def running(project: Project, *words: str, said: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A long-running command, from the line it says when it is ready until it was told to stop."""
    process = project.start(*words, env=TOKEN, stdout=subprocess.DEVNULL)
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
    folder = tmp_path / "hub"
    folder.mkdir()
    with running(Project(folder), "hub", "--port", "0", said="the hub is at") as (process, line):
        yield process, line.split()[5].rstrip(";")


def test_a_spoke_offers_and_others_list_call_and_follow(
    hub: tuple[subprocess.Popen[bytes], str], project: Project, tmp_path: Path
) -> None:
    process, url = hub
    caller = Project(tmp_path / "caller")
    caller.folder.mkdir()
    with running(project, "spoke", "--url", url, said="offering") as (spoke, line):
        assert "offering 11 operations" in line
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


def test_a_hub_that_loses_its_terminal_stops_as_it_should(tmp_path: Path) -> None:
    with Project(tmp_path).terminal("hub", "--port", "0", env=TOKEN) as terminal:
        terminal.until("the hub is at")
        terminal.hang_up()
        assert terminal.process.wait(30) == 0


def test_a_signal_that_comes_twice_is_no_failure(hub: tuple[subprocess.Popen[bytes], str], project: Project) -> None:
    _, url = hub
    with (
        running(project, "spoke", "--url", url, said="offering") as (spoke, _),
        running(project, "hub", "--port", "0", said="the hub is at") as (other, _),
    ):
        for each in (spoke, other):
            for _ in range(3):
                each.send_signal(signal.SIGTERM)
            assert each.wait(30) == 0
            assert each.stderr is not None
            assert b"Traceback" not in each.stderr.read()


def test_a_second_signal_ends_what_still_runs_at_once(
    hub: tuple[subprocess.Popen[bytes], str], project: Project
) -> None:
    _, url = hub
    with running(project, "spoke", "--url", url, said="offering") as (spoke, _):
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
def test_the_end_of_a_remote_stream_is_told_to_the_other_side(
    number: signal.Signals, code: int, hub: tuple[subprocess.Popen[bytes], str], project: Project, tmp_path: Path
) -> None:
    _, url = hub
    closed = tmp_path / "closed"
    with running(project, "spoke", "--url", url, said="offering"):
        process = project.start("sub", "shop.ticks", f"closed={closed}", "--url", url, env=TOKEN)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"n": 0}
        assert not closed.exists()
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        assert process.returncode == code
        assert b"Traceback" not in err
        # Through the hub the worker hears of it at once: a further call finds the file there.
        assert project.run("call", "shop.quote", "item=tea", "--url", url, env=TOKEN).code == 0
        assert closed.read_text() == "closed"


def test_workers_share_what_spokes_may_not(hub: tuple[subprocess.Popen[bytes], str], tmp_path: Path) -> None:
    _, url = hub
    project = Project(tmp_path / "workers")
    project.write("operations.toml", f'[sources.other]\npython = "./other"\n[transports.main]\nurl = "{url}"\n')
    project.write("other/numbers.py", OTHER)
    with running(project, "worker", said="offering 1 operation;"), running(project, "worker", said="offering"):
        assert project.run("call", "other.double", "value=2", "--url", "main", env=TOKEN).data == 4.0
        with running(project, "spoke", said="offering") as (spoke, _):
            line_with(spoke, "other.double was refused")


def test_who_may_not_dial_in_is_told(hub: tuple[subprocess.Popen[bytes], str], project: Project) -> None:
    _, url = hub
    done = project.run("call", "shop.quote", "item=tea", "--url", url, env={"OPERATIONS_TOKEN": "wrong-token"})
    assert done.code == 4
    assert "wrong-token" not in done.err
    assert project.run("spoke", "--url", url).code == 4


def test_nobody_there_is_a_transport_failure(project: Project) -> None:
    done = project.run("call", "shop.quote", "--url", "ws://127.0.0.1:9/", env=TOKEN)
    assert done.code == 6
    assert "ws://127.0.0.1:9/" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["spoke"], "where to? no transport is named"),
        (["spoke", "--url", "main"], "'main' is no transport of the configuration"),
        (["call", "a.b", "--url", "ftp://x"], "'ftp://x' is no address: 'ftp' is not a transport's scheme"),
        (["call", "shop.quote", "--url", "ws://h:99999"], "'ws://h:99999' is no address: the port 99999"),
        (["worker", "--url", "redis://[::1"], "'redis://[::1' is no address: the bracket"),
        (["worker", "--url", "nats://"], "'nats://' is no address: it names no host"),
        (["spoke", "--url", "ws://"], "'ws://' is no address: it names no host"),
        (["worker", "--url", "redis://127.0.0.1:9"], "pip install 'operations[redis]'"),
        (["worker", "--url", "nats://127.0.0.1:9"], "pip install 'operations[nats]'"),
        (["hub"], "the hub knows no tokens"),
        (["hub", "--port", "99999"], "--port: '99999' is not a port"),
    ],
)
def test_mistakes_are_told(words: list[str], message: str, project: Project, blocked: list[str]) -> None:
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


def test_a_hub_knows_the_tokens_of_its_configuration(tmp_path: Path, project: Project) -> None:
    folder = tmp_path / "configured"
    hub = Project(folder)
    hub.write(
        "operations.toml",
        "[hub]\nport = 0\n"
        '[[hub.tokens]]\ntoken = "${WORKER_TOKEN}"\nidentity = "worker"\nnamespaces = ["shop", "other"]\n'
        '[[hub.tokens]]\ntoken = "ada"\nidentity = "ada"\n',
    )
    hub.environment["WORKER_TOKEN"] = TOKEN["OPERATIONS_TOKEN"]
    with running(hub, "hub", said="the hub is at") as (_, line):
        url = line.split()[5].rstrip(";")
        with running(project, "spoke", "--url", url, said="offering"):
            done = project.run("call", "shop.quote", "item=tea", "--url", url, env={"OPERATIONS_TOKEN": "ada"})
            assert done.data["item"] == "tea"


def test_a_caller_without_the_scope_is_told_by_the_hub(tmp_path: Path) -> None:
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
    with running(hub, "hub", said="the hub is at") as (_, line):
        url = line.split()[5].rstrip(";")
        hub.write("token", "worker")
        with running(hub, "spoke", "--url", url, "--token-file", "token", said="offering 2 operations"):
            denied = hub.run("call", "t.denied", "text=x", "--url", url, env=ada)
            assert denied.code == 4
            assert "error: 'ada' may not call t.denied: missing scope t:write" in denied.err
            assert hub.run("sub", "t.ticks", "--url", url, env=ada).code == 4
            missing = hub.run("call", "t.nothing", "--url", url, env=ada)
            assert missing.code in (3, 6)
            assert "did you mean" not in missing.err
            refused = hub.run("call", "t.denied", "--url", url, env={"OPERATIONS_TOKEN": "nobody"})
            assert refused.code == 4
            assert "source" not in refused.err
            assert "OPERATIONS_TOKEN" in refused.err


def test_credentials_in_an_address_are_not_shown(project: Project) -> None:
    done = project.run("call", "shop.quote", "--url", "ws://ada:s3cret-word@127.0.0.1:9/?token=s3cret-word")
    assert done.code in (2, 6)
    assert "s3cret-word" not in done.err
    assert "s3cret-word" not in project.run("spoke", "--url", "ftp://ada:s3cret-word@host").err
