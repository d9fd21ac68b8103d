"""The console's options."""

import pytest

from dafka_console.options import ConsoleOptions
from dafka_core.errors import ConfigError


def test_where_it_listens_and_its_names() -> None:
    made = ConsoleOptions.build({"listen": "localhost", "names": "A.example, b"})
    assert (made.listen, made.names) == ("localhost:8046", ("a.example", "b"))
    assert ConsoleOptions.build({"names": ["x"]}).names == ("x",)
    assert ConsoleOptions().listen == "127.0.0.1:8046"
    assert not ConsoleOptions().token_file


@pytest.mark.parametrize(
    ("name", "value"),
    [("listen", "a b"), ("listen", "h:70000"), ("names", "a/b"), ("names", ""), ("interval_ms", 5)],
)
def test_what_cannot_be_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        ConsoleOptions.build({name: value})
