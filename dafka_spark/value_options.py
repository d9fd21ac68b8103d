"""Options of what values are: in which format, and with which schema."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

from pyspark.sql import types

from dafka_core.errors import ConfigError
from dafka_core.options import Options, option, parse_str
from dafka_spark.formats import codecs
from dafka_spark.formats.codec import Codec
from dafka_spark.formats.codecs import BYTES, FORMATS, PROTOBUF, TYPED
from dafka_spark.option_values import parse_word
from dafka_spark.spark_options import camel

FAILFAST: Final = "FAILFAST"
PERMISSIVE: Final = "PERMISSIVE"
DROPMALFORMED: Final = "DROPMALFORMED"
MODES: Final = (FAILFAST, PERMISSIVE, DROPMALFORMED)

DESCRIPTOR_SETS: Final = (".desc", ".pb", ".binpb", ".protoset")
"""Ends of the names of files with descriptor sets."""


def parse_mode(value: Any) -> str:
    """A word in capitals, as Spark's users write it."""
    return parse_word(value).upper()


def parse_value_schema(value: Any) -> str:
    """A schema, which is read from a file where its name is given: octets in base64."""
    text = parse_str(value).strip()
    is_text = text.endswith(".avsc")
    if not (is_text or text.endswith(DESCRIPTOR_SETS)):
        return text
    try:
        octets = Path(text).read_bytes()
        return octets.decode() if is_text else base64.b64encode(octets).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {error}") from None


@dataclasses.dataclass(frozen=True)
class ValueOptions(Options):
    """What both sides need to know of values."""

    RENAME: ClassVar[Callable[[str], str]] = staticmethod(camel)
    NEEDS_SCHEMA: ClassVar[bool] = True

    value_format: str = option(
        BYTES,
        "what values are, and column `value` with them: `bytes` are binary, or a string that is "
        "written; `string` is text; `json` is a struct with the columns of valueSchema, one object "
        "in each value; `arrow` is an array of such structs, one stream of Arrow's IPC format in "
        "each value; `avro` is a struct, one record of the Avro schema valueSchema in each value; "
        "`protobuf` is a struct, one message messageName in each value (docs/typed_values.md)",
        choices=FORMATS,
        parse=parse_word,
    )
    value_schema: str = option(
        "",
        "the columns of values, `id BIGINT, tags ARRAY<INT>`; for `avro` an Avro schema in JSON, "
        "or a file FILE.avsc with one; for `protobuf` a file FILE.desc with a descriptor set, or "
        "that in base64. The driver reads the file",
        kind="DDL, JSON or file",
        parse=parse_value_schema,
    )
    message_name: str = option(
        "",
        "for `protobuf`, which message of the descriptor set a value is, as `from_protobuf` takes "
        "it: `package.Message`, or `Message` where only one is called so",
        kind="name",
    )

    def check_values(self) -> None:
        """Raises ``ConfigError`` where these options do not fit together."""
        typed = self.value_format in TYPED
        if self.value_schema and not typed:
            why = f"is for valueFormat = {' or '.join(TYPED)}, not {self.value_format}"
            raise ConfigError("valueSchema", self.value_schema, why)
        if typed and not self.value_schema and self.NEEDS_SCHEMA:
            why = "needs the columns of values: name them with option valueSchema"
            raise ConfigError("valueFormat", self.value_format, why)
        is_protobuf = self.value_format == PROTOBUF
        if self.message_name and not is_protobuf:
            why = f"is for valueFormat = {PROTOBUF}, not {self.value_format}"
            raise ConfigError("messageName", self.message_name, why)
        if is_protobuf and self.value_schema and not self.message_name:
            why = f"is needed with valueFormat = {PROTOBUF}: name the message of values"
            raise ConfigError("messageName", self.message_name, why)
        try:
            self.codec()
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError("valueSchema", self.value_schema, str(error)) from None

    def codec(self) -> Codec | None:
        """What decodes and encodes values; None where they are bytes, or no schema is given.

        Raises:
            ConfigError: the format needs a package that is not installed here.
            ValueError: the schema is wrong.
        """
        if self.value_format in TYPED and not self.value_schema:
            return None
        try:
            return codecs.codec_of(self.value_format, self.value_schema, self.message_name)
        except ImportError as error:
            raise ConfigError("valueFormat", self.value_format, str(error)) from None

    @property
    def value_kind(self) -> types.DataType:
        """The type of column ``value``."""
        codec = self.codec()
        return types.BinaryType() if codec is None else codec.kind


@dataclasses.dataclass(frozen=True)
class ReadValueOptions(ValueOptions):
    """What reading needs to know more."""

    mode: str = option(
        FAILFAST,
        "what becomes of a value that is not of valueFormat and its schema: `FAILFAST` fails the "
        "query and says which one; `PERMISSIVE` gives a null, and has columns `_error` (why) and "
        "`_corrupt_record` (the value); `DROPMALFORMED` leaves the record out, and warns",
        choices=MODES,
        parse=parse_mode,
    )

    @property
    def keeps_bad(self) -> bool:
        """Whether there are columns for bad values."""
        return self.mode == PERMISSIVE

    def check_values(self) -> None:
        """Raises ``ConfigError`` where these options do not fit together."""
        super().check_values()
        if self.value_format == BYTES and self.mode != FAILFAST:
            raise ConfigError("mode", self.mode, "needs valueFormat: no bytes are bad ones")
