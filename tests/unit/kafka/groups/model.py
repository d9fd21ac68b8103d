"""A group with scripted clients."""

from collections.abc import Sequence
from typing import Any

from dafka_kafka.errors import KafkaError
from dafka_kafka.groups.group import Group, GroupState, JoinAnswer, Joining, SyncAnswer
from dafka_kafka.options import KafkaOptions

PROTOCOLS = (("range", b"m1"), ("roundrobin", b"m2"))
SESSION_S, REBALANCE_S = 10.0, 30.0


def joining(member_id: str = "", **changes: Any) -> Joining:
    given: dict[str, Any] = {
        "protocols": PROTOCOLS,
        "session_s": SESSION_S,
        "rebalance_s": REBALANCE_S,
        "client_id": "app",
    }
    return Joining(member_id, **(given | changes))


class Tried:
    """A group, its time, and the answers to its clients."""

    def __init__(self, delay_ms: int = 0, **options: Any) -> None:
        self.group = Group("g", KafkaOptions(group_rebalance_delay_ms=delay_ms, **options))
        self.now = 100.0
        self._tickets = 0
        self._answers: dict[int, JoinAnswer | SyncAnswer] = {}

    def pass_s(self, seconds: float) -> None:
        """Advance the time; the group wakes whenever it asked to."""
        end = self.now + seconds
        while (due := self.group.deadline()) <= end:
            self.now = max(self.now, due)
            self.group.on_time(self.now)
            assert self.group.deadline() > self.now, "it has done what was due"
        self.now = end

    def beat_s(self, seconds: float, *names: str) -> None:
        """Advance the time while some members send heartbeats."""
        for _ in range(int(seconds)):
            self.pass_s(1.0)
            for name in names:
                self.group.heartbeat(self.now, name, None, self.group.generation)

    def beat(
        self, name: str, instance: str | None = None, generation: int | None = None
    ) -> KafkaError:
        at = self.group.generation if generation is None else generation
        return self.group.heartbeat(self.now, name, instance, at)

    def may_commit(
        self, name: str, instance: str | None = None, generation: int | None = None
    ) -> KafkaError:
        at = self.group.generation if generation is None else generation
        return self.group.may_commit(self.now, name, instance, at)

    def leave(self, name: str, instance: str | None = None) -> KafkaError:
        return self.group.leave(self.now, name, instance)

    def join(self, member_id: str = "", **changes: Any) -> int:
        self._tickets += 1
        self.group.join(self.now, joining(member_id, **changes), self._tickets)
        return self._tickets

    def sync(self, member_id: str, parts: dict[str, bytes] | None = None, **given: Any) -> int:
        self._tickets += 1
        generation = given.get("generation", self.group.generation)
        instance = given.get("instance_id")
        self.group.sync(self.now, member_id, instance, generation, parts or {}, self._tickets)
        return self._tickets

    def joined(self, ticket: int) -> JoinAnswer | None:
        found = self.answer(ticket)
        assert found is None or isinstance(found, JoinAnswer)
        return found

    def told(self, ticket: int) -> JoinAnswer:
        """Return the answer to a request to join that need not wait any more."""
        found = self.joined(ticket)
        assert found is not None
        return found

    def synced(self, ticket: int) -> SyncAnswer | None:
        found = self.answer(ticket)
        assert found is None or isinstance(found, SyncAnswer)
        return found

    def answer(self, ticket: int) -> JoinAnswer | SyncAnswer | None:
        """Return the answer to a request, once."""
        for each, answer in self.group.take_answers():
            assert each not in self._answers
            self._answers[each] = answer
        return self._answers.get(ticket)

    def member(self, **changes: Any) -> str:
        """Let a client join an empty group without delay; return its id."""
        return self.told(self.join(**changes)).member_id

    def stable(self, count: int = 1, **changes: Any) -> list[str]:
        """Add ``count`` members, the leader first, and let the group become stable."""
        names = [*self.group.members]
        tickets = [self.join(**changes) for _ in range(count)]
        tickets += [self.join(name) for name in names]
        self.pass_s(0.0)
        answers = [self.joined(each) for each in tickets]
        names = [each.member_id for each in answers if each is not None]
        if len(names) < len(tickets):  # the first one has begun a generation of its own
            tickets += [self.join(name) for name in names]
            answers = [self.joined(each) for each in tickets]
            names = [*dict.fromkeys(each.member_id for each in answers if each is not None)]
        parts = {name: name.encode() for name in names}
        for name in sorted(names, key=lambda each: each == self.group.leader):
            self.sync(name, parts, instance_id=self.group.members[name].instance_id)
        self.answer(0)
        assert self.group.state is GroupState.STABLE
        return sorted(names, key=lambda each: each != self.group.leader)


def members_of(answer: JoinAnswer) -> Sequence[str]:
    return [each for each, _, _ in answer.members]
