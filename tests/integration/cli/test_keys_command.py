"""``dafka keys``, and a cluster that has some."""

import json
import shlex
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dafka_core import Tower
from dafka_core.security.key_files import read_public
from tests.forked import ForkedCluster
from tests.integration.cli.processes import (
    command,
    ended,
    environment,
    json_lines,
    refusal,
    run,
    succeed,
)
from tests.integration.nodes.peers import ANY_PORTS
from tests.pages import example


def test_keys_are_made_and_listed_and_let_their_owners_in(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    for name, roles in (("hub", "tower"), ("me", "produce,consume"), ("all", "store")):
        made = succeed("keys", "new", name, "--role", roles, "--keys", str(keys))
        assert f"{keys / name}.key_secret is for its owner only" in made.stderr.decode()
    (keys / "all.key_secret").unlink()
    rows = json_lines("keys", "show", "--keys", str(keys), "--json")
    assert [(row["name"], row["roles"], row["secret"]) for row in rows] == [
        ("all", "store", "elsewhere"),
        ("hub", "tower", "here"),
        ("me", "produce, consume", "here"),
    ]
    options = {"allowed_keys": str(keys)}
    with Tower(**ANY_PORTS, **options, secret_key_file=str(keys / "hub.key_secret")) as tower:
        outside = run("doctor", "--tower", tower.tower, "--timeout-s", "1")
        assert outside.returncode == 1
        told = outside.stdout.decode() + outside.stderr.decode()
        assert "lets in owners of keys only set secret_key_file" in " ".join(told.split())
        own = ("--secret-key-file", str(keys / "me.key_secret"), "--allowed-keys", str(keys))
        inside = run("doctor", "--tower", tower.tower, "--timeout-s", "1", *own)
        told = inside.stdout.decode() + inside.stderr.decode()
        assert "to owners of allowed keys" in " ".join(told.split())


def test_a_key_is_for_topics_of_its_roles(tmp_path: Path) -> None:
    own = ("--keys", str(tmp_path))
    limited = ("--produce", "orders.*,x", "--consume", "y", "--addresses", "A*")
    succeed("keys", "new", "n", *own, *limited)
    made = read_public(tmp_path / "n.key").permissions
    assert (made.produce, made.consume, made.addresses) == (("orders.*", "x"), ("y",), ("A*",))
    listed = run("keys", "show", *own, "--json")
    assert json.loads(listed.stdout)["topics"] == "produce orders.*, x; consume y"
    refused = refusal(2, "keys", "new", "m", *own, "--role", "consume", "--produce", "x")
    assert "is for keys with role produce only: add it to --role" in refused


def test_a_file_written_by_hand_gets_what_flight_needs(tmp_path: Path) -> None:
    succeed("keys", "new", "c", "--role", "consume", "--keys", str(tmp_path))
    public = tmp_path / "c.key"
    made = public.read_text()
    kept = [line for line in made.splitlines() if "certificate =" not in line]
    public.write_text("\n".join([*kept, ""]))
    renewed = run("keys", "renew", "c", "--keys", str(tmp_path))
    said = " ".join(renewed.stderr.decode().split())
    assert f"wrote the certificate into {tmp_path / 'c'}.key" in said
    assert sorted(public.read_text().splitlines()) == sorted(made.splitlines())
    (tmp_path / "c.key_secret").unlink()
    assert run("keys", "renew", "c", "--keys", str(tmp_path)).returncode == 2


def test_what_is_wrong_with_keys_is_an_exit_code(tmp_path: Path) -> None:
    succeed("keys", "new", "n", "--keys", str(tmp_path))
    (tmp_path / "n.key_secret").chmod(0o644)
    listed = run("keys", "show", "--keys", str(tmp_path))
    assert listed.returncode == 1
    assert "can be read by others" in listed.stdout.decode()
    (tmp_path / "n.key_secret").unlink()
    (tmp_path / "n.key").write_text("nothing")
    listed = run("keys", "show", "--keys", str(tmp_path))
    assert listed.returncode == 1
    assert "n.key holds no public key" in listed.stdout.decode()


def test_a_token_is_made_for_its_owner_alone_and_one_that_is_there_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "token"
    made = succeed("keys", "token", str(file))
    token = file.read_text().strip()
    assert token not in made.stderr.decode() + made.stdout.decode()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "File exists" in refusal(2, "keys", "token", str(file))
    assert file.read_text().strip() == token


def test_commands_ask_stores_with_keys() -> None:
    with ForkedCluster(2, keys=True) as cluster:
        reading = cluster.key("reading", ("consume",))

        def asked(keys: dict[str, str], *arguments: str, given: bytes = b"") -> tuple[int, str]:
            found: Any = {f"DAFKA_{name.upper()}": value for name, value in keys.items()}
            done = run(*arguments, given=given, DAFKA_TOWER=cluster.tower, **found)
            return done.returncode, (done.stdout + done.stderr).decode()

        own = cluster.key()
        assert asked(own, "produce", "n", given=b"1\n2\n")[0] == 0
        uri = cluster.locations()[-1]
        for arguments, expected in (
            (("topics",), "n 1 2"),
            (("topics", "--stores", uri), "n 1 2"),
            (("consume", "n", "--exit-at-end"), "1\n2\n"),
            (("consume", "n", "--exit-at-end", "--stores", uri), "1\n2\n"),
            (("stores",), cluster.stores[0]),
            (("top", "--once"), "2 stores"),
            (("doctor",), f"responds by Arrow Flight at {uri}"),
            (("store", "backup", uri, str(cluster.directory / "backup")), "is a backup of"),
            (("store", "verify", str(cluster.store_directory())), "no damage"),
            (("trim", "n", "--before", "1", "--yes"), cluster.stores[0]),
        ):
            code, said = asked(own, *arguments)
            said = said if "\n" in expected else " ".join(said.split())
            assert (code, expected in said) == (0, True), (arguments, said)
        code, said = asked(reading, "delete", "n", "--yes")
        assert code == 1
        assert "key reading may consume, and not administer stores" in " ".join(said.split())
        assert "n 1 1" in " ".join(asked(reading, "topics")[1].split())
        code, said = asked({}, "topics", "--stores", uri)
        assert code == 2
        assert "lets in owners of keys only" in " ".join(said.split())


def test_a_locked_cluster_takes_ten_commands(tmp_path: Path) -> None:
    """They run unchanged, except for ports, which the system chooses."""
    lines = example("docs/security.md", "In ten commands", "sh").strip().splitlines()
    assert len(lines) <= 10
    any_port = "tcp://127.0.0.1:0"
    variables = environment(DAFKA_SUB_ADDRESS=any_port, DAFKA_PUB_ADDRESS=any_port)
    python = " ".join(map(shlex.quote, command(())))
    said: dict[str, str] = {}
    with ExitStack() as running:
        for line in lines:
            words = shlex.split(line)
            if words[0] == "export":
                name, _, value = words[1].partition("=")
                variables[name] = value
                continue
            whole = line.removesuffix("&").replace("dafka ", f"{python} ", 1)
            if line.endswith("&"):
                told = running.enter_context(started(f"exec {whole}", tmp_path, variables))
                ready = json.loads(told.removeprefix("READY "))
                if words[1] == "tower":
                    variables["DAFKA_TOWER"] = ready["tower"]
                continue
            done = ended(["bash", "-c", whole], cwd=tmp_path, env=variables, text=True)
            assert done.returncode == 0, (line, done.stderr)
            said[line] = done.stdout
    assert said["dafka consume secrets --exit-at-end"] == "in the dark\n"
    assert "this node has key me, with consume, produce" in said["dafka doctor"]
    assert "to owners of allowed keys" in said["dafka doctor"]


@contextmanager
def started(line: str, directory: Path, variables: dict[str, str]) -> Iterator[str]:
    """A long-running command, with its ready line."""
    with subprocess.Popen(
        ["bash", "-c", line],
        cwd=directory,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.terminate()
