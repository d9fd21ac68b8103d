"""One target, guided by coverage: ``python -m tests.fuzz.guided TARGET [libFuzzer's flags]``."""

import random
import sys
from typing import Any

import atheris

# Imports here are instrumented: the fuzzer sees which branches an input reaches.
with atheris.instrument_imports(include=["dafka_core", "dafka_spark"]):
    from tests.fuzz.targets import JSON_AT, TARGETS

from tests.fuzz.json_trees import changed


def main(name: str, *flags: str) -> None:
    """Ends with libFuzzer's exit code."""
    kinds: dict[str, Any] = {}
    if name in JSON_AT:
        at = JSON_AT[name]

        def mutated(octets: bytes, limit: int, seed: int) -> bytes:
            chance = random.Random(seed)
            tree = changed(octets[at:], chance) if chance.random() < 0.7 else None
            if tree is None or len(tree) + at > limit:
                return bytes(atheris.Mutate(octets, limit))
            return octets[:at] + tree

        kinds["custom_mutator"] = mutated
    atheris.Setup([sys.argv[0], *flags], TARGETS[name], **kinds)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
