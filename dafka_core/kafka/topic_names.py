"""Which names Kafka clients may give to topics."""

from __future__ import annotations

import re
from typing import Final

from dafka_core.names import INTERNAL

MAX_NAME_BYTES: Final = 249
"""Kafka's limit."""

KAFKAS_OWN: Final = {
    *("__consumer_offsets", "__transaction_state", "__share_group_state"),
    *("__cluster_metadata", "__remote_log_metadata"),
}
"""Topics of Kafka's brokers.  A gateway has none: an empty one misleads tools that measure lag.
Clients may create others whose names begin with ``__``, as Debezium does."""

_LEGAL: Final = re.compile(rf"(?a)[a-zA-Z0-9._-]{{1,{MAX_NAME_BYTES}}}")


def wrong_name(topic: str | None) -> str:
    """Why Kafka clients can make no topic of this name; empty where they can.

    Topics that Dafka's own clients have made have other names, too, and are served.
    """
    if not topic:
        return "the topic has no name"
    if topic.startswith(INTERNAL):
        return f"names of Dafka's own topics begin with {INTERNAL}"
    if topic in KAFKAS_OWN:
        return (
            f"{topic} is internal to Kafka's brokers, and a gateway has none: choose another name"
        )
    if topic in (".", "..") or not _LEGAL.fullmatch(topic):
        return (
            f"a topic that is made by a client of Kafka has a name of 1 to {MAX_NAME_BYTES} "
            "letters, digits, dots, hyphens and underscores, and not of dots alone"
        )
    return ""
