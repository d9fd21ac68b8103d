"""Kafka's messages, made of plain values."""

from collections.abc import Mapping
from typing import Any

from dafka_kafka import schemas
from dafka_kafka.api import API_VERSIONS, Api
from dafka_kafka.gateway import APIS

NEWEST = -1


def message(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return a message, or a structure in one, with these values of its fields."""
    return kind(**{name: _value(kind.fields[name], each) for name, each in values.items()})


def _value(field: Any, value: Any) -> Any:
    if field.is_struct_array() and value is not None:
        return [message(field.data_class, each) for each in value]
    is_part = field.is_struct() and isinstance(value, dict)
    return message(field.data_class, value) if is_part else value


def request(api: Api | str, /, **fields: Any) -> Any:
    """Return a request."""
    return message(named(api, "Request"), fields)


def response(api: Api | str, /, **fields: Any) -> Any:
    """Return a response."""
    return message(named(api, "Response"), fields)


def named(api: Api | str, suffix: str) -> Any:
    """Return the class of an API's messages; an API may have its Kafka name."""
    name = api if isinstance(api, str) else "".join(each.title() for each in api.name.split("_"))
    return schemas.MESSAGES[f"{name}{suffix}"]


def versions(api: Api) -> range:
    """Return the versions that a gateway serves."""
    return APIS[api].versions if api in APIS else API_VERSIONS


def rows(answer: Any, path: str, *names: str) -> list[Any]:
    """Return fields of the structures at a path of arrays, as ``topics.partitions``."""
    parts = [answer]
    for step in path.split("."):
        parts = [inner for each in parts for inner in getattr(each, step)]
    found = [tuple(getattr(each, name) for name in names) for each in parts]
    return [each[0] for each in found] if len(names) == 1 else found
