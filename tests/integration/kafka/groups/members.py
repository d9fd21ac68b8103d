"""Group members in processes, and the records that they have consumed."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from dafka_core.system.closing import Closing

PROGRAM = Path(__file__).with_name("member_process.py")

Read = tuple[int, int]  # a partition number and an offset


class MemberProcess(Closing):
    """An application that consumes a topic as a member of a group."""

    def __init__(self, library: str, servers: str, topic: str, instance: str) -> None:
        arguments = [library, servers, "g", topic, instance]
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments], stdout=subprocess.PIPE, text=True
        )
        self.read: Counter[Read] = Counter()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # otherwise it was killed meanwhile
                number, offset = map(int, line.split())
                self.read[number, offset] += 1

    def kill(self) -> None:
        """Kill it, as in a crash."""
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Stop it gracefully: it leaves its group."""
        self._process.terminate()
        self._end()

    def close(self) -> None:
        self.kill()

    def _end(self) -> None:
        self._process.wait(60)
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class MemberGroup(Closing):
    """The members of one group of one topic."""

    def __init__(self, library: str, servers: str, topic: str) -> None:
        self._library, self._servers, self._topic = library, servers, topic
        self.members: list[MemberProcess] = []

    def start(self, *instances: str) -> Self:
        for instance in instances:
            member = MemberProcess(self._library, self._servers, self._topic, instance)
            self.members.append(member)
        return self

    @property
    def read(self) -> Counter[Read]:
        """Return how often each record was consumed."""
        return sum((Counter(each.read) for each in self.members), Counter[Read]())

    def have_read(self, numbers: Sequence[int], end: int) -> bool:
        """Return whether every record before an offset was consumed."""
        read = self.read
        return all((number, offset) in read for number in numbers for offset in range(end))

    def close(self) -> None:
        for each in self.members:
            each.close()
