"""Checks of a diagnosis: pure functions from facts about a cluster to findings."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from dafka_core.config.missing_stores import described
from dafka_core.config.node_options import INSECURE_ENVIRONMENT, SecurityOptions
from dafka_core.errors import ConfigError
from dafka_core.flight.store_location import TCP_SCHEMES, UNIX_SCHEME
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import escape, quoted
from dafka_core.model.records import KnownStore, PartitionInfo, TopicPartition
from dafka_core.ops.findings import Finding, ok, problem, warning
from dafka_core.ops.port_probe import LOCKED, TowerFacts, check_towers
from dafka_core.security.allowed_keys import AllowedKeys
from dafka_core.security.credentials import parsed
from dafka_core.security.key_files import PUBLIC, SECRET, AllowedKey, read_secret
from dafka_core.security.permissions import TOWER
from dafka_core.system.hosts import is_loopback


class FileAccess(Enum):
    """Whether a store's file can be read here."""

    ELSEWHERE = auto()
    READABLE = auto()
    UNREADABLE = auto()


class StoreFacts(NamedTuple):
    """One store that was heard of.

    Attributes:
        store: its address; its URI where it was named by that and has not answered.
        knows_queries: it is of ours; False: a C node.
        connects: it has connected to this node, and hears what that asks.
        locations: where it serves Arrow Flight, as it announces; none if it serves none.
        failure: why Flight has not answered.
        stranger: what is spoken there that is no Flight; empty if that is not known.
        ahead_s: how far its clock is ahead of this machine's; None if that is not known.
        unsure_s: how much that may be wrong, by the time that its answer took.
        lacks: actions of Arrow Flight that this version uses, and that it does not know.
        more: actions that it knows and this version does not.
        file: whether its file can be read from here.
        rules: of retention, by which it goes; None if that is not known.
        rules_set: whether these were set while it ran.
        clock_doubt: why it does not go by its clock; empty if it does.
    """

    store: str
    knows_queries: bool = True
    connects: bool = True
    locations: tuple[str, ...] = ()
    failure: str = ""
    stranger: str = ""
    ahead_s: float | None = None
    unsure_s: float = 0.0
    lacks: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    file: FileAccess = FileAccess.ELSEWHERE
    rules: tuple[str, ...] | None = None
    rules_set: bool = False
    clock_doubt: str = ""

    @property
    def is_named(self) -> bool:
        """Whether it goes by its URI, as it has not said who it is."""
        return "://" in self.store

    @property
    def name(self) -> str:
        """How it is called in a sentence."""
        return self.store if self.is_named else f"store {self.store}"


class Facts(NamedTuple):
    """All that was found out.

    Attributes:
        towers: those that were named, and who listens there; none where stores were named.
        tower_found: whether one has introduced a node of this process; None if none has tried.
        node_count: how many other nodes the towers tell of.
        endpoint: where other nodes were told to connect to this process.
        stores: those that were heard of.
        away: those that others have met, and that do not answer.
        topics: those that were asked about.
        heads: what the stores have of them together; of all topics, if one of these is missing.
        asked: whether stores could be asked for that.
    """

    towers: tuple[TowerFacts, ...] = ()
    tower_found: bool | None = None
    node_count: int = 0
    endpoint: str = ""
    stores: tuple[StoreFacts, ...] = ()
    away: tuple[KnownStore, ...] = ()
    topics: tuple[str, ...] = ()
    heads: Mapping[TopicPartition, PartitionInfo] = {}
    asked: bool = False


CLOCKS_S: Final = 60.0
"""Clocks within a minute of each other agree on every timestamp (docs/guarantees.md)."""

_START_ONE: Final = "start one with 'dafka store --dir DIR'"
_LET_CONNECT: Final = (
    "set option host to an address that they reach, and let its port (option port) pass the "
    "firewall"
)

Check = Callable[[Facts], Iterator[Finding]]


def check_all(facts: Facts) -> list[Finding]:
    """What every check finds, in the order in which to read it."""
    found = check_towers(facts.towers, found=facts.tower_found)
    return [*found, *(each for check in CHECKS for each in check(facts))]


