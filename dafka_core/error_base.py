"""What all errors have in common: ``errors`` has them."""

from __future__ import annotations

from typing import ClassVar

from dafka_core.names import printable


class DafkaError(Exception):
    """Base of all errors of this package: fields are facts, which ``sentence`` is made with."""

    sentence: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.args = (printable(self._sentence()),)  # some of it may come from the network

    def _sentence(self, **facts: object) -> str:
        return self.sentence.format(**vars(self) | facts)

    def __reduce__(self) -> tuple[object, ...]:
        # Spark carries errors between processes; the default pickling calls the class with the
        # finished sentence, which the constructors do not take.
        return (_unpickled, (type(self), self.args), self.__dict__)


def _unpickled(kind: type[DafkaError], args: tuple[object, ...]) -> DafkaError:
    made = kind.__new__(kind)
    made.args = args
    return made
