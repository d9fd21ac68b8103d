"""Changes of JSON that stay JSON, as random bytes rarely do."""

import json
import random
from typing import Any, Final

LEAVES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 5, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**40),
    *(0.5, -0.0, 1e308, float("inf"), float("nan")),
    *("", "t", "P", "é", "\0", "\ud800", "a" * 255, "a" * 256, "0" * 32, "%2F", "..", "{}"),
    *([], {}, [[]], [None], {"v": 1}, ["t", "P", 0, 5], [0, 0, 0]),
)


def changed(octets: bytes, chance: random.Random) -> bytes | None:
    """Return a tree with one node changed, removed or doubled; None if it is not JSON."""
    try:
        tree = json.loads(octets)
        return json.dumps(_changed(tree, chance)).encode()
    except (ValueError, RecursionError):
        return None


def _changed(tree: Any, chance: random.Random) -> Any:
    if not isinstance(tree, dict | list) or not tree or chance.random() < 0.1:
        return chance.choice(LEAVES)
    if isinstance(tree, dict):
        name = chance.choice([*tree])
        match chance.randrange(8):
            case 0:
                return {key: each for key, each in tree.items() if key != name}
            case 1:
                return tree | {chance.choice(("x", "topic", "v", "", "start")): tree[name]}
        return tree | {name: _changed(tree[name], chance)}
    at = chance.randrange(len(tree))
    match chance.randrange(8):
        case 0:
            return [*tree[:at], *tree[at + 1 :]]
        case 1:
            return [*tree, tree[at]]
    return [*tree[:at], _changed(tree[at], chance), *tree[at + 1 :]]
