"""The checkpoint of one of Spark's streaming queries, as the files that it consists of.

    metadata     the query's id, as JSON
    offsets/N    where batch N ends in each source; written before the batch runs
    commits/N    written when batch N is done
    state/       what stateful operators know: version N + 1 is that behind batch N
    sources/     what some sources keep for themselves; format dafka keeps nothing

Beside a file may lie another one with its checksum, ``.N.crc``.  Spark keeps some 100 batches.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from dafka_core.errors import ConfigError
from dafka_core.queries.source_offset import BatchRange, SourceOffset

METADATA: Final = "metadata"
OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
STATE: Final = "state"

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://(?=/))?")
_LAST_MS: Final = 253_402_300_799_000
"""The end of the year 9999: later times are none."""

_KEPT_BATCHES: Final = 3
"""To be read once each, one after the other: offsets may be of very many partitions."""

_VOID: Final = "-"
"""In place of the offset of a source that has none yet."""


class Batch(NamedTuple):
    """A batch that a query has begun.

    ``time_ms`` is when Spark planned it, in milliseconds since 1970 UTC.  ``ends`` are the offsets
    where it ends, by source; None of a source that is not of format dafka.
    """

    number: int
    is_committed: bool
    time_ms: int
    ends: Mapping[str, SourceOffset | None]

    @property
    def own_ends(self) -> dict[str, SourceOffset]:
        """Those of format dafka's sources."""
        return {name: end for name, end in self.ends.items() if end is not None}


@dataclass(frozen=True)
class Checkpoint:
    """What one says: the id of its query, and which batches it has."""

    path: Path
    query_id: str
    planned: tuple[int, ...]
    """Numbers of the batches whose offsets are there, ascending."""
    committed: frozenset[int]
    _read: dict[int, Batch] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def read(cls, path: str) -> Self:
        """That of a directory; its batches are read when they are asked for.

        Raises:
            ConfigError: it is no checkpoint, not on this machine, or none of a query that reads
                with format dafka.
        """
        directory = local_path(path)
        if not directory.is_dir():
            raise refused(path, "is no directory")
        if not (directory / METADATA).is_file():
            raise refused(path, "is no checkpoint of Spark's: it has no file 'metadata'")
        query_id = _object(_read(directory / METADATA)).get("id")
        if not isinstance(query_id, str) or not query_id:
            raise refused(path, "is no checkpoint: file 'metadata' does not say a query's id")
        planned, committed = (_numbers(directory / name) for name in (OFFSETS, COMMITS))
        found = cls(directory, query_id, tuple(sorted(planned)), frozenset(committed))
        if planned and found.last.ends and not found.last.own_ends:
            raise refused(path, "is of a query none of whose sources has format dafka")
        return found

    @property
    def next_batch(self) -> int:
        """The number of the batch that the query begins, or runs again, when it is started."""
        if not self.planned:
            return 0
        return self.planned[-1] + (self.planned[-1] in self.committed)

    @property
    def is_unfinished(self) -> bool:
        """Whether the last batch is run again, with the offsets that are there."""
        return self.next_batch in self.planned

    @cached_property
    def last(self) -> Batch:
        """The newest batch; raises ``ConfigError`` where there is none."""
        if not self.planned:
            raise self.refused("has no batch yet")
        return self.batch(self.planned[-1])

    def batch(self, number: int) -> Batch:
        """One of its batches.

        Raises:
            ConfigError: it is not there, or not any more, or cannot be read.
        """
        if number not in self.planned:
            first, last = (self.planned[0], self.planned[-1]) if self.planned else (0, -1)
            there = f"batches {first} to {last}" if self.planned else "no batch"
            raise self.refused(f"has no batch {number}, but {there}")
        if number in self._read:
            return self._read[number]
        path = self.path / OFFSETS / str(number)
        version, metadata, lines = _parts(_read(path))
        if version not in ("v1", "v2"):
            raise self.refused(f"has offsets of {version[:20]!r}, which this version cannot read")
        ends = {
            name: _offset(text)
            for name, text in (_by_number(lines) if version == "v1" else _by_name(lines))
            if text != _VOID
        }
        time_ms = _object(metadata).get("batchTimestampMs")
        if type(time_ms) is not int or not 0 <= time_ms <= _LAST_MS:
            time_ms = 0
        while len(self._read) >= _KEPT_BATCHES:
            del self._read[min(self._read)]
        self._read[number] = Batch(number, number in self.committed, time_ms, ends)
        return self._read[number]

    def batches(self) -> Iterator[Batch]:
        """All of them, in order."""
        return map(self.batch, self.planned)

    def before(self, number: int) -> Mapping[str, SourceOffset] | None:
        """The offsets where a batch begins, by source; None where they are not there any more.

        What a batch says itself of where it began counts more (``SourceOffset.since``).
        """
        earlier = [each for each in self.planned if each < number]
        if earlier:
            return self.batch(earlier[-1]).own_ends
        return {} if number == 0 else None

    def ranges(self, number: int) -> Iterator[tuple[str, BatchRange]]:
        """What a batch has of each partition, by source.

        Raises:
            ConfigError: the batch, or the one before it, is not there any more.
        """
        begins = self.before(number)
        if begins is None:
            raise self.refused(f"does not say any more where batch {number} began")
        for name, end in self.batch(number).own_ends.items():
            begin = begins.get(name, SourceOffset({}))
            yield from ((name, each) for each in end.since(begin))

    def source_digest(self, number: int) -> str:
        """The SHA-256 of the texts that say where a batch begins and ends in all sources.

        Raises:
            ConfigError: the batch, or the one before it, is not there (any more).
        """
        if number and number - 1 not in self.planned:
            raise self.refused(f"does not say any more where batch {number} began")
        numbers = [number - 1] * (number > 0) + [number]
        texts = [_sources(_read(self.path / OFFSETS / str(each))) for each in numbers]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()

    def refused(self, why: str) -> ConfigError:
        """The error for what cannot be done with it."""
        return refused(str(self.path), why)


