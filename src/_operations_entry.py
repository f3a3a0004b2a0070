"""Entry point of the installed commands `ops` and `operations`: Ctrl-C exits with 130 from the first line on.

This module is outside the package, because importing any module of the package imports its core, and an interrupt
during those imports prints a traceback or leaves a native module half-initialised. Interrupts before the first line
(during the interpreter's start or in the installer's script) cannot be handled here.
"""

# Only the native half of `signal`: the other half imports modules, and an interrupt during imports is a traceback.
import _signal  # type: ignore[import-not-found]
import os


def exit_immediately(number: int, frame: object) -> None:
    """Exit with 130, without cleanup.

    The handler is installed only at the start and at the end of the program, when nothing is open.
    """
    os._exit(130)


# SIGINT stays ignored if the parent process ignores it, as for a job in the background of a script.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, exit_immediately)


def program() -> None:
    """Run the command line."""
    from operations.cli.main import program as run

    run()
