"""Where the installed commands `ops` and `operations` start: Ctrl-C ends them with 130 from the first line on.

It stands outside the package because importing a part of that imports all of its core, and an interrupt in the middle
of those imports is a traceback, or worse where a native module is being made. What comes before this first line, the
interpreter's own start and the script that an installer writes, is not ours.
"""

# The native half of `signal`: the other half is imports, and an interrupt during those is a traceback.
import _signal  # type: ignore[import-not-found]
import os


def end_at_once(number: int, frame: object) -> None:
    """Nothing is open yet, or any more: end."""
    os._exit(130)


# Where it is ignored (a job in the background of a script) it stays so.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, end_at_once)


def program() -> None:
    """Run the command line."""
    from operations.cli.main import program as run

    run()
