"""Checks of a diagnosis: pure functions from facts about a cluster to findings."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from dafka_core.security.key_files import PUBLIC, SECRET, AllowedKey, read_secret
from dafka_core.security.permissions import TOWER
from dafka_core.system.hosts import is_loopback


class FileAccess(Enum):
    """Access of this process to a store's file."""

    ELSEWHERE = auto()
    READABLE = auto()
    UNREADABLE = auto()


class StoreFacts(NamedTuple):
    """Facts about a discovered store."""

    store: str  # its address, or its URI if it was named by one and has not responded
    knows_queries: bool = True  # False for a C node
    connects: bool = True  # it has connected to this node, and receives this node's requests
    locations: tuple[str, ...] = ()  # URIs of its Arrow Flight service, if it has one
    failure: str = ""  # why Flight has not responded
    stranger: str = ""  # the other protocol at its location, if known
    ahead_s: float | None = None  # how far its clock is ahead of this machine's; None if unknown
    unsure_s: float = 0.0  # maximum error of ``ahead_s``: half of the response time
    lacks: tuple[str, ...] = ()  # Flight actions that this version uses and the store does not know
    more: tuple[str, ...] = ()  # Flight actions that the store knows and this version does not
    file: FileAccess = FileAccess.ELSEWHERE  # access to its file
    rules: tuple[str, ...] | None = None  # its retention rules; None if unknown
    rules_set: bool = False  # the rules were set while it ran
    clock_doubt: str = ""  # why it distrusts its clock; empty if it does not
    refusal: str = ""  # why it accepts no records; empty if it does
    damaged: int = 0  # number of its partitions with damaged records

    @property
    def is_named(self) -> bool:
        """True if it is known only by its URI."""
        return "://" in self.store

    @property
    def name(self) -> str:
        """Its name in a sentence."""
        return self.store if self.is_named else f"store {self.store}"


class Facts(NamedTuple):
    """Facts about a cluster, for the checks."""

    # the configured ones, with the results of probing their ports; empty if stores were named
    towers: tuple[TowerFacts, ...] = ()
    tower_found: bool | None = None  # one has introduced a node of ours; None if none has tried
    node_count: int = 0  # number of other nodes that towers report
    endpoint: str = ""  # the address where other nodes connect to this process
    stores: tuple[StoreFacts, ...] = ()  # the discovered stores
    away: tuple[KnownStore, ...] = ()  # known stores that do not respond
    topics: tuple[str, ...] = ()  # the topics to check
    # the merged partitions of these topics, or of all topics if one is missing
    heads: Mapping[TopicPartition, PartitionInfo] = {}
    asked: bool = False  # stores have reported their partitions


CLOCKS_S: Final = 60.0
"""Clocks may differ by a minute: timestamps are not more exact (docs/guarantees.md)."""

_START_ONE: Final = "start one with 'dafka store --dir DIR'"
_LET_CONNECT: Final = (
    "set option host to an address that they can reach, and open its port (option port) in the "
    "firewall"
)

Check = Callable[[Facts], Iterator[Finding]]


def check_all(facts: Facts) -> list[Finding]:
    """Run all checks; return their findings, causes before consequences."""
    found = check_towers(facts.towers, found=facts.tower_found)
    return [*found, *(each for check in CHECKS for each in check(facts))]


def check_stores(facts: Facts) -> Iterator[Finding]:
    """Check that there are stores, and that they respond."""
    about = "stores"
    if not facts.stores and facts.tower_found:
        count = f"{facts.node_count or 'no'} other node{'s' * (facts.node_count > 1)}"
        joint = ", but" if facts.node_count else " and"
        yield problem(about, f"the tower reports {count}{joint} no store", _START_ONE)
    for each in facts.stores:
        if each.failure:
            yield _unreached(each)
        elif not each.knows_queries:
            yield warning(
                about,
                f"{each.name} is a C node: it sends records one by one, without timestamps",
                "start a store of this project for Arrow Flight and Spark's exactly-once sink",
            )
        elif not each.locations:
            yield warning(
                about,
                f"{each.name} serves no Arrow Flight: its records can be read over the mesh only",
                "start it without --flight-port off",
            )
        else:
            yield ok(about, f"{each.name} responds by Arrow Flight at {each.locations[-1]}")


def _unreached(store: StoreFacts) -> Finding:
    if store.stranger:
        what = "is not a store's Arrow Flight service: another program responds with"
        remedy = "use the store's flight_port, as 'dafka store' prints it"
        sentence = f"{store.name} {what} {store.stranger!r}"
        return problem("stores", sentence, remedy, lasts=True)
    sentence = f"{store.name} does not respond by Arrow Flight: {store.failure}"
    remedy = "check that it runs, and that the firewall opens its flight_port"
    # The records of a connected store can be read over the mesh, though more slowly.
    is_met = not store.is_named and store.connects
    return (warning if is_met else problem)("stores", sentence, remedy)


