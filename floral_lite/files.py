"""Writing files so that nobody ever finds half of one."""

import os
import threading
from pathlib import Path


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file of this name, whole or not at all, whoever else writes it; what was there is replaced.

    Raises:
        OSError: the disk is full, say. What was there is still there, and nothing beside it.
    """
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
