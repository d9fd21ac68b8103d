"""How long the connector waits for the cluster, all in one place: these times depend on each other.

The mesh gives up a peer 4 s after its last beacon (``peer_expiry_ms``).  Whoever has seen a store
for the last time waits longer than that before it takes the store for gone.
"""

from __future__ import annotations

from typing import Final

LOOK_AGAIN_S: Final = 0.2
"""Between two looks at what changes by itself: which stores there are, and what they have."""

ANSWER_S: Final = 5.0
"""The longest wait for one store's word on what it has at hand.  Longer than the mesh needs to
notice that the store is gone, after which it is not asked."""

RETRY_S: Final = 1.0
"""A store that did not answer is left alone for so long, so that triggers do not wait for it."""

SILENT_S: Final = 6.0
"""How long a store that does not answer is waited for while the mesh still tells of it.  Longer
than the mesh's expiry; a store that is there and stays silent is of no use either."""

UNREACHABLE_S: Final = 10.0
"""A store that does not answer for longer, and that the mesh still hears, is asked over the mesh:
it lives, but Flight does not reach it from here.  One that died is forgotten before."""

DESCRIPTION_S: Final = 30.0
"""How long to believe where a store's log is and which start of the store it belongs to."""

FIND_S: Final = 2.0
"""Stores that are there are heard of in less."""

TRUST_S: Final = 1.0
"""How long a task trusts what its process knows of the stores without asking one of them."""

OTHERS_S: Final = 4.0
"""How long only stores without Flight may be heard of: a store of ours that has just started is
heard of before it has said where it is."""

DISCARD_S: Final = 2.0
"""How long giving up may take: what is not discarded now, the store discards some day."""

RANGES_S: Final = 5.0
"""How old what is known of the stores may be for a plan.  A query that reads only what there was
asks for no offsets, but stores come and go meanwhile."""

IDLE_S: Final = 60.0
"""How long a connection that nobody uses stays open: longer than the time between micro-batches of
most queries, so that they find it connected."""
