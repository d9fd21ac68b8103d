"""What all errors have in common: ``errors`` has them."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from dafka_core.names import printable

HIDDEN: Final = "(not shown)"
"""In place of a value that may be a secret."""

_SECRET: Final = re.compile(
    r"pas+w|pwd|passphrase|secret|jaas|token|credential|sasl|\bssl|\btls"
    r"|(access|account|api|private|shared)[._-]?key|(^|(?<!_per)[._])key$",
    re.IGNORECASE,
)
"""In the names of options whose values go into no log, misspelt ones and other programs' too."""


def is_secret(option: str) -> bool:
    """Whether the value of an option is perhaps a secret, by the option's name."""
    return _SECRET.search(option) is not None


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
