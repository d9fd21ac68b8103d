"""Has a real Prometheus scrape real nodes, and asks it what each panel and each alert would show.

``python -m scripts.try_dashboard [PROMETHEUS]``: where its program is, and ``promtool`` beside it;
Debian's package ``prometheus`` has both.  It takes about half a minute, uses free ports of loopback
and a temporary directory, and fails if an expression is an error or shows nothing that it should.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from dafka_core import Consumer, Producer, Store, Tower, serve_metrics
from dafka_core.testing import wait_until
from scripts.dashboard import expressions

RULES: Final = Path(__file__).resolve().parent.parent / "deploy/prometheus/dafka_rules.yml"
SCRAPED_S: Final = 20.0
"""Rates need some scrapes."""

MAY_BE_EMPTY: Final = ("dafka_kafka_", "dafka_flight_waiting_streams")
"""Expressions that are empty without a gateway or waiting clients."""

CONFIG: Final = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: dafka
    static_configs: [{{targets: ["{target}"]}}]
"""


def main() -> None:
    """Try all expressions; print a line for each."""
    program = shutil.which(sys.argv[1] if sys.argv[1:] else "prometheus")
    if program is None:
        sys.exit("there is no Prometheus: name its program, or apt-get install prometheus")
    promtool = shutil.which(str(Path(program).parent / "promtool"))
    if promtool is not None:
        subprocess.run([promtool, "check", "rules", str(RULES)], check=True)
    with ExitStack() as undo:
        directory = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        target = _nodes(undo, directory)
        base = _prometheus(undo, program, directory, target)
        failed = [line for line in _shown(base) if line]
        # Some are pending after seconds, as what predicts hours: they wait for minutes.
        alerts = [
            each for each in _get(base, "/api/v1/alerts")["alerts"] if each["state"] == "firing"
        ]
        groups = _get(base, "/api/v1/rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        print(f"{len(rules)} alerts, {len(alerts)} of them raised")
        failed += [
            f"alert {rule['name']}: {rule.get('lastError')}"
            for rule in rules
            if rule["health"] != "ok"
        ]
        failed += [f"alert {alert['labels']} is raised though all is well" for alert in alerts]
    if failed:
        sys.exit("\n".join(failed))


def _nodes(undo: ExitStack, directory: Path) -> str:
    """One of each, with records on their way as long as the rest lasts; where they are scraped."""
    ports = {"sub_address": "tcp://127.0.0.1:0", "pub_address": "tcp://127.0.0.1:0"}
    tower = undo.enter_context(Tower(**ports))
    store = undo.enter_context(Store(directory / "store", tower=tower.tower, retain="flights=1GiB"))
    producer = undo.enter_context(Producer("flights", tower=tower.tower))
    consumer = undo.enter_context(Consumer(tower=tower.tower))
    consumer.subscribe("flights")
    endpoint = undo.enter_context(serve_metrics(tower, store, producer, consumer))
    until = time.monotonic() + SCRAPED_S + 30.0

    def publish() -> None:
        while time.monotonic() < until and producer.is_open:
            producer.publish_many([b"value"] * 1_000)
            time.sleep(0.2)

    threading.Thread(target=publish, daemon=True).start()
    return str(endpoint.address)


def _prometheus(undo: ExitStack, program: str, directory: Path, target: str) -> str:
    """A Prometheus that has scraped for a while; where it is asked."""
    config = directory / "prometheus.yml"
    config.write_text(CONFIG.format(rules=RULES, target=target), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            *(program, f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}"),
            *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"),
        ],
    )
    undo.callback(process.wait)
    undo.callback(process.terminate)
    base = f"http://127.0.0.1:{port}"
    wait_until(lambda: _is_up(base), "Prometheus has scraped", 60.0)
    time.sleep(SCRAPED_S)
    return base


def _is_up(base: str) -> bool:
    try:
        found = _get(base, "/api/v1/query", query="up")["result"]
    except OSError:
        return False
    return bool(found) and found[0]["value"][1] == "1"


def _shown(base: str) -> list[str]:
    """Print a line for each expression; return the errors."""
    wrong = []
    for line in expressions():
        asked = line.expression
        for name, value in (("$__rate_interval", "10s"), ("$job", ".*"), ("$node", ".*")):
            asked = asked.replace(name, value)
        try:
            found = _get(base, "/api/v1/query", query=asked)["result"]
        except urllib.error.HTTPError as error:
            wrong.append(f"{asked}: {error.read().decode()}")
            continue
        values = [float(each["value"][1]) for each in found]
        print(f"{len(found):3} lines, up to {max(values, default=float('nan')):14,.3f}  {asked}")
        if not found and not any(each in asked for each in MAY_BE_EMPTY):
            wrong.append(f"{asked} shows nothing")
    return wrong


def _get(base: str, path: str, **query: str) -> Any:
    url = f"{base}{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=10.0) as found:  # noqa: S310 -- our own
        return json.load(found)["data"]


if __name__ == "__main__":
    main()
