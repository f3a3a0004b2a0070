"""The examples run, as a newcomer would run them."""

import json
import os
import pty
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_first_steps_show_every_kind_of_call() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "first_steps.py"], capture_output=True, text=True, check=True, timeout=60
    )
    for expected in (
        '"operationId":"shop.stock"',
        '{"item":"tea","count":2,"left":10}',
        "Order(item='honey'",
        '"left":8',
        "/count",
        "OUT_OF_STOCK",
        "docs/guide",
    ):
        assert expected in done.stdout
    assert done.stderr == ""
    assert "\x1b[" not in done.stdout


def test_the_first_steps_are_in_colour_on_a_terminal() -> None:
    controller, terminal = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen([sys.executable, EXAMPLES / "first_steps.py"], stdout=terminal, env=environment)
    os.close(terminal)
    shown = b""
    try:
        while chunk := os.read(controller, 65_536):
            shown += chunk
    except OSError:
        pass  # what reading a terminal gives once its other end is closed
    assert process.wait(30) == 0
    os.close(controller)
    assert b"\x1b[36m" in shown


def test_the_demo_of_the_console_serves_workers_and_local_operations() -> None:
    command = [sys.executable, "-m", "examples.console", "--address", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=EXAMPLES.parent, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        headers = {"authorization": f"Bearer {started['tokens']['operator']}"}
        asked = urllib.request.Request(f"{started['url']}api/catalogue", headers=headers)
        with urllib.request.urlopen(asked, timeout=30) as response:
            listed = {each["id"] for each in json.loads(response.read())["operations"]}
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert {"shop.restock", "travel.plan", "weather.forecast", "shop.temperatures"} <= listed
