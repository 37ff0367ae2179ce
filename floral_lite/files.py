"""Writing files so that nobody ever finds half of one, and folders that one process at a time writes in."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import InputError, require

# In a folder that a process has to itself.
LOCK = ".lock"


def write_whole(path: Path, content: bytes) -> None:
    """Write or replace a file, whole or not at all, even while others write it too.

    Raises:
        InputError: the path is a folder's.
        OSError: the disk is full, say. The old file is still there, and no half of a new one.
    """
    require(not path.is_dir(), f"{path} is a folder; name a file")
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            # on the disk before it has the name: a power cut leaves the old file or the new one
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Have a folder to oneself, made if missing; of those that were made, the empty ones go at the end.

    The lock of a process that is killed is free.

    Raises:
        InputError: another process has the folder.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"another process is at work in the folder {folder}: wait until it ends, or name another folder"
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no file that is open; there the release does
            (folder / LOCK).unlink()
        lock.release()
        for path in made:
            with suppress(OSError):  # something is in it
                path.rmdir()
