"""``dafka console``."""

import json
import urllib.error
import urllib.request

import pytest

from tests.integration.cli.processes import PATIENCE_S, Dafka


def test_it_serves_until_it_is_stopped(tower: str) -> None:
    with Dafka("console", "--tower", tower, "--listen", "127.0.0.1:0") as console:
        url = console.ready()["url"]
        with urllib.request.urlopen(f"{url}api/overview", timeout=PATIENCE_S) as found:
            assert json.loads(found.read())["can_produce"] is True
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as found:
            assert b"<title>Dafka</title>" in found.read()


def test_where_other_machines_reach_it_a_token_is_printed_once(tower: str) -> None:
    with Dafka("console", "--tower", tower, "--listen", "0.0.0.0:0") as console:
        ready = console.ready()
        assert "token" not in json.dumps(ready)
        line = next(line for line in iter(console.err.next, None) if b"asks for this token" in line)
        token = line.decode().split("?token=")[1].strip()
        asked = urllib.request.Request(f"http://127.0.0.1:{ready['port']}/api/overview")
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(asked, timeout=PATIENCE_S)
        refused.value.close()
        asked.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as found:
            assert found.status == 200
