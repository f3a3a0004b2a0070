"""write_atomically: replace a file, so that its readers see either the old content or the complete new content."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


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
