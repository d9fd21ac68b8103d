"""What a node was sent and could not take: counted by reason, and said at most once a minute."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

SAY_AGAIN_S: Final = 60.0
"""How often the same reason is spoken of: anybody may send thousands in a second."""

FORBIDDEN: Final = "forbidden"

REASONS: Final = ("message", "records", "beacon", "tower", FORBIDDEN)
"""Why frames are refused: they are no message; they are no records; they are no beacon, or name an
endpoint to which nobody can connect; they tell of no tower; their sender's key does not allow
them."""

_CAUSES: Final = {FORBIDDEN: "a key allows only what its file says (docs/security.md)"}
_NO_PROTOCOL: Final = (
    "who sends them speaks no protocol of ours, or is of a version that this one does not know"
)

LOOK_S: Final = 1.0
"""How often the loop looks whether there is something to say."""

_log = logging.getLogger("dafka.mesh")


class RefusedFrames:
    """Says what was refused, of a node.

    Args:
        node: which node it is, for people.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._due = 0.0
        self._said: dict[str, tuple[float, int]] = {}
        self._last: dict[str, str] = {}

    def note(self, reason: str, why: str) -> None:
        """Keeps what was wrong with the last one, for when it is said."""
        self._last[reason] = why

    def is_due(self, now: float) -> bool:
        """Whether ``report`` is to be called."""
        return now >= self._due

    def report(self, now: float, counts: Mapping[str, int]) -> None:
        """Says how many were refused since it was said last, by reason."""
        self._due = now + LOOK_S
        for reason, count in counts.items():
            said_at, said = self._said.get(reason, (-SAY_AGAIN_S, 0))
            if count == said or now - said_at < SAY_AGAIN_S:
                continue
            self._said[reason] = now, count
            _log.warning(
                "%(node)s: %(count)d frames refused, reason %(reason)s%(last)s; %(cause)s",
                {
                    "node": self._node,
                    "count": count - said,
                    "reason": reason,
                    "cause": _CAUSES.get(reason, _NO_PROTOCOL),
                    "last": f" (the last one: {why})" if (why := self._last.get(reason)) else "",
                },
                extra={"event": "frames_refused"},
            )
