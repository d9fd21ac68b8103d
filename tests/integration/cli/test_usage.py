"""``dafka --help``, ``--version``, completion of words, and mistyped commands."""

import shlex
from importlib import metadata

import pytest

from dafka_console.options import ConsoleOptions
from dafka_core.cli.app import versions
from dafka_core.config.node_options import (
    ConsumerOptions,
    ProducerOptions,
    ReaderOptions,
    StoreOptions,
    TowerOptions,
)
from dafka_core.config.options import Options
from dafka_kafka.options import KafkaOptions
from tests.integration.cli.processes import refusal, run, sentence, succeed

TABLES: dict[str, tuple[type[Options], ...]] = {
    "up": (TowerOptions, StoreOptions),
    "tower": (TowerOptions,),
    "store": (StoreOptions,),
    "kafka": (KafkaOptions, StoreOptions),
    "produce": (ProducerOptions,),
    "consume": (ConsumerOptions,),
    **dict.fromkeys(("nodes", "topics", "partitions", "heads", "staged"), (ReaderOptions,)),
    **dict.fromkeys(("retain", "trim", "delete", "stores", "lag"), (ReaderOptions,)),
    **dict.fromkeys(("groups", "top", "archive"), (ReaderOptions,)),
    "console": (ConsoleOptions, ReaderOptions),
    "checkpoint": (),
    "job": (),
}


def test_help_lists_the_commands() -> None:
    shown = succeed("--help")
    assert all(name in shown.stdout.decode() for name in TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_help_of_a_command_lists_every_option_of_its_table(name: str) -> None:
    shown = succeed(name, "--help", COLUMNS="160")
    expected = {row.name for table in TABLES[name] for row in table.table()}
    if name == "up":  # it has a tower of its own
        expected -= {"tower", "join"}
    text = shown.stdout.decode()
    assert [n for n in sorted(expected) if f"--{n.replace('_', '-')}" not in text] == []
    assert "exit-with-parent" not in text


def test_without_a_command_the_help_is_shown() -> None:
    shown = run()
    assert shown.returncode == 2
    assert b"Usage: dafka" in shown.stdout + shown.stderr
    assert b"dafka: " not in shown.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("prodce t", "unknown command 'prodce'; did you mean produce?"),
        ("produce t --akcs 2", "unknown option --akcs; did you mean --acks?"),
        ("store --dri d", "unknown option --dri; did you mean --dir?"),
        ("store asside d", "unknown command 'asside'; did you mean aside?"),
        ("orders", "unknown command 'orders' (see 'dafka --help')"),
        ("topics --since x", "unknown option --since (see 'dafka topics --help')"),
        ("topics -x", "unknown option -x (see 'dafka topics --help')"),
        ("produce", "Missing argument 'TOPIC'"),
        ("store", "for '--dir': is required"),
        ("consume t --count 0", "0 is not in the range x>=1"),
        ("produce t --acks two", "option 'acks' = 'two': must be a whole number"),
        ("produce t --acks 0", "option 'acks' = '0': must be at least 1"),
        ("produce t --wire x", "option 'wire' = 'x': must be one of"),
        ("consume t --tower a:b", "must be HOST[:SUB_PORT:PUB_PORT]"),
        ("topics --tower h:1:70000", "must have ports in 1 to 65535"),
        ("topics --tower -", "must be HOST[:SUB_PORT:PUB_PORT]"),
        ("topics --timeout-s 1e300", "1e+300 is not in the range 0.01<=x<="),
        ("topics --tower-timeout-s 1e300", "'tower_timeout_s' = '1e300': must be at most"),
        ("tower --sub-address x", "must be tcp://HOST:PORT"),
        ("tower --sub-address tcp://127.0.0.1:70000", "must be tcp://HOST:PORT"),
        ("tower --sub-address tcp://203.0.113.1:1", "Cannot assign requested address"),
        ("produce t --address 12", "option 'address' = '12': must be 32 hexadecimal"),
        ('produce t --address ""', "option 'address' = '': must be 32 hexadecimal"),
        ('consume ""', "option 'topic' = '': a topic must have 1 to 255 bytes"),
        ('produce ""', "option 'topic' = '': a topic must have 1 to 255 bytes"),
        ('heads ""', "option 'topic' = '': a topic must have 1 to 255 bytes"),
        (f"produce {'x' * 256}", "a topic must have 1 to 255 bytes"),
        (f"consume {'x' * 256}", "a topic must have 1 to 255 bytes"),
        ('store --dir ""', "option 'directory' = '': must name a directory"),
        ('store restore ""', "option 'directory' = '': must name a directory"),
        ("store --dir d --host 'a b'", "option 'host' = 'a b': must be a host name"),
        ("consume t --offset first", "'--offset': 'first': must be earliest, latest, an offset"),
        ("consume t --since yesterday", "for '--since': 'yesterday': must be a time like 2026"),
        ("consume t --offset 1 --since 1h", "for '--since': cannot be combined with --offset"),
        ("consume t --from-beginning --since 1h", "'--from-beginning': cannot be combined with"),
        ("consume t --since 1h --until 2h", "for '--until': must be later than --since"),
        ("consume t --until 2999-01-01T00:00Z", "for '--until': is in the future; --exit-at-end"),
        ("consume t --format %x", "for '--format': '%x': %x is unknown; known are %t, %p"),
        ("consume t --format %v --json", "for '--format': cannot be combined with --json"),
        ("consume t --where key", "for '--where': 'key': "),
        ("consume t --where \"key='1'\" --grep a", "for '--where': cannot be combined with --grep"),
        ("consume t --grep '(a'", "option 'grep' = '(a': Invalid regular expression: missing )"),
        ("produce t nowhere", "option 'file' = 'nowhere': cannot be read: No such file"),
        ("produce t /", "option 'file' = '/': cannot be read: Is a directory"),
        ("produce t --input jsn", "for '--input': 'jsn' is unknown; did you mean 'json'?"),
        ("produce t --input json --key-separator :", "'--key-separator': requires --input lines"),
        ("produce t --key-column a", "for '--key-column': requires --input csv"),
        ("produce t --rate 0", "for '--rate'"),
        ("produce t --rate inf", "for '--rate': inf is not a finite number"),
        ("topics --timeout-s nan", "for '--timeout-s': nan is not a finite number"),
        ("copy a.csv b.csv", "FROM or TO must be a topic"),
        ("copy a a", "is the same topic"),
        ("copy a b.csv --resume", "for '--resume': copies all records of a topic to a topic"),
        ("copy a b --follow --since 1h", "'--follow': copies all records of a topic to a topic"),
        ("copy a o.xlsx", "looks like a file, but its suffix is not one of .parquet, .jsonl,"),
        ("copy a.parquet b", "option 'file' = 'a.parquet': cannot be read"),
        ('copy a ""', "a topic must have 1 to 255 bytes"),
        ("produce t --header name", "option 'header' = 'name': must be NAME=VALUE"),
        ("produce t --key k --envelope none", "'none': publishes no keys, headers and null"),
        ("top --once --sort size", "must be one of bytes, name, rate, records"),
        ("top --once --stores here", "must be like grpc://HOST:PORT"),
        ('top --once --topic ""', "topic"),
        ("doctor --stores h:1", "must be like grpc://HOST:PORT"),
        ('doctor --topic ""', "option 'topic' = ''"),
        ("doctor --tower h:x", "option 'tower' = 'h:x'"),
        ("doctor --severity all", "unknown option --severity (see 'dafka doctor --help')"),
        ("console --token-file /nowhere", "dafka keys token FILE"),
        ("console --listen nowhere:x", "must be HOST:PORT, as 127.0.0.1:8046"),
        ("console --stores here", "must be like grpc://HOST:PORT"),
        ("console --interval-ms 1", "at least 100"),
        ("keys new n --role stroe", "'stroe' is no role; did you mean 'store'?"),
        ("keys new ../n", "must begin with a letter or digit"),
        ("keys new n --keys /dev/null/x", "cannot be written to: Not a directory"),
        ("keys show --keys /dev/null", "is not a directory"),
    ],
)
def test_what_cannot_be_used_gets_a_sentence(line: str, expected: str) -> None:
    refused = run(*shlex.split(line), DAFKA_TOWER="127.0.0.1:1:2")
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert expected in sentence(refused)


