"""The clocks of machines: none is right, and some jump by years for a while."""

import random
from typing import Final

from dafka_core.model.timestamps import WallClock
from tests.simulation.world import World

BEGIN_US: Final = 1_700_000_000_000_000  # the right time when a world begins

SKEW_US: Final = 25_000_000
"""Largest error of a clock: two of them differ by less than ``MAX_AHEAD_US``."""

YEAR_US: Final = 365 * 86_400 * 1_000_000
JUMP_US: Final = (-10 * YEAR_US, -3_600_000_000, 3_600_000_000, 10 * YEAR_US)


def right_us(world: World) -> int:
    return BEGIN_US + int(world.now * 1e6)


def machine_clock(world: World, seed: int, name: str, faults_s: float) -> WallClock:
    """The clock of a machine, which may jump once, and soon back again.

    Its chance is its own, so that a world is the same whatever the clocks are.
    """
    chance = random.Random(f"clock {seed} {name}")
    skew_us = chance.randint(-SKEW_US, SKEW_US)
    jump_s, jump_us = chance.uniform(0, faults_s), chance.choice(JUMP_US)
    back_s = jump_s + chance.uniform(0.1, 5)
    if chance.random() < 0.5:
        jump_s = back_s
    else:
        world.at(jump_s, lambda: world.fault("clock jumped", name, f"by {jump_us / 1e6:.0f} s"))

    def wall_us() -> int:
        return right_us(world) + skew_us + (jump_us if jump_s <= world.now < back_s else 0)

    return WallClock(wall_us, lambda: int(world.now * 1e6))