def check_away(facts: Facts) -> Iterator[Finding]:
    """Warn about known stores that do not respond."""
    for each in facts.away:
        remedy = f"restart it, or 'dafka store forget {escape(each.store)}' if it is gone for ever"
        sentence = f"{described(each)} is away: results lack the records that only it has"
        yield warning("stores", sentence, remedy)


def check_ways(facts: Facts) -> Iterator[Finding]:
    """Check that stores can connect to this node."""
    unmet = [each for each in facts.stores if not each.connects]
    if not unmet:
        return
    names = ", ".join(each.store for each in unmet)
    sentence = f"{names} cannot connect to this node at {facts.endpoint}"
    if all(each.locations and not each.failure for each in unmet):
        sentence += ": only operations over Arrow Flight work from here"
        yield warning("connections", sentence, _LET_CONNECT)
    else:
        yield problem("connections", sentence, _LET_CONNECT)


def check_topics(facts: Facts) -> Iterator[Finding]:
    """Check that the topics exist."""
    names = {tp.topic for tp in facts.heads}
    for topic in facts.topics if facts.asked else ():
        ends = [info for tp, info in facts.heads.items() if tp.topic == topic]
        if not ends:
            near = what_there_is(topic, names, "topics")
            remedy = "correct the name, or write to it: a topic exists once it has a record"
            yield problem("topic", f"no store has topic {quoted(topic)} ({near})", remedy)
        else:
            records = sum(info.end - info.earliest for info in ends)
            partitions = "1 partition" if len(ends) == 1 else f"{len(ends)} partitions"
            yield ok("topic", f"topic {quoted(topic)} has {partitions} with {records} records")


