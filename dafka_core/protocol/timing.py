"""The times of the protocol, in seconds, each with its reason.

A requestor that has just started finds all stores in this order (``store_directory``); a store
that is far away, busy or behind a firewall makes the answer wait until ``STORE_TIMEOUT_S``::

    0.00        its beacon; beacons of all nodes; connections in both directions
    0.00 ...    each node's kind and subscriptions, each store's greeting and list of other stores
    0.10        INTRODUCTION_S: C nodes that have not subscribed to hellos are no stores
    0.15        SETTLE_AFTER_BEACON_S after the first beacon, and
    0.25        SETTLE_S: an answer from all greeted stores is complete
    3.00        STORE_TIMEOUT_S without a sign of a node: it is given up, and named in the log

``nodes`` have times of their own: beacons, towers and log messages.
"""

from __future__ import annotations

from typing import Final

# -- discovery of stores, and questions to them ----------------------------------------------------

# A C node that is a store subscribes to hellos within this time after its first subscription: the
# SUB socket sends all of them at once.  Our nodes announce their kind.
INTRODUCTION_S: Final = 0.1
# No answer is complete before: stores are discovered meanwhile.  Beacons are answered at once,
# within milliseconds, and other stores name those that are farther away.
SETTLE_S: Final = 0.25
SETTLE_AFTER_BEACON_S: Final = 0.15  # from the first beacon on, for a distant tower
# Timeout without any message of a node.  A near and busy node takes less; an unused address or a
# firewall costs this time once.  A connection and its subscriptions take about four round trips.
STORE_TIMEOUT_S: Final = 3.0
MAX_STORE_TIMEOUT_S: Final = 30.0  # with any number of signs of life
# A query or its answer may be lost: the directory asks again after this time without a message.
# Longer than C_STORE_SILENCE_S, since each question restarts that time.
QUERY_RETRY_S: Final = 0.5
C_STORE_SILENCE_S: Final = 0.4  # after the last answer to a GET-HEADS all have arrived
ANSWER_POLL_S: Final = 0.02  # interval of checks for completed answers
TAKEOVER_RETRY_S: Final = 0.5  # interval of a takeover's questions while too few stores answer

# -- fetching records, and their loss --------------------------------------------------------------

FETCH_RETRY_S: Final = 1.0  # C nodes answer one identical FETCH a second
# The longest interval of requests for records that no node has: they are lost, or the head was
# forged.
MAX_FETCH_RETRY_S: Final = 8.0
# Delay before stores are asked about missing records, and before records that only they could have
# are lost.  Longer than a FETCH with its first retries takes, and than an ended peer counts as
# alive (``peer_expiry_ms``), so all possible senders are known.
LOSS_CHECK_S: Final = 5.0
LOSS_QUESTION_S: Final = 15.0  # interval of these questions; the answer may be long
# The delay if an absent node may have the records: a store known before, or the node that
# announced the records.  A restarted store returns within this time, even if its machine restarts.
ABSENT_STORE_S: Final = 60.0
# A store restarts a partition after this time without records that the other stores have deleted,
# including some retries.  ABSENT_STORE_S while a known store is away, since it may have them.
STORE_LOSS_S: Final = 10.0
STORE_LOSS_CHECK_S: Final = 1.0  # interval of a store's questions about such partitions

# -- heads and acknowledgements --------------------------------------------------------------------

# Interval of a consumer's questions for heads.  PUB sockets drop silently: if they drop the last
# records of a partition and all heads after them, and its producer is gone, nothing else reveals
# these records.
HEADS_INTERVAL_S: Final = 10.0
# RFC 46: a producer sends HEAD "at regular a interval"; a store does, for clients' partitions.
HOSTED_HEAD_INTERVAL_S: Final = 1.0
# Duration of these HEADs after the last write.  A node that has missed all of them sends GET-HEADS
# when it connects to the store again, as for any partition whose producer is gone.
HOSTED_HEADS_S: Final = 60.0
# Interval of HEAD while the application waits in ``flush``: a HEAD makes stores acknowledge again,
# so a lost acknowledgement costs this time.
FLUSH_HEAD_INTERVAL_S: Final = 0.2

# -- histories, and the stores' list of each other -------------------------------------------------

# Interval of a store's questions for a history that differs from its own, and of its messages to
# an older life's producer about the newer one: fast for people, and cheap for the mesh.
HISTORY_INTERVAL_S: Final = 0.5
# Interval of writing a present store's time to disk: "last heard" is as exact after a crash.
KNOWN_STORE_WRITE_S: Final = 600.0
# Time for which a starting store assumes that its known stores are present, before their beacons
# arrive.
KNOWN_STORE_GRACE_S: Final = 2.0
