"""Runs the installed command, in a pipe and on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

OPS = str(Path(sys.executable).parent / "ops")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Stdout, parsed as JSON."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Stdout, each line parsed as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


class Project:
    """A directory with its own configuration and cache."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")},
            "XDG_CACHE_HOME": str(directory / ".cache"),
            "XDG_STATE_HOME": str(directory / ".state"),
            "OPERATIONS_TRUST": "1",  # trust has tests of its own, in tests/security
            "PATH": f"{Path(OPS).parent}{os.pathsep}{os.environ['PATH']}",
            "TERM": "xterm",
        }
        self.environment.pop("OPERATIONS_TOKEN", None)

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(
        self,
        *words: str,
        stdin: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = (OPS,),
        timeout: float = 60,
    ) -> Done:
        """Run a command in a pipe, to its end."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [*program, *words],
            input=given,
            capture_output=True,
            cwd=self.directory,
            env={**self.environment, **(env or {})},
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(
        self, *words: str, env: Mapping[str, str] | None = None, program: str = OPS, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a command in pipes."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([program, *words], cwd=self.directory, env={**self.environment, **(env or {})}, **pipes)

    def terminal(
        self, *words: str, columns: int = 100, env: Mapping[str, str] | None = None, program: Sequence[str] = (OPS,)
    ) -> Terminal:
        """Start a command on a terminal."""
        return Terminal([*program, *words], self.directory, {**self.environment, **(env or {})}, columns)


class Terminal:
    """A command on a pseudo-terminal: its output, and keys to press."""

    def __init__(self, command: Sequence[str], directory: Path, environment: Mapping[str, str], columns: int) -> None:
        self._controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.raw = ""
        self.process = subprocess.Popen(
            command,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=directory,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)

    @property
    def shown(self) -> str:
        """What was shown so far, without colours and cursor movements."""
        return _ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    def press(self, keys: str) -> None:
        """Press keys; `\\x03` is Ctrl-C."""
        os.write(self._controller, keys.encode())

    def hang_up(self) -> None:
        """Close the terminal, as when its window is closed."""
        os.close(self._controller)
        self._controller = -1

    def until(self, text: str, *, timeout: float = 30) -> str:
        """Read until a text is shown."""
        end = time.monotonic() + timeout
        while text not in self.shown:
            assert self._read(end), f"{text!r} was not shown, but: {self.shown}"
        return self.shown

    def end(self, *, timeout: float = 30) -> int:
        """Read to the end; the exit code."""
        end = time.monotonic() + timeout
        while self._read(end):
            pass
        return self.process.wait(max(0.1, end - time.monotonic()))

    def _read(self, end: float) -> bool:
        ready, _, _ = select.select([self._controller], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return False
        try:
            chunk = os.read(self._controller, 65_536)
        except OSError:
            return False  # what reading a terminal gives once its other end is closed
        self.raw += chunk.decode(errors="replace")
        return bool(chunk)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self._controller >= 0:
            os.close(self._controller)
