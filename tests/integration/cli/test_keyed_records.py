"""``dafka produce --key --header``, and what ``dafka consume`` shows of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.cli.processes import run, succeed


def produce(tower: str, values: list[bytes], *arguments: str) -> None:
    lines = b"".join(value + b"\n" for value in values)
    succeed("produce", "keyed", "--tower", tower, *arguments, given=lines)


def test_keys_and_headers(tower: str) -> None:
    headers = ["--header", "trace=ab=c", "--header", "trace=", "--header", "ünï=\udcff"]
    produce(tower, [b"first", b""], "--key", "k\udcff", *headers)
    produce(tower, [b"bare"])
    ask = ["consume", "keyed", "--tower", tower, "--from-beginning", "--count", "3"]
    shown = [json.loads(line) for line in run(*ask, "--json").stdout.splitlines()]
    keyed = [record for record in shown if "key" in record]
    assert [record["value"] for record in keyed] == ["first", ""]
    assert keyed[0]["key"] is None
    assert keyed[0]["key_base64"] == "a/8="
    assert keyed[0]["headers"] == [
        {"name": "trace", "value": "ab=c"},
        {"name": "trace", "value": ""},
        {"name": "ünï", "value": None, "value_base64": "/w=="},
    ]
    [bare] = [record for record in shown if "key" not in record]
    assert sorted(bare) == ["offset", "partition", "timestamp", "topic", "value"]
    assert datetime.now(UTC) - datetime.fromisoformat(bare["timestamp"]) < timedelta(minutes=5)
    assert set(run(*ask).stdout.splitlines()) == {b"first", b"", b"bare"}
    closed = run(*ask, "--envelope", "none").stdout.splitlines()
    assert sum(line.startswith(b"\xc1DFK\x01") for line in closed) == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--header", "name"], "option 'header' = 'name': must be NAME=VALUE"),
        (["--key", "k", "--envelope", "none"], "'none': publishes no keys, headers and null"),
    ],
)
def test_what_cannot_be_published_is_refused_at_once(given: list[str], says: str) -> None:
    refused = run("produce", "t", "--tower", "127.0.0.1:1:2", *given)
    assert refused.returncode == 2
    assert says in refused.stderr.decode()
