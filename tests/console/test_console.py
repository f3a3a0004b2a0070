"""The console in a real Chromium, on a real registry: one walk through it, with checks of what the page shows."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.documents import any_github

ROOT = Path(__file__).parent.parent.parent
ASSETS = ROOT / "src" / "operations" / "serving" / "console" / "assets"
NODE = ROOT / "tests" / "node" / "node_modules"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class _Server:
    """The demo of the console, in a process that can be stopped and started again at the same address."""

    def __init__(self, document: Path) -> None:
        self._document = document
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        command = [sys.executable, "-m", "examples.console", "--address", f"127.0.0.1:{self._port}"]
        command += ["--document", str(self._document)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = json.loads(self._process.stdout.readline())["url"]

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@contextlib.contextmanager
def serving() -> Iterator[_Server]:
    server = _Server(any_github())
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _walk(server: _Server, node: str) -> dict[str, Any]:
    """Run the walk; it requests that the server is stopped and started."""
    command = [node, str(ROOT / "tests" / "console" / "walk.mjs"), server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as walk:
        assert walk.stdin is not None
        assert walk.stdout is not None
        for line in walk.stdout:
            said = json.loads(line)
            if "stop" in said:
                server.stop()
            elif "start" in said:
                server.start()
                walk.stdin.write("started\n")
                walk.stdin.flush()
            else:
                return dict(said["report"])
    raise AssertionError("the walk ended without a report")


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """The results of the walk."""
    node = shutil.which("node")
    if node is None or not (NODE / "axe-core").exists():
        pytest.skip("the browser is not installed: `make test` does it, or `npm ci` in tests/node")
    if not (ASSETS / "index.html").exists():
        pytest.skip("the console is not built: `make console` does it")
    with serving() as server:
        report = _walk(server, node)
        assert "failed" not in report, report["failed"]
        assert report["hosts"] == [urlsplit(server.url).netloc]
        return report


def test_the_page_logs_no_error(seen: dict[str, Any]) -> None:
    assert seen["errors"] == []


def test_axe_finds_no_serious_problem(seen: dict[str, Any]) -> None:
    assert seen["axe"] == []


def test_controls_are_large_enough_to_touch(seen: dict[str, Any]) -> None:
    assert seen["small"] == {}


def test_a_wrong_token_is_refused_and_a_right_one_signs_in(seen: dict[str, Any]) -> None:
    assert seen["refusal"] == "The server does not accept this token."
    paths = json.loads(any_github().read_bytes())["paths"].values()
    in_document = sum(1 for path in paths for operation in path.values() if "operationId" in operation)
    assert int(seen["operations"].replace(",", "")) > in_document


def test_an_operation_of_github_is_found_by_typing(seen: dict[str, Any]) -> None:
    assert seen["found"][0] == seen["opened"] == "github.issues/create-comment"
    assert [name.split()[0] for name in seen["preview"]] == ["owner", "repo", "issue_number", "body"]


def test_a_nested_form_is_filled_in_and_run(seen: dict[str, Any]) -> None:
    assert seen["orderOutcome"] == "ok"
    order = " ".join(seen["order"]).replace("\n", "")
    assert 'city: "Oslo"' in order
    assert 'paid: "invoice"' in order
    assert {"source", "operationId", "requestId"} <= set(seen["meta"])
    assert seen["code"].startswith("ops call shop.order lines:=")
    assert json.loads(seen["editor"])["payment"] == {"kind": "invoice", "due": "2026-12-24"}
    assert seen["brokenJson"].startswith("JSON has an error at 15:2")


def test_another_form_of_a_union_keeps_equal_fields_and_the_first_one_its_values(seen: dict[str, Any]) -> None:
    assert seen["union"] == ["R1", "12345678", "2026-12-24"]


def test_run_focuses_the_first_field_with_a_problem(seen: dict[str, Any]) -> None:
    assert seen["firstProblem"] == "field:/flag"
    assert seen["segmented"] == "radiogroup"


def test_an_empty_text_looks_different_from_an_absent_one(seen: dict[str, Any]) -> None:
    assert seen["removable"] == ['""', 1]


def test_a_link_has_the_input_without_secrets(seen: dict[str, Any]) -> None:
    assert json.loads(seen["link"]) == {"fixed": "always", "point": ["a", 2], "tree": {}, "name": "", "few": "a"}


def test_long_texts_are_shown_whole_and_single_values_are_copied(seen: dict[str, Any]) -> None:
    assert seen["longText"] == 3_000
    assert seen["plainActions"] == ["Copy", "Download"]


def test_numbers_keep_their_digits_in_the_history(seen: dict[str, Any]) -> None:
    assert seen["digits"] == "12345678901234567890"


def test_an_error_of_a_tool_is_shown_with_its_blocks(seen: dict[str, Any]) -> None:
    assert seen["toolOutcome"] == "failed"
    assert seen["toolBlocks"] == ["text", "image", "audio", "resource_link"]


def test_the_editor_folds_and_marks_errors(seen: dict[str, Any]) -> None:
    assert seen["brokenJson"].endswith(seen["brokenMark"])
    assert seen["folded"]
    assert seen["typedOver"] == "["
    assert seen["marked"] == "1"


def test_each_kind_of_schema_has_its_control(seen: dict[str, Any]) -> None:
    controls = {name: [kind.strip() for kind in kinds] for name, kinds in seen["controls"].items()}
    assert controls.pop("tree")[0] == "input text"
    assert controls == {
        **{name: ["input text"] for name in ("name", "mail", "page", "key", "nullable", "old")},
        **{name: ["input"] for name in ("x", "y", "amount", "words")},
        **{name: ["radiogroup"] for name in ("maybe", "few")},
        **{name: ["button button"] for name in ("deep", "rows")},
        "below": ["input text", "button button"],
        "body": ["textarea"],
        "day": ["input date"],
        "moment": ["input datetime-local", "select"],
        "time": ["input time", "select"],
        "secret": ["input password"],
        "flag": ["input checkbox"],
        "some": ["select"],
        "many": ["input list"],
        "fixed": ["output"],
        "picks": ["input checkbox", "input checkbox"],
        "point": ["input", "input"],
        "choice": ["radiogroup", "input text"],
        "both": ["button button", "button button"],
        "labels": ["input", "button button"],
        "file": ["input file"],
        "anything": ["editor"],
    }
    assert seen["optional"][-1] == "old"


def test_json_is_typed_into_a_field_and_a_file_is_dropped_on_one(seen: dict[str, Any]) -> None:
    assert seen["sent"]["anything"] == {"a": 1}
    assert seen["sent"]["file"] == {"$bytes": base64.b64encode(b"from a file").decode()}


def test_a_file_that_is_dropped_beside_its_field_is_not_opened(seen: dict[str, Any]) -> None:
    assert seen["droppedBeside"] == {"dragover": True}  # no drop follows


def test_run_refuses_text_that_is_not_json_and_focuses_it(seen: dict[str, Any]) -> None:
    outcomes, bar = seen["brokenField"]
    assert outcomes == 0
    assert "1 problem" in bar
    assert "Send anyway" not in bar
    assert seen["brokenText"] == ["}x", 0]
    assert seen["brokenCode"] == ["The input has text that is not JSON.", True, True]


def test_run_sends_what_is_in_the_field_that_has_the_focus(seen: dict[str, Any]) -> None:
    assert seen["sentLast"] == [["two words"], False]


def test_a_narrow_window_shows_fewer_calls_and_cuts_none(seen: dict[str, Any]) -> None:
    inside, outside, drawn = seen["chips"]
    assert inside == 2
    assert inside + outside == drawn == 3


def test_every_key_has_the_effect_that_the_help_lists(seen: dict[str, Any]) -> None:
    assert seen["visited"] == {"c": "calls", "w": "workers", "j": "jobs", "m": "metrics", "o": ""}
    assert seen["letterInField"] == "e"
    assert seen["resultTabs"] == ["Meta", "Raw", "Declared / got", "Data"]
    assert seen["folding"] == ["ArrowLeft", "ArrowRight"]
    assert seen["switchedOff"] == [0, "op/shop.quote"]


def test_a_validation_error_is_shown_at_its_field_with_the_servers_message(seen: dict[str, Any]) -> None:
    assert 'missing required property "street"' in seen["missing"]
    assert seen["focused"] == "field:/address/street"
    assert seen["said"] == "20001 is greater than the maximum of 20000"
    assert seen["refusedOutcome"] == "failed"
    assert seen["refused"] == "invalid input for shop.stock"
    assert seen["refusedField"] == seen["said"]


def test_an_upstream_404_is_shown_with_its_body(seen: dict[str, Any]) -> None:
    assert (seen["upstreamOutcome"], seen["upstreamStatus"]) == ("failed", "404")
    assert "Not Found" in seen["upstreamBody"]


def test_data_is_a_table_an_image_or_blocks_and_never_runs(seen: dict[str, Any]) -> None:
    assert seen["sorted"] == "0"
    assert seen["image"] == 8
    assert seen["blocks"] == ["text", "image", "audio", "resource_link"]
    assert seen["script"] == 0
    assert seen["audio"] == 0.5


def test_two_calls_are_compared(seen: dict[str, Any]) -> None:
    changed = {"input.item changed", "data.item changed", "data.total changed"}
    assert changed <= set(seen["differences"])
    assert changed <= set(seen["recorded"])  # of the server's records, with an empty history


def test_a_stream_is_followed_paused_and_filtered(seen: dict[str, Any]) -> None:
    assert seen["frozen"]
    assert all(celsius >= 14 for celsius in seen["filtered"])
    assert {"source", "received"} <= set(seen["event"])
    assert "the thermometer fell down" in seen["broken"]


def test_a_stream_resumes_after_its_connection_is_lost(seen: dict[str, Any]) -> None:
    assert seen["resumedGaps"] == "0 gaps"
    numbers = seen["resumedNumbers"]
    assert len(numbers) > 10
    assert numbers == list(range(numbers[0], numbers[-1] - 1, -1))


def test_the_server_reports_the_values_that_it_normalised(seen: dict[str, Any]) -> None:
    assert seen["differs"].startswith("2 values differ from the declared schema and were cast or kept: /one")
    assert seen["declared"] == [
        '/one\tinteger\t"1"\tcast: 1',
        '/two\tinteger\t"two"\tkept as it is ("two" is not an integer)',
    ]


def test_jobs_are_listed_with_their_progress_and_retried_and_cancelled(seen: dict[str, Any]) -> None:
    assert seen["noJobs"].startswith("There are no jobs.")
    assert seen["jobStates"] == "1 done, 1 failed, 1 running"
    assert "PRINTER_JAM" in seen["failedJob"]
    assert "the printer has a paper jam" in seen["failedJob"]
    assert seen["nothingChosen"]
    assert seen["doneJob"] == [True, True]
    assert seen["finalStates"] == "1 cancelled, 1 done, 1 failed"
    assert seen["onlyCancelled"] == 1


def test_markup_of_operations_results_and_errors_stays_text(seen: dict[str, Any]) -> None:
    assert seen["attacked"] == []
    assert seen["markupOutcome"] == "ok"
    assert "<script>" in seen["markupData"]
    assert seen["markupError"].startswith("<img src=x")


def test_operations_are_filtered_by_scope(seen: dict[str, Any]) -> None:
    assert seen["scoped"] == ["shop.clear"]
    assert seen["scopeAddress"] == "?scope=admin"


def test_a_slow_call_is_cancelled(seen: dict[str, Any]) -> None:
    assert seen["cancelled"] == "cancelled"


def test_a_nested_call_is_watched_across_two_workers(seen: dict[str, Any]) -> None:
    assert {"travel-1", "weather-1", "failed", "queued"} <= set(seen["workers"])
    assert {"shop.restock", "travel.plan", "text.headline"} <= set(seen["spans"])
    assert seen["log"] == len(seen["spans"])
    assert seen["queued"] == "all 2 slots of weather-1 were busy"
    assert seen["unread"] == ["not read by the hub"] * 2
    assert {"travel-1", "weather-1"} <= set(seen["workerRows"])


def test_equal_calls_of_a_long_trace_are_one_row_that_unfolds(seen: dict[str, Any]) -> None:
    assert seen["foldedTrace"] == ["shop.prices", "shop.quote \N{MULTIPLICATION SIGN} 600"]
    assert 2 < seen["drawnRows"] < 60
    assert 100 < seen["logRows"] < 601


def test_charts_have_room_for_the_last_time_and_a_table(seen: dict[str, Any]) -> None:
    assert seen["chartRoom"] >= 24
    assert seen["figures"] == ["Time", "Ok/s", "Failed/s", "p50", "p95", "p99", "In flight", "Queued"]


def test_everything_can_be_reached_at_a_zoom_of_400_percent(seen: dict[str, Any]) -> None:
    assert {path: cut for path, (_, cut) in seen["zoomed"].items() if cut} == {}
    assert {width for width, _ in seen["zoomed"].values()} == {320}


def test_a_phone_needs_no_sideways_scrolling(seen: dict[str, Any]) -> None:
    assert seen["phone"] == 360
    assert seen["phoneWorker"] == ["weather-1"]


def test_a_destructive_operation_is_confirmed_and_each_press_has_its_own_key(seen: dict[str, Any]) -> None:
    assert seen["unconfirmed"] == [0, 0]
    assert seen["keys"] == [2, 2]


def test_a_refused_token_leaves_the_form_as_it_is(seen: dict[str, Any]) -> None:
    assert seen["keptForm"] == "candle"


def test_an_interrupted_call_may_have_run(seen: dict[str, Any]) -> None:
    assert seen["interrupted"][:2] == ["UNAVAILABLE", "it may have run"]


def test_the_input_can_be_edited_without_the_editor(seen: dict[str, Any]) -> None:
    assert seen["withoutEditor"] == "rope"


def test_the_page_survives_a_restart_of_the_server(seen: dict[str, Any]) -> None:
    assert seen["lost"].startswith("Connection lost, retrying in")
    assert seen["runDisabled"]
    assert (seen["kept"], seen["afterRestart"]) == ("lamp", "ok")


def test_an_identity_without_rights_sees_less(seen: dict[str, Any]) -> None:
    shown = {line.split("\n")[0] for line in seen["guestNav"]}
    assert "Operations" in shown
    assert not shown & {"Workers", "Metrics", "Audit"}
    assert "unknown, or not allowed" in seen["guestLink"]


def test_a_page_of_another_origin_reads_nothing(seen: dict[str, Any]) -> None:
    assert seen["readElsewhere"] == []


def test_signing_out_leaves_nothing_of_an_identity_in_the_browser(seen: dict[str, Any]) -> None:
    assert (seen["guestForm"], seen["guestResult"], seen["guestHistory"], seen["guestPins"]) == ("", 0, 0, "[]")
    assert not any("gold" in row or "shop.slow" in row for row in seen["guestCalls"])
