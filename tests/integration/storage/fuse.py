"""A child process of the tests: a FUSE file system of one empty directory, and a log put there.

``fuse.py DIRECTORY`` mounts it, in a container of its own, and prints what opening a log says.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
import threading
from typing import Final

from dafka_core.errors import StoreError
from dafka_core.storage import Log

REQUEST: Final = struct.Struct("<IIQQIIII")  # its size, what is asked, its number, and who asks
ANSWER: Final = struct.Struct("<IiQ")  # its size, an error, the request's number
NOT_KNOWN: Final = -38

_DIRECTORY: Final = [stat.S_IFDIR | 0o755, 2, *[0] * 5]
ANSWERS: Final = {
    3: struct.pack("<Q2I6Q10I", 1, 0, 0, 1, *[0] * 8, *_DIRECTORY),  # stat
    17: struct.pack("<5Q4I24x", *[1 << 20] * 5, 4096, 255, 4096, 0),  # statfs
    26: struct.pack("<4I2HI40x", 7, 31, 1 << 16, 0, 1, 1, 1 << 16),  # the first request
}
"""By the numbers of linux/fuse.h."""


def serve(device: int) -> None:
    """Answers what is asked of the file system."""
    while True:
        _, what, number, *_ = REQUEST.unpack_from(os.read(device, 1 << 20))
        body = ANSWERS.get(what, b"")
        error = 0 if body else NOT_KNOWN
        os.write(device, ANSWER.pack(ANSWER.size + len(body), error, number) + body)


def main() -> None:
    directory = sys.argv[1]
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    mount = ctypes.CDLL(None, use_errno=True).mount
    if mount(b"fuse", directory.encode(), b"fuse", 0, options.encode()) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    threading.Thread(target=serve, args=(device,), daemon=True).start()
    try:
        Log(directory).close()
        print("opened", flush=True)
    except StoreError as error:
        print(error, flush=True)


if __name__ == "__main__":
    main()
