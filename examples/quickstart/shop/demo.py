"""An operation that starts the HTTP API of this example."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

from operations import CallError, operation

API = Path(__file__).parent.parent / "weather_api.py"


@operation(id="demo.start_api")
def start_api(minutes: float = 10.0) -> dict[str, str]:
    """Start the weather API in the background; it exits after some minutes without a request.

    Args:
        minutes: time without a request after which the API exits
    """
    port = int(os.environ.get("QUICKSTART_PORT", "8765"))
    url = f"http://127.0.0.1:{port}"
    if answers(port):
        return {"url": url, "state": "the API is already running"}
    subprocess.Popen(
        [sys.executable, str(API), "--port", str(port), "--idle", str(minutes * 60)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for _ in range(100):
        if answers(port):
            return {"url": url, "state": f"the API exits after {minutes:g} minutes without a request"}
        time.sleep(0.05)
    raise CallError("NOT_STARTED", f"the API did not start on port {port}: set QUICKSTART_PORT to another port")


def answers(port: int) -> bool:
    """Whether the weather API responds at a port; raise an error if another program does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/cities", timeout=1) as response:
            station = response.headers["X-Station"]
    except (urllib.error.HTTPError, HTTPException):
        station = None
    except OSError:
        return False
    if station != "quickstart":
        raise CallError("NOT_STARTED", f"another program uses port {port}: set QUICKSTART_PORT to another port")
    return True
