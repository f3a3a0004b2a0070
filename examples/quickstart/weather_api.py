"""An HTTP API with a stream of events, on a loopback port: `python weather_api.py [--port 8765] [--idle 600]`.

Its OpenAPI document is weather.json. The server exits after `--idle` seconds without a request.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

CITIES = {"Rome": 24, "Oslo": 11, "Quito": 19}
SKIES = ("sunny", "cloudy", "rain")


class Weather(BaseHTTPRequestHandler):
    """Responds with forecasts, and streams measurements."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # the base class requires this name
        """Answer a GET."""
        self.server.asked = time.monotonic()
        address = urlsplit(self.path)
        kind, _, city = unquote(address.path).strip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        if kind == "openapi.json":
            self.answer(json.loads((Path(__file__).parent / "weather.json").read_text()))
        elif kind == "cities":
            self.answer(list(CITIES))
        elif kind in ("forecast", "watch") and city not in CITIES:
            self.answer({"message": f"no station in {city}; there are {', '.join(CITIES)}"}, HTTPStatus.NOT_FOUND)
        elif kind == "forecast":
            self.answer(forecast(city, int(query.get("days", "1"))))
        elif kind == "watch":
            self.stream(city, float(query.get("interval", "0.2")))
        else:
            self.answer({"message": "no such path"}, HTTPStatus.NOT_FOUND)

    def answer(self, data: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Answer with JSON."""
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Station", "quickstart")
        self.end_headers()
        self.wfile.write(body)

    def stream(self, city: str, interval: float) -> None:
        """Send events until the client disconnects."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for number in range(1, 100_000):
            data = json.dumps({"city": city, "celsius": CITIES[city] + number % 3})
            try:
                self.wfile.write(f"event: measurement\nid: {number}\ndata: {data}\n\n".encode())
            except OSError:
                return
            self.server.asked = time.monotonic()
            time.sleep(interval)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class Server(ThreadingHTTPServer):
    """The server, with the time of its last request."""

    daemon_threads = True
    asked = time.monotonic()


def forecast(city: str, days: int) -> dict[str, Any]:
    """Return the forecast of a city for the next days."""
    return {
        "city": city,
        "days": [{"sky": SKIES[(len(city) + day) % 3], "celsius": CITIES[city] + day % 4} for day in range(days)],
    }


def main() -> None:
    """Serve until no request has arrived for some time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--idle", type=float, default=600.0)
    options = parser.parse_args()
    server = Server(("127.0.0.1", options.port), Weather)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)

    def watch() -> None:
        while time.monotonic() - server.asked < options.idle:
            time.sleep(min(1.0, options.idle / 4))
        server.shutdown()

    threading.Thread(target=watch, daemon=True).start()
    server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
