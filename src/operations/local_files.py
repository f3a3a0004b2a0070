"""Local files: reading a file that another person may have made, and replacing a file atomically."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 32 << 20
"""Default limit of `read_regular`, larger than any file that a person writes."""


def read_regular(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most `most` bytes; raise `OSError` for any other file.

    Reading a device or a pipe may never end. A sparse file takes no space, but its content would fill the memory.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is a device or a pipe")
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes")
    return content


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; if the file is a pipe, do not wait for a process that writes to the pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def write_atomically(path: Path, content: bytes, *, is_private: bool = False) -> None:
    """Replace a file; raise `OSError` on failure, after which the old file is unchanged.

    With `is_private`, only the owner can read the file. Otherwise, an existing file keeps its mode, and the mode of a
    new file depends on the umask. A symbolic link at `path` is replaced, not followed.
    """
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_private else 0o666), "wb") as file:
            if not is_private and path.exists():
                draft.chmod(path.stat().st_mode & 0o7777)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
