"""gRPC and forking: a child forked from a process that has used gRPC can only hang in it."""

from __future__ import annotations

import os

_users: list[int] = []


def use() -> str | None:
    """Says that this process uses gRPC from now on; why it cannot, if it cannot."""
    if not _users:
        _users.append(os.getpid())
    if _users[0] == os.getpid():
        return None
    return (
        f"process {_users[0]} used Flight before it forked this one, which gRPC cannot do; start "
        "processes anew (multiprocessing's method 'spawn')"
    )