def check_clocks(facts: Facts) -> Iterator[Finding]:
    """Check that the stores' clocks agree with each other and with this machine's."""
    known = [each for each in facts.stores if each.ahead_s is not None]
    if not known:
        return
    at = sorted(known, key=_ahead)
    remedy = "synchronize the clocks (NTP): timestamps must be right within a minute"
    found = [
        warning(
            "clocks", f"the clocks of {one.name} and {other.name} are {shown_s(gap)} apart", remedy
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


def check_disks(facts: Facts) -> Iterator[Finding]:
    """Check that the stores accept records."""
    for each in facts.stores:
        if each.refusal:
            sentence = f"{each.name} accepts no records: {each.refusal}"
            yield problem("disks", sentence, "its readers and other stores are unaffected")


def check_versions(facts: Facts) -> Iterator[Finding]:
    """Check that stores know the requests of this version."""
    for each in facts.stores:
        if each.lacks:
            lacks = ", ".join(each.lacks)
            sentence = f"{each.name} has an older version than this program: it lacks {lacks}"
            remedy = "upgrade it; until then features that need these are unavailable or slower"
            yield warning("versions", sentence, remedy)
        elif each.more:
            sentence = f"{each.name} has a newer version than this program"
            yield warning("versions", sentence, "update this program, too")


def check_files(facts: Facts) -> Iterator[Finding]:
    """Check that the files of stores on this machine are readable, which is the fastest way."""
    for each in facts.stores:
        if each.file is FileAccess.READABLE:
            yield ok("files", f"the file of {each.name} can be read from here")
        elif each.file is FileAccess.UNREADABLE:
            yield warning(
                "files",
                f"the file of {each.name} is on this machine, but cannot be read from here: "
                "records are read by Arrow Flight, which is slower",
                "give this user read access to its directory, also inside of containers",
            )


def check_retention(facts: Facts) -> Iterator[Finding]:
    """Check that rules which were set apply to all stores: one may have been away."""
    rules = {each.name: each.rules for each in facts.stores if each.rules is not None}
    if any(each.rules_set for each in facts.stores) and len(set(rules.values())) > 1:
        shown = ", ".join(f"{name}: {' '.join(each) or 'none'}" for name, each in rules.items())
        remedy = "unless this is intended, repeat 'dafka retain' with the rules"
        yield warning("retention", f"stores have different retention rules ({shown})", remedy)


def check_damage(facts: Facts) -> Iterator[Finding]:
    """Warn about stores with damaged records."""
    yield from (damage(each.name, each.damaged) for each in facts.stores if each.damaged)


CHECKS: Final[Sequence[Check]] = (
    check_stores,
    check_away,
    check_ways,
    check_topics,
    check_clocks,
    check_disks,
    check_damage,
    check_versions,
    check_files,
    check_retention,
)


def clock_doubt(name: str, why: str) -> Finding:
    """Return the warning about a store that distrusts its clock."""
    sentence = f"the clock of {name} is in doubt, so it deletes nothing by age: {why}"
    return warning("clocks", sentence, "synchronize it (NTP); if it is right, wait an hour")


def damage(name: str, count: int) -> Finding:
    """Return the warning about a store with damaged records."""
    partitions = "1 partition" if count == 1 else f"{count} partitions"
    sentence = f"{name} has damaged records in {partitions}, not replaced by another store's yet"
    remedy = "check its disk; start a store that has them, or see 'dafka store verify'"
    return warning("damage", sentence, remedy)


def shown_s(seconds: float) -> str:
    """Format a duration."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _ahead(store: StoreFacts) -> float:
    return store.ahead_s or 0.0


ABOUT: Final = "security"

_LOCK: Final = "give towers and nodes keys (docs/security.md), or restrict access with a firewall"


def check_security(config: SecurityOptions, facts: Facts) -> list[Finding]:
    """Check ports, files and keys for access by others."""
    found = [*_open_ports(facts), *_open_files(facts), *_own_keys(config)]
    if config.may_be_open:
        sentence = f"option insecure (or {INSECURE_ENVIRONMENT}) is set here"
        remedy = "remove it: it allows nodes of this machine to open ports without keys"
        found.append(warning(ABOUT, sentence, remedy))
    if not config.secret_key_file and not any(each.remedy for each in found):
        sentence = "no keys are used, and no port without keys was found beyond loopback"
        found.append(ok(ABOUT, sentence))
    return found


def _open_ports(facts: Facts) -> Iterator[Finding]:
    everyone = "to every client that reaches it, without keys"
    for tower, sub, pub in facts.towers:
        is_open = {sub.reply, pub.reply} - {"", LOCKED}
        if is_open and not is_loopback(tower.host):
            yield warning(ABOUT, f"tower {tower} is open {everyone}", _LOCK)
    for store in facts.stores:
        for location in store.locations:
            where = urlsplit(location)
            if where.scheme in TCP_SCHEMES and not is_loopback(where.hostname or ""):
                sentence = f"{store.name} serves Arrow Flight at {location} {everyone}"
                yield warning(ABOUT, sentence, _LOCK)


def _open_files(facts: Facts) -> Iterator[Finding]:
    for store in facts.stores:
        for location in store.locations:
            where = urlsplit(location)
            directory = Path(where.path).parent
            if where.scheme == UNIX_SCHEME and directory.is_dir():
                mode = stat.S_IMODE(directory.stat().st_mode)
                if mode & stat.S_IROTH and mode & stat.S_IXOTH:
                    sentence = f"all users of this machine can read the records of {store.name}"
                    yield warning(ABOUT, sentence, f"'chmod o-rx {directory}'")


def _own_keys(config: SecurityOptions) -> Iterator[Finding]:
    if not config.secret_key_file:
        return
    try:
        own = read_secret(config.secret_key_file).public.decode()
        allowed = AllowedKeys(config.allowed_keys)
    except ConfigError as error:
        yield problem(ABOUT, str(error), "correct it: no node starts with these keys", lasts=True)
        return
    known = allowed.find(own)
    if known is None:
        sentence = f"this node's own key, {own}, is not in {allowed.directory}"
        remedy = "copy its .key file there, and to all nodes that must admit it"
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
        trusted.add(Path(own_file).stat().st_uid)  # the node's user, if it differs from ours
    others: dict[int, list[Path]] = {}
    for path in (directory, *(directory / f"{key.name}{PUBLIC}" for key in allowed.all())):
        try:
            status = path.stat()
        except OSError:  # it was deleted meanwhile
            continue
        if status.st_mode & stat.S_IWGRP:
            sentence = f"a group can write to {path}, and so admit any key"
            yield warning(ABOUT, sentence, f"'chmod g-w {path}'")
        if status.st_uid not in trusted:
            others.setdefault(status.st_uid, []).append(path)
    for user, paths in others.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        sentence = f"user {user} owns {paths[0]}{more}, and can admit any key"
        cure = f"'chown root {directory} {directory}/*{PUBLIC}', or chown to this node's user"
        yield warning(ABOUT, sentence, cure)


def _check_key(directory: Path, key: AllowedKey, own_file: str) -> Iterator[Finding]:
    if TOWER in key.roles and len(key.roles) > 1:
        sentence = f"key {key.name} has role tower and other roles"
        remedy = "create a key for the tower only: towers are the nodes most exposed to attackers"
        yield warning(ABOUT, sentence, remedy)
    secret = directory / f"{key.name}{SECRET}"
    if secret.exists() and not (Path(own_file).exists() and secret.samefile(own_file)):
        sentence = f"the secret of key {key.name} is here, too ({secret})"
        remedy = "move it to its owner: reading it grants the owner's permissions"
        yield warning(ABOUT, sentence, remedy)
    if not key.certificate:
        sentence = f"Arrow Flight rejects key {key.name}: its file has no certificate"
        yield warning(ABOUT, sentence, f"'dafka keys renew {key.name}', and copy its .key file")
