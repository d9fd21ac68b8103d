"""Where in a mapped file a value lies: LMDB tells its address in this process only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from dafka_core.errors import StoreError

_MAPS: Final = Path("/proc/self/maps")


class FilePositions:
    """Positions in one file, which this process has mapped.  Thread-safe."""

    def __init__(self, data: Path) -> None:
        self._data = data
        # Where, and by how much an address there is above its position: noted in one step, since
        # threads ask at the same time.
        self._mapped = range(0), 0

    def of(self, packed: memoryview) -> int:
        """Where in the file the bytes begin.

        Raises:
            StoreError: the system does not say where the file is mapped.
        """
        address = int(np.frombuffer(packed, np.uint8).__array_interface__["data"][0])
        region, shift = self._mapped
        if address not in region:
            _, shift = self._mapped = self._found(address)
        return address - shift

    def _found(self, address: int) -> tuple[range, int]:
        try:
            lines = _MAPS.read_text().splitlines()
        except OSError:
            lines = []
        for line in lines:
            # As in: 7f0e5c000000-7f0e5d000000 r--s 00000000 fe:00 1234   /data/data.mdb
            span, _, offset, *_ = line.split(maxsplit=3)
            region = range(*(int(bound, 16) for bound in span.split("-")))
            if address in region and line.endswith(f"/{self._data.name}"):
                return region, region.start - int(offset, 16)
        why = f"{_MAPS} does not say where {self._data.name} is mapped: read it over Flight"
        raise StoreError(self._data.parent, why)
