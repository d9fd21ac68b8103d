"""Lists of stores that do not answer."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from dafka_core.cli import list_commands
from dafka_core.cli.store_clients import StoreFinder
from dafka_core.errors import StoreUnreachableError
from dafka_core.testing import StoreDouble


def test_stores_of_which_none_answers_are_an_error_and_no_empty_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        StoreDouble(tmp_path / "one", "1" * 32) as one,
        StoreDouble(tmp_path / "two", "2" * 32) as two,
    ):
        both = nullcontext([one.client(), two.client()])
        monkeypatch.setattr(StoreFinder, "clients", lambda _: both)
        two.stop()
        list_commands.stores(timeout_s=5.0, uris="")
        assert capsys.readouterr().out.splitlines()[1].startswith("1" * 32)
        one.stop()
        with pytest.raises(StoreUnreachableError, match="2" * 32):
            list_commands.stores(timeout_s=5.0, uris="")
