"""Compares records with their links (``links.py``), and links with others that were kept elsewhere.

``check_links`` finds what was changed in the file by somebody who computed the checksums anew, but
not the links.  Who computes those anew, too, is found by ``check_saved``: a link that lies where he
cannot write holds all links before it.  ``differences`` compares two stores, and reads no record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Final, NamedTuple, Self

from msgspec import Meta

from dafka_core.epochs import History
from dafka_core.errors import StoreError
from dafka_core.records import TopicPartition
from dafka_core.storage.check_results import (
    BLOCK,
    CHANGED,
    DIFFERENT,
    LINKS,
    PARTED,
    REPLACED,
    Checked,
    Damage,
    Look,
)
from dafka_core.storage.linker import LinkedRecords
from dafka_core.storage.links import GENESIS, Link, LinkDigest, life_at
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.set_aside import AsideArea
from dafka_core.storage.tables import Tables

LOOK_BYTES: Final = 64 << 20
"""What one look at the log compares with links: some hundredths of a second."""

_TAKE_IT: Final = (
    "compare with another store ('dafka store verify --beside'); if that one is right, have this "
    "one's directory made anew from it (docs/backup.md)"
)


_Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Life = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class PartitionLink(NamedTuple):
    """A link as it is kept elsewhere: digests, and what stands for the history, as hex."""

    topic: str
    partition: str
    start: _Offset
    end: _Offset
    life: _Life
    records: _Digest
    chain: _Digest

    @classmethod
    def of(cls, tp: TopicPartition, link: Link) -> Self:
        """What is kept of a link."""
        life = f"{link.life:016x}"
        return cls(*tp, link.start, link.end, life, link.records.hex(), link.chain.hex())

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def range(self) -> str:
        """Its records, as a sentence names them."""
        return f"records {self.start} to {self.end - 1}"

    def has_parted(self, life: str) -> bool:
        """Whether its records have another history than those of ``life``, as far as is known."""
        return life != self.life and bool(int(life, 16) and int(self.life, 16))


def links_of(look: Look, tp: TopicPartition, *, newest: bool) -> list[PartitionLink]:
    """The links of a partition, or the last one alone."""
    with look() as tables:
        row = tables.visible_row(tp)
        if row is None:
            return []
        last = tables.links.last(row.id)
        found = ([last] if last else []) if newest else tables.links.starting(row.id, 0)
        return [PartitionLink.of(tp, each) for each in found]


def check_links(look: Look, tp: TopicPartition) -> Iterator[Checked]:
    """Compares the records of a partition with its links, and those with each other."""
    at: int | None = 0
    while at is not None:
        try:
            with look() as tables:
                row = tables.visible_row(tp)
                at, checked = (None, Checked()) if row is None else _some(tables, tp, row, at)
        except StoreError as error:
            at, checked = None, _found(LINKS, tp, 0, error.why)
        yield checked


def _some(
    tables: Tables, tp: TopicPartition, row: PartitionRow, at: int
) -> tuple[int | None, Checked]:
    """Checks some links from an offset on; where the next ones begin, None if there are none."""
    previous, size_bytes, linked = tables.links.before(row.id, at), 0, 0
    found: list[Damage] = []
    records: LinkedRecords | None = None
    for link in tables.links.starting(row.id, at):
        if size_bytes >= LOOK_BYTES:
            return link.start, Checked(found=tuple(found), linked=linked)
        size_bytes += link.size_bytes
        if link.end > row.end:
            why = f"it ends here, and has a link of records up to {link.end - 1}"
            found.append(Damage(CHANGED, *tp, row.end, f"{why}: {_TAKE_IT}"))
            break
        damage = _out_of_chain(tp, row, link, previous)
        if damage is None and link.start >= row.earliest:
            records = records or LinkedRecords(tables, tp, row, link.start)
            try:
                damage = _changed(records, tp, link)
            except StoreError:
                records = None  # a damaged block, which is found as such
            else:
                linked += 0 if damage else link.end - link.start
        if damage is not None:
            found.append(damage)
            records = None
        previous = link
    return None, Checked(found=tuple(found), linked=linked)


def _history(tables: Tables, tp: TopicPartition, row: PartitionRow) -> History:
    """Whose the records are; nothing where that is damaged, which is found as such."""
    with suppress(StoreError):
        return tables.lives.history(tp, row)
    return ()


def _out_of_chain(
    tp: TopicPartition, row: PartitionRow, link: Link, previous: Link | None
) -> Damage | None:
    """What is wrong with a link itself.  Of what is given up, the one before is not kept."""
    if link.start < row.earliest:
        return None
    end, chain = (previous.end, previous.chain) if previous else (0, GENESIS)
    if link.start != end and not end <= link.start == row.earliest:
        why = f"there is no link of records before {link.start}: it was removed"
        return Damage(LINKS, *tp, end, f"{why}; {_TAKE_IT}")
    if not link.follows(chain):
        why = f"the link of records {link.start} to {link.end - 1} was changed, or the one before"
        return Damage(LINKS, *tp, link.start, f"{why}; {_TAKE_IT}")
    return None


def _changed(records: LinkedRecords, tp: TopicPartition, link: Link) -> Damage | None:
    digest = LinkDigest(tp, link.start, GENESIS)
    records.fill(digest, link.end, full=False)
    made = digest.link(link.life)
    if (made.records, made.times) == (link.records, link.times):
        return None
    what = "a record" if made.records != link.records else "the timestamp of a record"
    why = f"{what} of {link.start} to {link.end - 1} was changed in the file, with its checksum"
    return Damage(CHANGED, *tp, link.start, f"{why}: {_TAKE_IT}")


def check_saved(look: Look, saved: PartitionLink) -> Checked:
    """Compares a partition with a link that was kept elsewhere.

    Nothing was compared (``linked`` is 0) where its first record has been given up since.
    """
    tp = saved.tp
    with look() as tables:
        row = tables.visible_row(tp)
        if row is not None and saved.start < row.earliest:
            return Checked()
        life = life_at(_history(tables, tp, row), saved.end) if row else 0
        asides = (each for each in AsideArea(tables).listed() if each[1:3] == tp)
        is_other = f"{life:016x}" != saved.life or any(each.start < saved.end for each in asides)
        why = f"it ends here, and had {saved.range}"
        if row is not None and saved.end <= row.end:
            previous = tables.links.before(row.id, saved.start)
            digest = LinkDigest(tp, saved.start, previous.chain if previous else GENESIS)
            try:
                LinkedRecords(tables, tp, row, saved.start).fill(digest, saved.end, full=False)
            except StoreError as error:
                return _found(BLOCK, tp, saved.start, error.why)
            made = PartitionLink.of(tp, digest.link(int(saved.life, 16)))
            if made == saved:
                return Checked(linked=saved.end - saved.start)
            what = saved.range if made.records != saved.records else f"records before {saved.end}"
            why = f"{what}, or their times, are not those of the saved link"
    if is_other:
        why += (
            ": if another producer's records have won over them, they are set aside "
            "('dafka store aside'), and links are to be saved anew; if not, they were changed"
        )
        return _found(REPLACED, tp, saved.start, why)
    return _found(CHANGED, tp, saved.start, f"{why}: {_TAKE_IT}")


def _found(kind: str, tp: TopicPartition, offset: int, why: str) -> Checked:
    return Checked(found=(Damage(kind, *tp, offset, why),))


def differences(
    here: Iterable[PartitionLink], there: Iterable[PartitionLink]
) -> tuple[int, list[Damage]]:
    """How many records two stores have the same links of, and where they first have not."""
    others = {(each.tp, each.start, each.end): each for each in there}
    same, found = 0, dict[TopicPartition, Damage]()
    for link in here:
        other = others.get((link.tp, link.start, link.end))
        if other is None or link.tp in found:
            continue
        if link.records == other.records:
            same += link.end - link.start
        elif link.has_parted(other.life):
            why = f"{link.range} are two producers': the stores settle that when they meet"
            found[link.tp] = Damage(PARTED, *link.tp, link.start, why)
        else:
            why = f"{link.range} are not the same: 'dafka store verify' says whose were changed"
            found[link.tp] = Damage(DIFFERENT, *link.tp, link.start, why)
    return same, list(found.values())
