"""Names of stores."""

from __future__ import annotations

from dafka_core.ops.checks import StoreFacts


def test_a_store_goes_by_its_address_or_by_its_uri() -> None:
    assert StoreFacts("AB12").name == "store AB12"
    assert not StoreFacts("AB12").is_named
    assert StoreFacts("grpc://h:1").name == "grpc://h:1"
    assert StoreFacts("grpc://h:1").is_named
