"""Where in a mapped file a value lies: LMDB tells its address in this process only."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import numpy as np

from dafka_core.errors import StoreError

_MAPS: Final = Path("/proc/self/maps")


def mapping_at(address: int) -> tuple[range, int, str]:
    """Return the mapping at an address, by how much it is above the file's positions, and the file.

    The name is empty where nothing is mapped.
    """
    with contextlib.suppress(OSError):
        for line in _MAPS.read_text().splitlines():
            # As in: 7f0e5c000000-7f0e5d000000 r--s 00000000 fe:00 1234   /data/data.mdb
            bounds, _, offset, *_, path = line.split(maxsplit=5)
            span = range(*(int(bound, 16) for bound in bounds.split("-")))
            if address in span:
                return span, span.start - int(offset, 16), path
    return range(0), 0, ""


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
        region, shift, path = mapping_at(address)
        if path.endswith(f"/{self._data.name}"):
            return region, shift
        why = f"{_MAPS} does not say where {self._data.name} is mapped: read it over Flight"
        raise StoreError(self._data.parent, why)
