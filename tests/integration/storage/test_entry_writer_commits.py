"""Transactions and kills: each is committed whole or not at all, in all partitions."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

from dafka_core.errors import DafkaError
from dafka_core.model.records import TopicPartition, Transaction
from dafka_core.storage import Log
from tests.integration.storage import committer
from tests.integration.storage.committer import (
    PARTITIONS,
    all_values,
    committed,
    transaction_values,
)
from tests.integration.storage.processes import started
from tests.integration.storage.staged import TP, A, clean, held, stage


def check(store: Log, at_least: int, at_most: int) -> None:
    """Check that every partition has the same complete transactions."""
    transactions = committed(store)
    assert at_least <= transactions <= at_most
    for partition in PARTITIONS:
        assert held(store, partition) == all_values(partition, transactions)
        info = store.transaction_state(TopicPartition("t", partition))
        if transactions:
            start = info.end - len(transaction_values(partition, transactions - 1))
            assert info.transaction == Transaction(transactions - 1, start, info.end)


def test_transactions_survive_kills_as_a_whole(tmp_path: Path) -> None:
    chance = random.Random(4)
    transactions = 0
    for seed in range(10):
        command = [sys.executable, "-m", committer.__name__, str(tmp_path), str(seed)]
        with started(command) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(chance.randint(1, 30))]
            time.sleep(chance.random() * 0.01)  # anywhere in a step, a commit or a merge
            process.kill()
            lines += [line for line in process.stdout if line.endswith("\n")]
        assert lines[0] == f"opened {transactions}\n"
        told = int(lines[-1].split()[1])
        with Log(tmp_path) as store:
            check(store, told, told + 1)
            transactions = committed(store)
            if seed % 3 == 0:
                clean(store)
                check(store, transactions, transactions)
    assert transactions > 30


@pytest.mark.parametrize("number", [0, 3])
def test_a_kill_between_staging_and_committing(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", committer.__name__, str(tmp_path), "1"]
    with started(command) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == f"staged {number}\n":
                break
        process.kill()
    with Log(tmp_path) as store:
        check(store, number, 1 << 30)
        # The next writer begins anew, whatever was left.
        transactions = committed(store)
        commit = committer.write_transaction(store, transactions, random.Random(9))
        assert store.write([commit]) == [None]
        check(store, transactions + 1, transactions + 1)


def test_what_was_staged_before_a_kill_can_be_gone_on_with(tmp_path: Path) -> None:
    code = (
        "import os, sys; from dafka_core.storage import Log\n"
        "from tests.integration.storage.staged import large, stage\n"
        "store = Log(sys.argv[1]); store.write([stage(large(200), 0)])\n"
        "print('staged', flush=True); store.write([stage(large(500), 200)]); os._exit(9)"
    )
    with started([sys.executable, "-c", code, str(tmp_path)]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "staged\n"
        process.kill()
    with Log(tmp_path) as store:
        assert store.partitions() == []
        info = store.transaction_state(TP)
        assert info.staged_end in (200, 700)
        outcomes: list[DafkaError | None] = store.write([stage([b"more"], info.staged_end, A)])
        assert outcomes == [None]
