"""Files with secrets, for their owner alone, and read again when they change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from dafka_core.system.files import others_can_read

T = TypeVar("T")


class PrivateFile(Generic[T]):
    """A file that only its owner may read.

    Args:
        made_by: the command that makes it, for errors.
        parse: parses its contents; raises ValueError with the reason if they are invalid.
    """

    def __init__(self, path: str | Path, made_by: str, parse: Callable[[bytes], T]) -> None:
        self._path = Path(path)
        self._made_by = made_by
        self._parse = parse
        self._state: object = None
        self._contents: T
        self._logged = ""

    def read(self) -> T:
        """Return the parsed contents; raise ValueError with the reason while they are invalid."""
        try:
            status = self._path.stat()
            state = status.st_ctime_ns, status.st_size, status.st_ino
            if state == self._state:
                return self._contents
            octets = self._path.read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no path"
            raise ValueError(f"must be a file that '{self._made_by}' made ({reason})") from None
        if others_can_read(status):
            cure = f"'chmod 600 {self._path}', and replace its secret if they have read it"
            raise ValueError(f"{self._path} can be read by others: {cure}")
        try:
            self._contents = self._parse(octets)
        except ValueError as error:
            raise ValueError(f"{self._path} {error}") from None
        self._state = state
        return self._contents

    def reread(self, default: T, log: Callable[[str], None]) -> T:
        """Return the parsed contents, or a default while they are invalid; log each reason once."""
        try:
            contents, why = self.read(), ""
        except ValueError as error:
            contents, why = default, str(error)
            if why != self._logged:
                log(why)
        self._logged = why
        return contents
