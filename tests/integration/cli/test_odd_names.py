"""Topics of arbitrary bytes: shown escaped, and accepted in that form."""

import json
import os
import pty
import subprocess
import threading

import pytest

from dafka_core.model.names import escape, text_of
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import Ack, ConsumerHello, RecordMessage, StoreHello
from dafka_core.testing import wait_until
from tests.integration.cli.processes import command, environment, listed, refusal, run, succeed
from tests.integration.nodes.peers import RawPeer

OCTETS = (
    b"bad\xff",
    b"new\nline",
    b"tab\t",
    b"\x1b[31mred\x1b]0;title\x07",
    rb"a\xff",
    b"\xfe" * 255,
)
SHOWN = [escape(text_of(octets)) for octets in OCTETS]


@pytest.fixture(scope="module")
def odd(tower: str) -> str:
    """A tower with a store that has a record in each topic, from a C producer."""
    with RawPeer(tower) as peer:
        for kind in (Ack, StoreHello):
            peer.subscribe(subscription(kind, peer.address))
        peer.wait_for(StoreHello)
        [store] = {hello.store for hello in peer.messages(StoreHello)}
        peer.wait_until_subscribed(subscription(ConsumerHello, store))
        for octets in OCTETS:
            peer.send(RecordMessage(text_of(octets), peer.address, 0, b"in " + octets))
        wait_until(lambda: len({ack.topic for ack in peer.messages(Ack)}) == len(OCTETS))
    return tower


def test_topics_are_listed_escaped(odd: str) -> None:
    asked = run("topics", "--tower", odd)
    assert (asked.returncode, asked.stderr) == (0, b"")
    rows = listed(asked)
    assert sorted(row[:3] for row in rows) == sorted([each, "1", "1"] for each in SHOWN)
    asked = run("topics", "--tower", odd, "--json")
    assert sorted(json.loads(line)["topic"] for line in asked.stdout.splitlines()) == sorted(SHOWN)


def test_a_terminal_gets_no_control_character_of_a_name(odd: str) -> None:
    ours, its = pty.openpty()
    said = bytearray()

    def read() -> None:
        try:
            while more := os.read(ours, 4_096):
                said.extend(more)
        except OSError:  # the other end is closed
            pass

    reading = threading.Thread(target=read)
    reading.start()
    variables = environment(COLUMNS="2000", TERM="xterm", NO_COLOR="1", DAFKA_TOWER=odd)
    done = subprocess.run(command(["topics"]), stdout=its, stderr=its, env=variables, check=False)
    os.close(its)
    reading.join()
    os.close(ours)
    assert done.returncode == 0
    assert set(SHOWN) <= set(said.decode().split())
    assert b"\x1b[31m" not in said
    assert b"\x07" not in said


@pytest.mark.parametrize(("octets", "shown"), [*zip(OCTETS, SHOWN, strict=True)])
def test_what_is_listed_names_the_topic(odd: str, octets: bytes, shown: str) -> None:
    asked = succeed("heads", shown, "--tower", odd)
    assert listed(asked)[0][1:] == ["0", "1"]
    options = ("--tower", odd, "--from-beginning", "--count", "1")
    read = run("consume", shown, *options)
    assert (read.returncode, read.stdout) == (0, b"in " + octets + b"\n")
    assert read.stderr.decode() == f"topic {shown}, from earliest\n"
    read = run("consume", shown, *options, "--json")
    assert json.loads(read.stdout)["topic"] == shown


def test_octets_may_be_given_as_they_are(odd: str) -> None:
    succeed("heads", text_of(b"bad\xff"), "--tower", odd)


def test_an_unknown_topic_is_shown_as_it_was_written(odd: str) -> None:
    asked = refusal(1, "heads", r"worse\x0a\xff", "--tower", odd)
    assert asked.startswith(r"no store has records of topic 'worse\x0a\xff' (there are ")
    assert run("heads", r"a\x00", "--tower", odd).returncode == 2


def test_no_such_topic_is_created_unless_told_to(odd: str) -> None:
    at = ("--tower", odd)
    assert refusal(2, "produce", "a\nb", *at, given=b"1\n") == (
        r"option 'topic' = 'a\x0ab': has control characters, or bytes that are not UTF-8: use "
        "another name, or set option allow_control_characters to true"
    )
    done = succeed("produce", r"a\x0ab", *at, "--allow-control-characters", given=b"1\n")
    assert rb"topic a\x0ab, partition" in done.stderr
    assert listed(run("heads", r"a\x0ab", *at))[0][1:] == ["0", "1"]


def test_an_address_is_shown_escaped(odd: str) -> None:
    assert refusal(2, "produce", "t", "--tower", odd, "--address", "P\x1b").startswith(
        r"option 'address' = 'P\x1b': must be 32 hexadecimal digits"
    )