@pytest.mark.parametrize("value", ["a:b", "h:1:70000", " ", ","])
def test_a_wrong_variable_of_the_environment_is_named(value: str) -> None:
    refused = refusal(2, "topics", DAFKA_TOWER=value)
    expected = f"environment variable 'DAFKA_TOWER' = {value!r}: must "
    assert refused.startswith(expected)
    # It does not matter where the option is given.
    named = run("topics", "--tower", "127.0.0.1:1:2", "--tower-timeout-s", "0.2", DAFKA_TOWER=value)
    assert sentence(named).startswith("no tower answered at 127.0.0.1:1:2 within 0.2 s; start one")


def test_the_versions_are_said() -> None:
    shown = succeed("--version")
    assert shown.stdout.decode().startswith("dafka-spark ")
    assert f"pyzmq {metadata.version('pyzmq')}" in shown.stdout.decode()
    assert versions()["pyarrow"] == metadata.version("pyarrow")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_a_script_that_asks_for_words(shell: str) -> None:
    shown = succeed("completion", shell)
    assert f"{shell}_complete" in shown.stdout.decode()


def test_words_are_completed() -> None:
    def completed(line: str) -> list[str]:
        last = str(len(line.split(" ")) - 1)
        shown = succeed(_DAFKA_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=last)
        return [line.partition(",")[2] for line in shown.stdout.decode().split()]

    assert sorted(completed("dafka con")) == ["config", "console", "consume"]
    assert completed("dafka topics --min") == ["--min-stores"]
    for wrong, says in (
        (["tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        ([], "Missing argument 'bash|zsh|fish'. Choose from: bash, zsh, fish"),
    ):
        assert f"{says} (see 'dafka completion --help')" in refusal(2, "completion", *wrong)
