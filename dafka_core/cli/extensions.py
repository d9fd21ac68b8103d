"""Extensions of the stores that ``dafka store`` and ``dafka up`` run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from dafka_core.cli import output
from dafka_core.cli.flags import of_table
from dafka_core.nodes.store_extension import ExtensionNode, store_extensions
from dafka_core.nodes.store_handle import StoreHandle


def check_extensions(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option of an extension that is off."""
    for each in store_extensions():
        each.check(of_table(each.options, options))


@contextmanager
def extended(
    store: StoreHandle, options: Mapping[str, Any]
) -> Iterator[tuple[list[ExtensionNode], dict[str, str]]]:
    """Run the extensions that options switch on; yield them, and their facts for READY."""
    with ExitStack() as stack:
        nodes = []
        for each in store_extensions():
            if each.switch in options:
                node = stack.enter_context(each.start(store, of_table(each.options, options)))
                nodes.append(node)
                if node.notice:
                    output.say(node.notice)
            else:
                each.retract(store)
        yield nodes, {name: fact for node in nodes for name, fact in node.facts.items()}
