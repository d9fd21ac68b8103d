"""Versioned JSON objects, declared as Structs: Flight's messages and records of internal topics."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

import msgspec
from msgspec import Meta

from dafka_core.errors import InvalidRequestError
from dafka_core.model.name_limits import nearest

VERSION: Final = 1

Natural = Annotated[int, Meta(ge=0, le=2**62)]

T = TypeVar("T")

_CONVERTING: Final = threading.Lock()
"""msgspec 0.22 ends the process if two threads are the first ones that convert to a class."""


def convert(found: object, kind: type[T]) -> T:
    """Convert builtins to a class, as ``msgspec.convert``, in one thread at a time."""
    with _CONVERTING:
        return msgspec.convert(found, kind)


def pack(members: dict[str, Any], version: int = VERSION) -> bytes:
    """Encode these members and the version as a JSON object in ASCII."""
    return json.dumps({"v": version, **members}).encode("ascii")


def json_object(packed: str | bytes) -> dict[str, Any] | None:
    """Decode a JSON object; None if it is invalid, or something else."""
    with suppress(ValueError, RecursionError):
        found = json.loads(packed)
        return found if isinstance(found, dict) else None
    return None


class JsonMessage(msgspec.Struct, frozen=True):
    """A JSON object with the version, ``v``, and the class's fields as members.

    Python's ``json`` encodes and decodes the text, msgspec validates it: msgspec's own codec
    refuses lone surrogates, which represent bytes of a name that are not UTF-8.
    """

    what: ClassVar[str] = "answer"  # name of the object in errors
    json_version: ClassVar[int] = VERSION

    def packed(self) -> bytes:
        """Encode the message."""
        return pack(msgspec.to_builtins(self), self.json_version)

    @classmethod
    def parse(cls, packed: str | bytes) -> Self:
        """Decode a message; raise InvalidRequestError, which names a member, if it is invalid."""
        found = json_object(packed)
        if found is None:
            raise InvalidRequestError(cls.what, short(packed), "must be a JSON object")
        version = found.pop("v", None)
        if type(version) is not int or version != cls.json_version:
            raise InvalidRequestError(
                "v", short(version), f"must be the version, {cls.json_version}"
            )
        try:
            return convert(found, cls)
        except msgspec.ValidationError as error:
            raise _refused(found, cls.__struct_fields__, str(error)) from error
        except UnicodeEncodeError:  # in a text where no name is expected
            why = "has half a surrogate pair where no text can be"
            raise InvalidRequestError(cls.what, short(packed), why) from None

    @classmethod
    def parse_or_none(cls, packed: str | bytes) -> Self | None:
        """Decode a message; None if it is invalid, or of a later version."""
        with suppress(InvalidRequestError):
            return cls.parse(packed)
        return None


def _refused(found: dict[str, Any], known: Collection[str], text: str) -> InvalidRequestError:
    """Translate msgspec's errors, such as "Expected `int` >= 0 - at `$.times[0][2]`"."""
    if text.startswith("Object contains unknown field"):
        name = min(found.keys() - set(known))
        return InvalidRequestError(str(short(name)), short(found[name]), nearest(name, known))
    missing = re.match(r"Object missing required field `(\w+)`", text)
    if missing:
        return InvalidRequestError(missing[1], None, "is required")
    why, _, path = text.partition(" - at `$.")
    value: Any = found
    for key in (keys := re.findall(r"\w+", path)):
        value = value[int(key) if key.isdigit() else key]
    member = [key for key in keys if not key.isdigit()][-1]
    return InvalidRequestError(member, short(value), why.replace("Expected", "must be", 1))


def short(value: object) -> object:
    """Return a foreign value, truncated if it is too long for an error's sentence."""
    text = repr(value)
    return value if len(text) <= 100 else f"{text[:100]}..."
