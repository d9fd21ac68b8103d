"""What is open to whom, as far as this node can see: an audit of a cluster's locks."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from dafka_core.credentials import parsed
from dafka_core.diagnosis.facts import Facts
from dafka_core.diagnosis.findings import Finding, ok, problem, warning
from dafka_core.diagnosis.port_probe import LOCKED
from dafka_core.errors import ConfigError
from dafka_core.flight.store_location import TCP_SCHEMES, UNIX_SCHEME
from dafka_core.keys.allowed_keys import AllowedKeys
from dafka_core.keys.key_files import PUBLIC, SECRET, AllowedKey, read_secret
from dafka_core.nodes.addresses import is_loopback
from dafka_core.permissions import TOWER
from dafka_core.security_options import INSECURE_ENVIRONMENT, SecurityOptions

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
