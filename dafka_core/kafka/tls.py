"""TLS towards Kafka's clients."""

from __future__ import annotations

import ssl

from dafka_core.errors import ConfigError
from dafka_core.kafka.kafka_options import KafkaOptions


def tls_of(config: KafkaOptions) -> ssl.SSLContext | None:
    """What a gateway encrypts with; None if it is to use none.

    Raises:
        ConfigError: the certificate or its key cannot be used.
    """
    certificate, key = config.kafka_tls_certificate, config.kafka_tls_key
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # of which errors of TLS are some
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        why = f"{certificate} and {key} must be a PEM certificate and its key ({reason})"
        raise ConfigError("kafka_tls_certificate", certificate, why) from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password: it is asked for where nobody can answer")
