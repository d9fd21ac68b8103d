"""The benchmarks with forked nodes: starting Python for forty takes longer than toy rows."""

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


if __name__ == "__main__":
    EmbeddedCluster._node = lambda self, kind, arguments: _Node(kind, arguments)  # type: ignore[method-assign]
    processes.stores = lambda: _stores  # the command lines of forks do not tell them apart
    main()
