"""A record's key, headers and null value, in one content."""

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dafka_core.model.envelope import MAGIC, MAX_LENGTHS_BYTES, closed
from tests.unit.model import envelopes


@pytest.mark.parametrize(("parts", "content"), envelopes.vectors())
def test_vectors_of_the_specification(parts: envelopes.Parts, content: bytes) -> None:
    key, value, headers = parts
    assert closed(value, key, headers) == content
    assert envelopes.opened(content) == parts


@settings(deadline=None)
@given(parts=envelopes.PARTS)
def test_closed_records_are_opened(parts: envelopes.Parts) -> None:
    key, value, headers = parts
    assert envelopes.opened(closed(value, key, headers)) == parts


@given(value=envelopes.MISTAKABLE)
def test_a_value_that_looks_like_an_envelope_stays_a_value(value: bytes) -> None:
    content = closed(value)
    assert envelopes.opened(content) == (None, value, ())
    assert (content == value) == (not value.startswith(MAGIC))


@given(content=envelopes.MISTAKABLE)
@example(content=b"\xc1DFK\x01\x02\x01\x05hello")
@example(content=b"\xc1DFK\x01\x02\x01\x04\xc1DFK")
def test_an_envelope_has_one_encoding(content: bytes) -> None:
    key, value, headers = parts = envelopes.opened(content)
    assume(all("\ufffd" not in name for name, _ in headers))
    assert parts == (None, content, ()) or closed(value, key, headers) == content


@given(value=st.binary())
def test_a_bare_value_is_its_own_content(value: bytes) -> None:
    if not value.startswith(MAGIC):
        assert closed(value) is value


def test_too_many_headers_are_refused() -> None:
    most = (MAX_LENGTHS_BYTES - 1) // 2
    full = closed(b"", headers=(("", None),) * most)
    assert envelopes.opened(full) == (None, b"", (("", None),) * most)
    with pytest.raises(ValueError, match=r"too many headers: .* take 16385 bytes .* at most 16383"):
        closed(b"", headers=(("", None),) * (most + 1))


def test_an_invalid_header_name_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        closed(b"", headers=(("\udcff", b""),))
