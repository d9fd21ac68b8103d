"""Errors keep their type, sentence and facts between processes."""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.errors import (
    CHANGED,
    BackPressureError,
    ClosedError,
    ConfigError,
    DafkaError,
    DataLossError,
    DiskFullError,
    FencedError,
    FetchTimeoutError,
    ForkedError,
    HistoryChangedError,
    InvalidRequestError,
    LeaseEndedError,
    MissingStoresError,
    NodeFailedError,
    NoStoreError,
    NotAcknowledgedError,
    NotAllowedError,
    OffsetConflictError,
    PartitionError,
    PartitionFullError,
    ProducerFencedError,
    ProtocolError,
    RecordTooLargeError,
    StoreBusyError,
    StoreError,
    StoreUnreachableError,
    TowerNotFoundError,
    _TowersError,
    is_secret,
)
from dafka_core.model.log_entries import TransactionExistsError
from dafka_core.model.records import Transaction

TOWERS = ["127.0.0.1:5556:5557", "[::1]:1:2"]
ERRORS: list[tuple[DafkaError, str]] = [
    (
        ConfigError("acks", "no", "must be a whole number"),
        "option 'acks' = 'no': must be a whole number",
    ),
    (
        InvalidRequestError("start", -1, "must be `int` >= 0"),
        "member 'start' = -1: must be `int` >= 0",
    ),
    (ProtocolError("the version is not 1"), "the version is not 1"),
    (
        PartitionFullError("t", "P", 7, 2, 8),
        (
            "topic 't', partition P: 2 records were to be written from offset 7 on, and there is "
            "none from 8 on: publish to a new partition, by a producer without an address"
        ),
    ),
    (
        RecordTooLargeError("t", "P", 7, 20, 10, "store S"),
        (
            "topic 't', partition P: the record at offset 7 has 20 bytes, and store S takes at "
            "most 10: raise its option max_record_bytes, or publish smaller records"
        ),
    ),
    (ClosedError("consumer"), "the consumer is closed"),
    (
        ForkedError("Producer", 17),
        (
            "this Producer is process 17's, which has forked this one: its threads are not here; "
            "make a new one in this process, or start processes anew (multiprocessing's method "
            "'spawn')"
        ),
    ),
    (NodeFailedError("store", "no space left"), "the store has failed: no space left"),
    (
        TowerNotFoundError(TOWERS, 2.5),
        (
            "no tower answered at 127.0.0.1:5556:5557, [::1]:1:2 within 2.5 s; start one with "
            "'dafka tower', or name a running one (option 'tower', environment DAFKA_TOWER); "
            "'dafka doctor' finds the cause"
        ),
    ),
    (
        TowerNotFoundError(["h:1:2"], 1.2, diagnosis="nothing listens there; start one"),
        "no tower answered at h:1:2 within 1.2 s: nothing listens there; start one",
    ),
    (
        TowerNotFoundError(["nowhere:1:2"], 0.1, ["nowhere"]),
        "no tower answered at nowhere:1:2 within 0.1 s, and there is no host nowhere; correct",
    ),
    (
        BackPressureError("t", "P", 500_000, 60),
        "topic 't', partition P: 500000 records wait for a store's acknowledgement and none came ",
    ),
    (
        NotAcknowledgedError("t", "P", 7, 0.5),
        "topic 't', partition P: 7 records are not acknowledged after 0.5 s; ",
    ),
    (
        NotAcknowledgedError("t", "P", 7, 0.5, 3),
        "topic 't', partition P: 7 records are not acknowledged after 0.5 s; ",
    ),
    (
        HistoryChangedError("t", "P", 7, None, CHANGED, 9),
        "topic 't', partition P: the records from offset 7 to 9 (exclusive) that were read are ",
    ),
    (
        ProducerFencedError("t", "P", 4, 7, 9),
        (
            "topic 't', partition P: another producer with this address has taken over (life 4): "
            "records 7 to 9 (exclusive) are not acknowledged; give each producer an address of its "
        ),
    ),
    (
        MissingStoresError("t", "P", 2, ["S1", "S2"]),
        (
            "topic 't', partition P: 2 stores have to say how far it goes, and S1, S2 do not "
            "answer; start them, or wait longer (option resume_timeout_s). "
        ),
    ),
    (DiskFullError("data", "the disk is full"), "store at data: the disk is full"),
    (
        StoreError(Path("data") / "store", "it is not a directory"),
        f"store at {Path('data') / 'store'}: it is not a directory",
    ),
    (
        LeaseEndedError("t", "P", "5" * 32, 7, 10),
        f"topic 't', partition P: store {'5' * 32} ended the lease of its file before offset 7 ",
    ),
    (
        DataLossError("t", "P", 3, 9, "retention removed the rest"),
        "topic 't', partition P: offset 3 was asked for, offset 9 on is available: retention ",
    ),
    (
        DataLossError("t", "P", 3, None, "no store has the partition"),
        "topic 't', partition P: offset 3 was asked for, nothing is available: no store has ",
    ),
    (
        FetchTimeoutError("t", "P", 3, 9, 30),
        "topic 't', partition P: offsets 3 to 9 (exclusive) did not arrive: no progress for 30 s.",
    ),
    (
        NoStoreError(TOWERS, 5),
        "no store was heard of through 127.0.0.1:5556:5557, [::1]:1:2 within 5 s; start one with ",
    ),
    (
        NoStoreError(["h:1:2"], 5, diagnosis="nobody is there; come"),
        "no store was heard of through h:1:2 within 5 s: nobody is there; come",
    ),
    (
        NoStoreError(TOWERS, 5, ["ABC", "DEF"], "tcp://h:7"),
        "no store has answered within 5 s: ABC, DEF cannot connect to this node at tcp://h:7; set ",
    ),
    (
        StoreUnreachableError("ABC", "no progress for 5 s"),
        "store ABC: no progress for 5 s; another store may have the records",
    ),
    (
        StoreBusyError("ABC", "it serves 32 puts already", 30, True),
        "store ABC: it serves 32 puts already; another store may have the records",
    ),
    (
        NotAllowedError("client", "consume 'logs.*'", "consume 'orders'"),
        "key client may consume 'logs.*', and not consume 'orders' (docs/security.md)",
    ),
    (
        OffsetConflictError("t", "P", 7, 9),
        (
            "topic 't', partition P: records were to be written from offset 7 on, but the "
            "partition ends at 9: go on from there"
        ),
    ),
    (
        FencedError("t", "P", "A" * 32),
        f"topic 't', partition P: attempt {'A' * 32} has nothing staged here: another attempt has ",
    ),
    (
        TransactionExistsError("t", "P", Transaction(7, 3, 9)),
        (
            "topic 't', partition P: transaction 7 is committed already, at offsets 3 to 9 "
            "(exclusive): write newer ones only"
        ),
    ),
]

