"""A process that may open no more files."""

import contextlib
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def no_open_file_left() -> Iterator[None]:
    """Nothing can be opened in this process meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = os.dup(0)
    with contextlib.ExitStack() as taken:
        taken.callback(os.close, last)
        # Not 0: poll(), which ZeroMQ calls, fails when it has more to look at than may be open.
        most = max(map(int, os.listdir("/proc/self/fd"))) + 1  # noqa: PTH208
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.callback(os.close, os.dup(last))
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