def check_stores(facts: Facts) -> Iterator[Finding]:
    """Which stores there are, and which of them answer."""
    about = "stores"
    if not facts.stores and facts.tower_found:
        count = f"{facts.node_count or 'no'} other node{'s' * (facts.node_count > 1)}"
        yield problem(about, f"the tower tells of {count}, and of no store", _START_ONE)
    for each in facts.stores:
        if each.failure:
            yield _unreached(each)
        elif not each.knows_queries:
            yield warning(
                about,
                f"{each.name} is a C node: it gives records one by one, and no timestamps",
                "start a store of ours for Arrow Flight, and for Spark's exactly-once sink",
            )
        elif not each.locations:
            yield warning(
                about,
                f"{each.name} serves no Arrow Flight: its records come over the mesh alone",
                "start it without --flight-port off",
            )
        else:
            yield ok(about, f"{each.name} answers by Arrow Flight at {each.locations[-1]}")


def _unreached(store: StoreFacts) -> Finding:
    if store.stranger:
        what = "something else than a store's Arrow Flight listens there"
        said = f" (it speaks {store.stranger!r})"
        remedy = "name the store's flight_port, as 'dafka store' prints it"
        return problem("stores", f"{store.name} is no store: {what}{said}", remedy, lasts=True)
    sentence = f"{store.name} does not answer by Arrow Flight: {store.failure}"
    remedy = "see that it runs, and that a firewall lets its flight_port pass"
    # The mesh has the records of a store that it meets, too, though more slowly.
    is_met = not store.is_named and store.connects
    return (warning if is_met else problem)("stores", sentence, remedy)


def check_away(facts: Facts) -> Iterator[Finding]:
    """Stores that are known and not there: what only they have is in no result."""
    for each in facts.away:
        remedy = f"start it again, or 'dafka store forget {escape(each.store)}' if it is gone"
        sentence = f"{described(each)} is away: what only it has is in no result"
        yield warning("stores", sentence, remedy)


def check_ways(facts: Facts) -> Iterator[Finding]:
    """Whether connections go both ways."""
    unmet = [each for each in facts.stores if not each.connects]
    if not unmet:
        return
    names = ", ".join(each.store for each in unmet)
    sentence = f"{names} cannot connect to this node at {facts.endpoint}"
    if all(each.locations and not each.failure for each in unmet):
        sentence += ": only what goes by Arrow Flight works from here"
        yield warning("connections", sentence, _LET_CONNECT)
    else:
        yield problem("connections", sentence, _LET_CONNECT)


def check_topics(facts: Facts) -> Iterator[Finding]:
    """Whether the topics are there, and what their partitions have."""
    names = {tp.topic for tp in facts.heads}
    for topic in facts.topics if facts.asked else ():
        ends = [info for tp, info in facts.heads.items() if tp.topic == topic]
        if not ends:
            near = what_there_is(topic, names, "topics")
            remedy = "correct the name, or write to it: a topic is there once it has a record"
            yield problem("topic", f"no store has topic {quoted(topic)} ({near})", remedy)
        else:
            records = sum(info.end - info.earliest for info in ends)
            partitions = "1 partition" if len(ends) == 1 else f"{len(ends)} partitions"
            yield ok("topic", f"topic {quoted(topic)} has {partitions} with {records} records")


def check_clocks(facts: Facts) -> Iterator[Finding]:
    """Whether the stores' clocks agree with each other, and with this machine's."""
    known = [each for each in facts.stores if each.ahead_s is not None]
    if not known:
        return
    at = sorted(known, key=_ahead)
    remedy = "set the clocks by a network (NTP): timestamps are right within a minute only"
    found = [
        warning(
            "clocks",
            f"the clocks of {one.name} and {other.name} are {shown_s(gap)} apart",
            remedy,
        )
        for one, other in pairwise(at)
        if (gap := _ahead(other) - _ahead(one)) - one.unsure_s - other.unsure_s > CLOCKS_S
    ]
    for each in known:
        if abs(_ahead(each)) - each.unsure_s > CLOCKS_S:
            way = "ahead of" if _ahead(each) > 0 else "behind"
            apart = shown_s(abs(_ahead(each)))
            sentence = f"the clock of {each.name} is {apart} {way} this machine's"
            found.append(warning("clocks", sentence, remedy))
        if each.clock_doubt:
            found.append(clock_doubt(each.name, each.clock_doubt))
    yield from found or [ok("clocks", f"the clocks agree within {CLOCKS_S:g} s")]