every_error = pytest.mark.parametrize(
    ("error", "start"), ERRORS, ids=lambda value: type(value).__name__
)


def kinds(base: type[DafkaError]) -> Iterator[type[DafkaError]]:
    for kind in base.__subclasses__():
        if kind.__module__ in (ConfigError.__module__, TransactionExistsError.__module__):
            yield kind
            yield from kinds(kind)


def test_every_error_is_tried() -> None:
    bases = {PartitionError, _TowersError}
    assert {type(error) for error, _ in ERRORS} == set(kinds(DafkaError)) - bases


@every_error
def test_a_copy_has_the_type_sentence_and_facts(error: DafkaError, start: str) -> None:
    assert str(error).startswith(start)
    assert error.args == (str(error),)
    protocols = range(pickle.HIGHEST_PROTOCOL + 1)
    pickled = [pickle.loads(pickle.dumps(error, protocol)) for protocol in protocols]
    for again in (*pickled, copy.copy(error), copy.deepcopy(error)):
        assert again is not error
        assert (type(again), str(again), again.args) == (type(error), str(error), error.args)
        assert vars(again) == vars(error)


def test_facts_do_not_change_with_what_they_were_made_of() -> None:
    assert TowerNotFoundError(["h:1:2"], 0.1, ["h"]).towers == ("h:1:2",)
    assert TowerNotFoundError(["h:1:2"], 0.1, ["h"]).unknown_hosts == ("h",)
    assert NoStoreError(TOWERS, 5, ["A"], "tcp://h:7").unconnected == ("A",)
    assert MissingStoresError("t", "P", 2, ["S"]).stores == ("S",)
    assert StoreError(Path("data") / "store", "full").directory == str(Path("data") / "store")


def test_changing_a_copy_leaves_the_error() -> None:
    error = ClosedError("consumer")
    copy.copy(error).what = "producer"
    assert error.what == "consumer"


class OwnError(ConfigError):
    """An application's subclass with a constructor of its own."""

    def __init__(self) -> None:
        super().__init__("own", 1, "must be 2")
        self.extra = [1]


def test_subclasses_survive() -> None:
    again = pickle.loads(pickle.dumps(OwnError()))
    assert type(again) is OwnError
    assert str(again) == "option 'own' = 1: must be 2"
    assert again.extra == [1]


def test_wrong_options_are_value_errors() -> None:
    assert isinstance(ConfigError("a", 1, "b"), ValueError)
    assert isinstance(InvalidRequestError("a", 1, "b"), ValueError)
    assert not isinstance(ProtocolError("a"), ValueError)


def test_notes_survive() -> None:
    error = StoreError("data", "full")
    error.add_note("while writing a block")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while writing a block"]


def test_base_without_facts() -> None:
    error = pickle.loads(pickle.dumps(DafkaError("something")))
    assert type(error) is DafkaError
    assert str(error) == "something"


@pytest.mark.parametrize(
    ("option", "secret"),
    [
        ("sasl.jaas.config", True),
        ("SSL.keystore", True),
        ("paswd", True),
        ("api_key", True),
        ("dafka.key", True),
        ("KEY", True),
        ("monkey", False),
        ("subscribe", False),
        ("classLoader", False),
        ("key.deserializer", False),
    ],
)
def test_names_of_secrets(option: str, secret: bool) -> None:
    assert is_secret(option) is secret
