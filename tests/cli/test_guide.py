"""The guide's pages on the command line and on scripts: their examples show the real output."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.driving import Project
from tests.ports import free_port

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "guide" / "command-line.md"
BOTH = PAGE.read_text() + PAGE.with_name("scripts.md").read_text()
COLUMNS = 96
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
CHANGING = (
    (re.compile(r"since \d{4}-\d\d-\d\d"), "since 2026-01-01"),
    (re.compile(r"\d+ ms|\d+\.\d s\b"), "12 ms"),
    (re.compile(r"\d\d:\d\d:\d\d"), "12:00:00"),
    (re.compile(r'("timestamp": )\d+'), r"\g<1>1790000000000"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:8765"),
    (re.compile(r'("date": )"[^"]*"'), r'\1"Thu, 01 Jan 2026 12:00:00 GMT"'),
    (re.compile(r'("server": )"[^"]*"'), r'\1"BaseHTTP/0.6"'),
    (re.compile(r"(✓ Python +)\S+"), r"\g<1>3.11.7"),
    (re.compile(r"^[-✓] extra (redis|nats).*(\n +fix: .*)?\n", re.M), ""),
    (re.compile(r"/\S*/quickstart/"), "/home/ada/quickstart/"),
)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A copy of the example, with its API running."""
    directory = tmp_path_factory.mktemp("guide") / "quickstart"
    shutil.copytree(ROOT / "examples" / "quickstart", directory, ignore=shutil.ignore_patterns("__pycache__"))
    project = Project(directory)
    project.environment["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    with subprocess.Popen(
        [sys.executable, directory / "weather_api.py", "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as api:
        assert api.stdout is not None
        project.environment["QUICKSTART_PORT"] = api.stdout.readline().strip().rpartition(":")[2]
        del project.environment["OPERATIONS_TRUST"]
        assert project.run("trust").code == 0
        yield project
        api.terminate()


def transcript(project: Project, command: str) -> str:
    """The output of a command, without parts that change from run to run."""
    with project.terminal("-c", command, program=["bash"], columns=COLUMNS, env={"NO_COLOR": "1"}) as terminal:
        terminal.end(timeout=60)
        lines = (line.rpartition("\r\x1b[K")[2].rstrip() for line in terminal.raw.replace("\r\n", "\n").split("\n"))
        return settle("\n".join(lines))


def settle(text: str) -> str:
    """A text without the parts that change from run to run."""
    for pattern, stable in CHANGING:
        text = pattern.sub(stable, text)
    return text.rstrip("\n")


def steps(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a block, each with its output."""
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


@pytest.mark.parametrize("block", BLOCK.findall(BOTH), ids=lambda block: block.split("\n")[0])
def test_the_pages_show_the_output_of_a_terminal(block: str, quickstart: Project) -> None:
    for command, shown in steps(block):
        assert transcript(quickstart, command) == settle(shown), command


def test_the_hub_commands_of_the_page_work(quickstart: Project) -> None:
    (script,) = (each for each in re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S) if "ops hub" in each)
    script = script.replace("8700", str(free_port()))
    done = quickstart.run("-c", f"{script}\ncode=$?; kill $(jobs -p); wait; exit $code", program=["bash"])
    assert done.code == 0, done.err
    assert done.out == '{"item":"tea","count":1,"total":2.5}\n'


def test_the_tour_of_make_run_succeeds() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart" / "tour.py"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for expected in (
        "shop  python",
        "text  mcp",
        "weather  openapi",
        '"operationId":"shop.quote"',
        '"structuredContent":{"words":6,"characters":28}',
        '"statusCode":200',
        '"Umbrella For Oslo"',
        '{"city":"Rome","celsius":26}',
        "ops call demo.start_api",
    ):
        assert expected in done.stdout
    assert "did you mean item?" in done.stderr


def serve_once(project: Project) -> None:
    """Start `ops serve` on a free port, and stop it once it listens."""
    with project.start("serve", "--http", "127.0.0.1:0", "--json") as process:
        assert process.stdout is not None
        assert b'"url"' in process.stdout.readline()
        process.terminate()
        assert process.wait(60) == 0


def test_the_commands_that_the_tour_suggests_work(quickstart: Project, tmp_path: Path) -> None:
    text = (ROOT / "examples" / "quickstart" / "tour.py").read_text()
    commands = re.findall(r'\("(ops [^"]*)", "', text.partition("def show_next")[2])
    assert len(commands) >= 5
    port = str(free_port())
    for command in commands:
        if command == "ops serve":
            serve_once(quickstart)
            continue
        command = command.replace("start_api", "start_api minutes=0.2").replace("city=Oslo", "city=Oslo --limit 1")
        done = quickstart.run("-c", command, program=["bash"], env={"QUICKSTART_PORT": port})
        assert done.code == 0, (command, done.err)


def test_the_demo_does_not_take_another_program_for_its_api(quickstart: Project) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        port = str(other.server_port)
        done = quickstart.run("call", "demo.start_api", env={"QUICKSTART_PORT": port})
        other.shutdown()
    assert done.code == 5
    assert f"another program uses port {port}: set QUICKSTART_PORT to another port" in done.err
