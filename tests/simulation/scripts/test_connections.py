"""Nodes connect to the peers that they need, and to every node that announces no kind."""

from __future__ import annotations

from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import ConsumerHello, DirectHead, Fetch, RecordMessage
from tests.simulation.scripts.script import Node, Script


def peers_of(node: Node) -> set[str]:
    """The names of the machines that a node connects to."""
    places = (endpoint for _, endpoint in node.mesh.peers.table.addresses())
    return {place.partition("//")[2].partition(":")[0] for place in places}


def test_nodes_connect_to_the_peers_that_they_need_also_to_late_ones(world: Script) -> None:
    nodes: list[Node] = []
    for at in "12":
        nodes += [world.producer("t", f"p{at}"), world.consumer("t", name=f"c{at}")]
        nodes += [world.reader(f"r{at}"), world.store(f"s{at}")]
    needed = {
        "p": {"c1", "c2", "r1", "r2", "s1", "s2"},
        "c": {"p1", "p2", "s1", "s2"},
        "r": {"p1", "p2", "s1", "s2"},
        "s": {node.name for node in nodes},
    }
    world.run(3)
    for node in nodes:
        assert peers_of(node) == needed[node.name[0]] - {node.name}


def test_a_node_that_announces_no_kind_is_a_peer_of_all(world: Script) -> None:
    nodes: list[Node] = [world.producer("t"), world.consumer("t"), world.reader(), world.store()]
    peer = world.peer()
    world.run(2)
    assert all(peer.name in peers_of(node) for node in nodes)
    peer.wait_until_subscribed(
        *(subscription(Fetch, node.address) for node in nodes[:1]),
        *(subscription(DirectHead, node.address) for node in nodes[1:2]),
        subscription(RecordMessage, "t"),
        subscription(ConsumerHello, nodes[3].address),
    )


def test_a_tower_that_returns_introduces_new_nodes_to_the_old_ones(world: Script) -> None:
    store, old, consumer = world.store(), world.producer("t", "old"), world.consumer("t")
    old.publish(contents=[b"before"])
    consumer.wait_for(b"before")
    world.network.tower_down("tower")
    # Nodes that have connected need no tower.
    world.run(10)
    old.publish(contents=[b"without"])
    old.flush()
    consumer.wait_for(b"before", b"without")
    world.network.tower_back("tower")
    new = world.producer("t", "new")
    new.publish(contents=[b"new"])
    new.flush()
    consumer.wait_for(b"before", b"without", b"new")
    assert store.held(new.tp) == (0, 1)
