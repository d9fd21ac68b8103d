"""Limits on what peers may send and make us keep, each with its reason."""

from __future__ import annotations

from typing import Final

MAX_TOPIC_BYTES: Final = 255
"""RFC 46 sets none, but ``subject`` is a string with a one-octet length: C nodes cut it."""

MAX_ADDRESS_BYTES: Final = 255
"""An address is a string with a one-octet length, too.  Those of C nodes are 32 octets."""

MAX_HEADER_BYTES: Final = 4096
"""Topic, address and subject at their longest, three times over: nothing valid is longer."""

MAX_HELLO_BYTES: Final = 1 << 20
"""A CONSUMER-HELLO lists every topic of a consumer: some 4000 topics with the longest names."""

MAX_REPLY_ENTRIES: Final = 10_000
"""Entries in one HEADS-REPLY or TIMES-REPLY, which stays a small message; the next has more."""

MAX_LOCATIONS: Final = 8
"""Endpoints of one store: one per kind of transport, and some to spare."""

MAX_LOCATION_BYTES: Final = 400
"""An endpoint's URI: a host name has at most 253 octets, a Unix socket's path about 100."""

MAX_SEQUENCE: Final = 2**63 - 2
"""Sequences are unsigned on the wire, but offsets live in Spark's and Arrow's signed 64 bits."""

MAX_FETCH_COUNT: Final = 100_000
"""What C nodes ask for at once; a larger count is clamped, as one octet string must not
make a node send a whole partition."""

MAX_ANSWER_BYTES: Final = 64 << 20
"""What one FETCH is answered with at the most.  A requestor that wants more asks again."""

MAX_VALUE_BYTES: Final = 256 << 20
"""The default for the largest frame a node takes from the network (``max_record_bytes``)."""

MAX_FRAMES: Final = 3
"""RFC 46's RECORD has the most: topic frame, command frame, content."""

MAX_BATCH_COUNT: Final = 65_536
"""Records in one packed message."""

LIVE_BATCH_BYTES: Final = 16 << 10
"""What a producer packs into one message at the most (or one record, if that is larger).  PUB
sockets count messages: what waits for a peer that does not read is this times the high-water
mark."""

DIRECT_BATCH_BYTES: Final = 512 << 10
"""The same for the answer to a FETCH, which is bounded already by what was asked for."""
