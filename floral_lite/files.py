"""Writing files so that nobody ever finds half of one."""

import os
import threading
from pathlib import Path


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write or replace a file, whole or not at all, even while others write it too.

    Raises:
        OSError: the disk is full, say. The old file is still there, and no half of a new one.
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
