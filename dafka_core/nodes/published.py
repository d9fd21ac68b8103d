"""What an application publishes: records' contents, made of values, keys and headers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from dafka_core.errors import ConfigError
from dafka_core.model.envelope import AUTO, MAGIC, Header, closed
from dafka_core.model.timestamps import MAX_AHEAD_US
from dafka_core.model.values import Values

Octets = Iterable[bytes | None]
"""Of many records; or an Arrow array of binary or string."""

Headers = Iterable[Header] | None
"""Of one record; those of many may also be an Arrow array of lists of structs (name, value)."""

ARROW_TYPES: Final = ("binary", "string", "large_binary", "large_string")
ARROW_HEADERS: Final = "lists of structs of two, a string and a binary"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)


def content_of(value: bytes | None, key: bytes | None, headers: Headers, envelope: str) -> bytes:
    """The content of one record; raises as ``contents_of``."""
    pairs: list[Any] = list(headers or ())
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise TypeError(f"a header must be a pair (name, value), its name a text; got {pair!r}")
        _check_bytes(f"value of header {pair[0]!r}", pair[1])
    _check_bytes("value", value)
    _check_bytes("key", key)
    if envelope == AUTO:
        return closed(value, key, pairs)
    if value is None or key is not None or pairs:
        raise _without_envelopes(envelope)
    return value


def contents_of(
    values: Octets,
    keys: Octets | None,
    headers: Iterable[Headers] | None,
    envelope: str,
) -> Values:
    """The contents of many records.

    Raises:
        TypeError: a value, a key or a header is of another type.
        ValueError: there are not as many keys, or headers, as values; there are too many headers.
        ConfigError: option ``envelope`` does not let them be published.
    """
    if hasattr(values, "buffers"):  # an Arrow array: recognised without importing Arrow
        return _by_column(values, keys, headers, envelope)
    listed: list[bytes | None] = list(values)
    if keys is None and headers is None and set(map(type, listed)) <= {bytes}:
        bare: list[bytes] = listed  # type: ignore[assignment]  # as just seen
        made = values if isinstance(values, Values) else Values.of(bare)
        if envelope != AUTO or not len(made.starting_with(MAGIC)):
            return made
    keys_of: list[bytes | None] = [None] * len(listed) if keys is None else list(keys)
    headers_of: list[Headers] = [None] * len(listed) if headers is None else list(headers)
    for each in (keys_of, headers_of):
        _check_counts(len(listed), len(each))
    contents: list[bytes] = []
    for value, key, pairs in zip(listed, keys_of, headers_of, strict=True):
        try:
            contents.append(content_of(value, key, pairs, envelope))
        except TypeError as error:
            raise TypeError(f"values[{len(contents)}]: {error}") from None
    return Values.of(contents)


def time_of(timestamp: datetime, last_us: int, now_us: int) -> int:
    """A create time in microseconds since 1970 UTC.

    Raises:
        ConfigError: it says no time zone, or stores would not keep it.
    """
    given: Any = timestamp
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise ConfigError("timestamp", timestamp, "must be a datetime with a time zone", "argument")
    time_us = (timestamp - _EPOCH) // _US
    if last_us <= time_us <= now_us + MAX_AHEAD_US:
        return time_us
    why = "it is more than a minute ahead of this machine's clock: stores would not keep it"
    if time_us < last_us:
        last = (_EPOCH + last_us * _US).isoformat()
        why = f"a partition's timestamps never go back, and the last one is {last}"
    cure = "put the time of an event into its value, or a header"
    raise ConfigError("timestamp", timestamp.isoformat(), f"{why}; {cure}", "argument")


def _by_column(values: Any, keys: Any, headers: Any, envelope: str) -> Values:
    for name, array in (("values", values), ("keys", keys)):
        if array is not None and str(getattr(array, "type", "")) not in ARROW_TYPES:
            kind = getattr(array, "type", type(array).__name__)
            raise TypeError(f"{name} of records must be an array of binary or string, not {kind}")
    if envelope != AUTO:
        if values.null_count or keys is not None or headers is not None:
            raise _without_envelopes(envelope)
        return Values.from_arrow(values)
    # Who has arrays has loaded Arrow.
    import pyarrow as pa  # noqa: PLC0415

    from dafka_core.model.envelope_columns import HEADERS_TYPE, close_columns  # noqa: PLC0415

    if headers is not None:
        if not isinstance(headers, pa.ListArray) or headers.type.value_type.num_fields != 2:
            raise TypeError(f"headers beside an array must be {ARROW_HEADERS}")
        headers = headers.cast(HEADERS_TYPE)
    for array in (keys, headers):
        if array is not None:
            _check_counts(len(values), len(array))
    return Values.from_arrow(close_columns(values, keys, headers))


def _check_counts(values: int, others: int) -> None:
    if values != others:
        raise ValueError(f"{values} values have {others} keys, or lists of headers")


def _check_bytes(what: str, octets: object) -> None:
    if octets is not None and type(octets) is not bytes:
        raise TypeError(f"a record's {what} must be bytes or None; got {type(octets).__name__}")


def _without_envelopes(envelope: str) -> ConfigError:
    return ConfigError("envelope", envelope, "publishes no keys, headers and null values")
