"""The connections of nodes."""

import json

from dafka_console import api as module
from dafka_console.api import cluster_map
from dafka_console.snapshot import PartitionTable, Snapshot, StoreState
from dafka_core.model.records import Neighbour
from tests.unit.console.snapshots import GONE, ONE, TWO, A, B, info, snapshot


def made(peers: tuple[Neighbour, ...] | None = ()) -> Snapshot:
    """Two stores, a producer of two topics, and a consumer that store two does not reach."""
    table = PartitionTable()
    table.hear(ONE, [info("t", A, 5), info("u", A, 5)], complete=True)
    nodes = (
        Neighbour(A, "producer", "tcp://h:1", True),
        Neighbour(B, "consumer", "tcp://h:2", True, ("t", "")),
        Neighbour(ONE, "store", "tcp://h:3", True),
        Neighbour(TWO, "store", "tcp://h:4", True),
    )
    all_of = tuple(each._replace(connected=True) for each in nodes)
    stores = (StoreState(ONE, here=True, peers=all_of), StoreState(TWO, here=True, peers=peers))
    return Snapshot(1, 0.0, 0.0, table.columns(), stores, nodes, ("h:1:2",), "9" * 32)


def links(found: Snapshot) -> dict[tuple[str, str], bool | None]:
    return {
        (each["store"], each["node"]): each["connected"] for each in cluster_map(found)["links"]
    }


def test_a_link_is_what_stores_say_and_one_side_is_enough_to_break_it() -> None:
    found = links(made((Neighbour(A, "producer", "", True), Neighbour(B, "consumer", "", False))))
    assert found[ONE, A] is True
    assert found[ONE, B] is True
    assert found[TWO, A] is True
    assert found[TWO, B] is False
    assert found[ONE, TWO] is False  # two has not heard of one
    assert (ONE, "9" * 32) in found


def test_a_store_of_a_version_of_before_cannot_say() -> None:
    found = links(made(None))
    assert (found[TWO, A], found[ONE, A], found[ONE, TWO]) == (None, True, None)


def test_nodes_have_their_topics_and_kinds() -> None:
    found = cluster_map(made())
    by_id = {each["id"]: each for each in found["nodes"]}
    assert by_id[A]["topics"] == ["t", "u"]
    assert by_id[B]["topics"] == ["t"]
    assert by_id["9" * 32]["kind"] == "console"
    assert [each["id"] for each in found["towers"]] == ["h:1:2"]
    json.dumps(found)


def test_a_store_that_is_missing_is_there_without_links() -> None:
    found = cluster_map(snapshot())
    gone = next(each for each in found["nodes"] if each["id"] == GONE)
    assert (gone["kind"], gone["here"]) == ("store", False)
    assert all(GONE not in (each["store"], each["node"]) for each in found["links"])


def test_a_thousand_producers_are_no_thousand_boxes() -> None:
    nodes = tuple(Neighbour(f"{number:032d}", "producer") for number in range(1_000))
    found = cluster_map(Snapshot(1, 0.0, 0.0, PartitionTable().columns(), nodes=nodes))
    assert len(found["nodes"]) == module.MOST_NODES
    assert found["left_out"] == {"producer": 1_000 - module.MOST_NODES}