def check_versions(facts: Facts) -> Iterator[Finding]:
    """Whether stores know what this version asks of them."""
    for each in facts.stores:
        if each.lacks:
            lacks = ", ".join(each.lacks)
            sentence = f"{each.name} is of an older version than this program: it lacks {lacks}"
            remedy = "start it again with this version; what needs these does without, or fails"
            yield warning("versions", sentence, remedy)
        elif each.more:
            sentence = f"{each.name} is of a newer version than this program"
            yield warning("versions", sentence, "update this program, too")


def check_files(facts: Facts) -> Iterator[Finding]:
    """Whether the files of this machine's stores can be read, which is the quickest way."""
    for each in facts.stores:
        if each.file is FileAccess.READABLE:
            yield ok("files", f"the file of {each.name} can be read from here")
        elif each.file is FileAccess.UNREADABLE:
            yield warning(
                "files",
                f"the file of {each.name} is on this machine, and cannot be read from here: "
                "records come by Arrow Flight, which is slower",
                "let this user read its directory, as this machine and container see it",
            )


def check_retention(facts: Facts) -> Iterator[Finding]:
    """Whether all go by the rules that were set at one store: another may have been away."""
    rules = {each.name: each.rules for each in facts.stores if each.rules is not None}
    if any(each.rules_set for each in facts.stores) and len(set(rules.values())) > 1:
        said = ", ".join(f"{name} by {' '.join(each) or 'none'}" for name, each in rules.items())
        remedy = "unless that is meant so, say 'dafka retain' with the rules again"
        yield warning(
            "retention", f"rules were set, and stores go by different ones: {said}", remedy
        )


CHECKS: Final[Sequence[Check]] = (
    check_stores,
    check_away,
    check_ways,
    check_topics,
    check_clocks,
    check_versions,
    check_files,
    check_retention,
)


def clock_doubt(name: str, why: str) -> Finding:
    """Return what there is to say of a store with its clock in doubt."""
    sentence = f"the clock of {name} is in doubt, and nothing is deleted by age there: {why}"
    return warning("clocks", sentence, "set it by a network (NTP); if it is right, wait an hour")


def shown_s(seconds: float) -> str:
    """A time as people say it."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _ahead(store: StoreFacts) -> float:
    return store.ahead_s or 0.0


ABOUT: Final = "security"

EXPIRES_SOON: Final = timedelta(days=60)
"""Certificates are made anew by hand: somebody has to hear of it before it is too late."""

_LOCK: Final = "give towers and nodes keys (docs/security.md), or keep others out with a firewall"


def check_security(config: SecurityOptions, facts: Facts) -> list[Finding]:
    """What an auditor would ask of a cluster, and of this node's own keys."""
    found = [*_open_ports(facts), *_open_files(facts), *_own_keys(config)]
    if config.may_be_open:
        sentence = f"insecure is set here (or {INSECURE_ENVIRONMENT} in the environment)"
        remedy = "leave it out: it lets this machine's nodes open ports that ask for no keys"
        found.append(warning(ABOUT, sentence, remedy))
    if not config.secret_key_file and not any(each.remedy for each in found):
        sentence = "there are no keys, and nothing that asks for none is seen beyond loopback"
        found.append(ok(ABOUT, sentence))
    return found


def _open_ports(facts: Facts) -> Iterator[Finding]:
    whoever = "to whoever reaches it, and asks for no keys"
    for tower, sub, pub in facts.towers:
        is_open = {sub.said, pub.said} - {"", LOCKED}
        if is_open and not is_loopback(tower.host):
            yield warning(ABOUT, f"tower {tower} talks {whoever}", _LOCK)
    for store in facts.stores:
        for location in store.locations:
            where = urlsplit(location)
            if where.scheme in TCP_SCHEMES and not is_loopback(where.hostname or ""):
                sentence = f"{store.name} serves Arrow Flight at {location} {whoever}"
                yield warning(ABOUT, sentence, _LOCK)


