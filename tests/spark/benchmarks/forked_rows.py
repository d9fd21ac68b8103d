"""The benchmarks, with nodes that are forked.

To start Python for each of some forty nodes takes longer than what toy rows measure.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from benchmarks import processes
from benchmarks.__main__ import main
from dafka_core import EmbeddedCluster
from tests import forked

_stores: list[int] = []


class _Node(forked.ForkedNode):
    def _launch(self, arguments: Sequence[str]) -> subprocess.Popen[str]:
        process = super()._launch(arguments)
        if arguments[0] == "store":
            _stores.append(process.pid)
        return process


def _node(self: EmbeddedCluster, kind: str, arguments: Sequence[str]) -> _Node:
    return _Node(kind, arguments)


if __name__ == "__main__":
    EmbeddedCluster._node = _node  # type: ignore[method-assign]
    processes.stores = lambda: _stores  # forks are not told by their command line
    main()