def refused(path: str, why: str) -> ConfigError:
    """The error for a path that is no checkpoint, or cannot be used as it was asked for."""
    return ConfigError("checkpoint", path, why, kind="argument")


def local_path(text: str) -> Path:
    """The path on this machine, also of what Spark calls ``file:/...``.

    Raises:
        ConfigError: it is elsewhere.
    """
    if not text or "\0" in text:
        raise refused(text, "must name a directory")
    found = _SCHEME.match(text)
    if found is None:
        return Path(text)
    if found[1].lower() != "file":
        how = "copy the directory to this machine, change it here, and put it back as a whole"
        raise refused(text, f"is not on this machine, but in {found[1]}:; {how}")
    return Path(text[found.end() :])


def _numbers(directory: Path) -> set[int]:
    """Those that are names of files; others are temporary, or checksums."""
    names = (each.name for each in directory.iterdir()) if directory.is_dir() else ()
    return {int(name) for name in names if re.fullmatch("[0-9]{1,18}", name)}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refused(str(path.parent), f"has no {path.name} to be read: {error}") from None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _parts(text: str) -> tuple[str, str, str]:
    """What a file of offsets has: its version, what Spark adds, and a line for each source."""
    version, _, rest = text.partition("\n")
    metadata, _, lines = rest.partition("\n")
    return version, metadata, lines


def _sources(text: str) -> str:
    return _parts(text)[2].strip()


def _by_number(lines: str) -> Iterator[tuple[str, str]]:
    return ((str(number), line) for number, line in enumerate(lines.splitlines()))


def _by_name(lines: str) -> Iterator[tuple[str, str]]:
    """Of queries that name their sources: a line for each, or all in one object."""
    if lines.startswith("{"):
        yield from ((name, str(text)) for name, text in _object(lines).items())
        return
    for line in lines.splitlines():
        name, _, text = line.partition(":")
        yield name, text


def _offset(text: str) -> SourceOffset | None:
    tree = _object(text)
    if "version" not in tree or not ({"topics", "start"} <= tree.keys() or "packed" in tree):
        return None
    return SourceOffset.parse(tree)
