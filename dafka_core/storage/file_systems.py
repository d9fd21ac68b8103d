"""Which file systems a store's directory may be on: the store and its readers share pages there."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

NOT_LOCAL: Final = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x01021997: "9p",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x19830326: "BeeGFS",
    0x20030528: "OrangeFS",
    0xAAD7AAEA: "PanFS",
    0xBEEFDEAD: "StorNext",
    0x786F4256: "a folder that VirtualBox shares",
    0xBACBACBC: "a folder that VMware shares",
    0x7C7C6673: "a folder that Parallels shares",
    0x65735546: "FUSE",
}
"""By the type that statfs(2) gives.  Of other machines' pages, and of what a program makes up, the
system promises neither that a map and a write agree, nor that a synced page is on a disk.
Overlays, which containers have by default, are not among them: a file that is open for writing
lies in the upper layer, which is a directory of this machine, and is mapped and written there.  Who
opened the file before sees the lower one for ever, under the same number: readers open it when the
store, which has opened it first, has told them its session.  A reader in another container has
another overlay, and does not find its lease there."""

_STATFS_BYTES: Final = 1_024
"""More than any system's ``struct statfs``, which begins with the type, a long."""


def not_local(directory: Path | str) -> str | None:
    """The name of the file system that a directory is on, if it is not one of this machine."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(directory), found) != 0:
        return None  # opening it says what is wrong
    kind = ctypes.c_long.from_buffer(found).value
    return NOT_LOCAL.get(kind & 0xFFFFFFFF)