def _open_files(facts: Facts) -> Iterator[Finding]:
    """Stores' directories on this machine: their files are their records."""
    for store in facts.stores:
        for location in store.locations:
            where = urlsplit(location)
            directory = Path(where.path).parent
            if where.scheme == UNIX_SCHEME and directory.is_dir():
                mode = stat.S_IMODE(directory.stat().st_mode)
                if mode & stat.S_IROTH and mode & stat.S_IXOTH:
                    sentence = f"everybody on this machine can read the records of {store.name}"
                    yield warning(ABOUT, sentence, f"'chmod o-rx {directory}'")


def _own_keys(config: SecurityOptions) -> Iterator[Finding]:
    if not config.secret_key_file:
        return
    try:
        own = read_secret(config.secret_key_file).public.decode()
        allowed = AllowedKeys(config.allowed_keys)
    except ConfigError as error:
        yield problem(ABOUT, str(error), "correct it: no node starts with these", lasts=True)
        return
    known = allowed.find(own)
    if known is None:
        sentence = f"this node's own key, {own}, is not in {allowed.directory}"
        remedy = "copy its .key file there, and wherever it is to be let in"
        yield warning(ABOUT, sentence, remedy)
    else:
        roles = ", ".join(sorted(known.roles))
        yield ok(ABOUT, f"this node has key {known.name}, with {roles}")
    yield from _check_writers(allowed, config.secret_key_file)
    for key in allowed.all():
        yield from _check_key(allowed.directory, key, config.secret_key_file)


def _check_writers(allowed: AllowedKeys, own_file: str) -> Iterator[Finding]:
    directory = allowed.directory
    trusted = {0, os.geteuid()}
    with contextlib.suppress(OSError):  # the secret is in an environment variable
        trusted.add(Path(own_file).stat().st_uid)  # the node's user, who may be another one
    others: dict[int, list[Path]] = {}
    for path in (directory, *(directory / f"{key.name}{PUBLIC}" for key in allowed.all())):
        try:
            status = path.stat()
        except OSError:  # it has gone meanwhile
            continue
        if status.st_mode & stat.S_IWGRP:
            sentence = f"a group can write to {path}, and so let in anybody"
            yield warning(ABOUT, sentence, f"'chmod g-w {path}'")
        if status.st_uid not in trusted:
            others.setdefault(status.st_uid, []).append(path)
    for user, paths in others.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        sentence = f"user {user}, who owns {paths[0]}{more}, can let in anybody"
        cure = f"'chown root {directory} {directory}/*{PUBLIC}', or this node's user"
        yield warning(ABOUT, sentence, cure)


def _check_key(directory: Path, key: AllowedKey, own_file: str) -> Iterator[Finding]:
    if TOWER in key.roles and len(key.roles) > 1:
        sentence = f"key {key.name} is a tower's, and may do more"
        remedy = "make a key of its own for the tower: it stands where everybody reaches it"
        yield warning(ABOUT, sentence, remedy)
    secret = directory / f"{key.name}{SECRET}"
    if secret.exists() and not (Path(own_file).exists() and secret.samefile(own_file)):
        sentence = f"the secret of key {key.name} lies here, too ({secret})"
        remedy = "bring it to its owner and remove it: who reads it can do what its owner may"
        yield warning(ABOUT, sentence, remedy)
    if not key.token_digest:
        sentence = f"Arrow Flight does not know key {key.name}, whose file has no token"
        yield warning(ABOUT, sentence, f"'dafka keys renew {key.name}', and copy its .key file")
    if key.certificate:
        left = parsed(key.certificate).not_valid_after_utc - datetime.now(UTC)
        cure = f"'dafka keys renew {key.name}', and copy its .key file"
        if left < timedelta():
            sentence = f"the certificate of store key {key.name} has expired: no client talks to it"
            yield problem(ABOUT, sentence, cure, lasts=True)
        elif left < EXPIRES_SOON:
            sentence = f"the certificate of store key {key.name} ends in {left.days} days"
            yield warning(ABOUT, sentence, cure)
