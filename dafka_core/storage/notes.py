"""Notes: small values that a store's own programs keep with its log, by name.

They are written in the same step as records (``log_entries.NotedBatch``), so they never say more or
less than there is.  They lie in the table ``meta``:

    "note ", name  ->  octets, checksum
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dafka_core.names import octets_of, text_of
from dafka_core.storage.counted_transaction import CountedTransaction
from dafka_core.storage.rows import CHECKSUM_BYTES, checksum
from dafka_core.storage.storage_errors import damaged

if TYPE_CHECKING:
    import lmdb

_PREFIX = b"note "


class Notes:
    """The notes in one transaction of LMDB."""

    def __init__(self, directory: Path, txn: CountedTransaction, meta: lmdb._Database) -> None:
        self._directory = directory
        self._txn = txn
        self._meta = meta

    def put(self, notes: Mapping[str, bytes | None]) -> None:
        """Writes some, each in the place of the one of its name, or deletes it (None)."""
        for name, octets in notes.items():
            key = _PREFIX + octets_of(name)
            if octets is None:
                self._txn.delete(key, db=self._meta)
            else:
                self._txn.put(key, octets + checksum(key, octets), db=self._meta)

    def named(self, prefix: str) -> dict[str, bytes]:
        """Those whose names begin with ``prefix``, in the order of their names.

        Raises:
            StoreError: one is damaged.
        """
        found = {}
        for key, value in self._txn.scan(self._meta, _PREFIX + octets_of(prefix)):
            octets, name = bytes(value[:-CHECKSUM_BYTES]), text_of(key[len(_PREFIX) :])
            if value != octets + checksum(key, octets):
                raise damaged(self._directory, f"note {name!r} does not match its checksum")
            found[name] = octets
        return found
