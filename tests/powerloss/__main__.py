"""``python -m tests.powerloss``: open disks that power cuts may leave, in each workload.

The number of an image is its seed: ``python -m tests.powerloss 7`` builds that one again.
"""

import argparse
import copy
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Final

from tests.powerloss import disk
from tests.powerloss.workload import ACKNOWLEDGED, DONE
from tests.powerloss.workloads import WORKLOADS

RUN_IMAGES: Final = 50
"""Images of one run of a workload: cuts at other moments, or other choices of what is left."""

FIRST_CHANGES: Final = 30

_NAMES: Final = [*WORKLOADS]


def run_of(seed: int) -> tuple[int, int]:
    """Return the run of an image: a workload's number, and its seed."""
    return seed % len(_NAMES), seed // (len(_NAMES) * RUN_IMAGES)


@contextmanager
def recorded(name: str, seed: int, *, syncs: bool) -> Iterator[tuple[disk.Disk, list[disk.Event]]]:
    """Return the disk before a workload, and all changes of it."""
    with tempfile.TemporaryDirectory(prefix="powerloss-") as made:
        root = Path(made).resolve() / "root"
        WORKLOADS[name](root, seed).prepare()
        before, after = (disk.Disk(root, syncs=syncs) for _ in range(2))
        command = [sys.executable, "-m", "tests.powerloss.workloads", name, str(root), str(seed)]
        events = disk.recorded(command, root)
        for event in events:
            after.apply(event)
        after.check()
        yield before, events


def check(seeds: Sequence[int], *, syncs: bool = True) -> Iterator[tuple[int, bool]]:
    """Check images; yield the seed of each, and whether it has all that it must have."""
    for (number, run), images in groupby(sorted(seeds, key=run_of), run_of):
        name = _NAMES[number]
        with recorded(name, run, syncs=syncs) as (state, events):
            chances = {each: Random(each) for each in images}
            cuts = sorted((_cut(chance, events), seed) for seed, chance in chances.items())
            applied = 0
            for cut, seed in cuts:
                for event in events[applied:cut]:
                    state.apply(event)
                applied = cut
                print(f"image {seed}: {name}, power lost in change {cut}/{len(events)}", end=", ")
                yield seed, _is_right(name, run, copy.deepcopy(state), events[cut], chances[seed])


def _cut(chance: Random, events: Sequence[disk.Event]) -> int:
    """Return a moment: often at the beginning, or when something has just been acknowledged."""
    acknowledged = [at for at, event in enumerate(events, 1) if event.data.startswith(DONE)]
    kinds = range(len(events)), range(min(len(events), FIRST_CHANGES)), acknowledged[:-1]
    (moments,) = chance.choices(kinds, weights=(5, 2, 3))
    return chance.choice(moments)


def _is_right(name: str, run: int, cut: disk.Disk, event: disk.Event, chance: Random) -> bool:
    cut.apply(event, is_done=False)
    with tempfile.TemporaryDirectory(prefix="powerloss-") as made:
        how = cut.left(Path(made), chance, without=[ACKNOWLEDGED])
        print(how, flush=True)  # before the check, which a damaged page could end
        try:
            WORKLOADS[name](Path(made), run).check(cut.newest(ACKNOWLEDGED))
        except Exception:  # noqa: BLE001 -- any error is a finding
            traceback.print_exc()
            return False
    return True


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.powerloss", description=__doc__)
    options.add_argument("seeds", type=int, nargs="*", help="default: 0, 1 and so on")
    options.add_argument("--images", type=int, default=1000)
    options.add_argument(
        "--without-syncs", action="store_true", help="the disk ignores syncs; ends at a loss"
    )
    given = options.parse_args()
    seeds, started_s = given.seeds or range(given.images), time.monotonic()
    checked, lost = 0, list[int]()
    for seed, is_right in check(seeds, syncs=not given.without_syncs):
        checked += 1
        if not is_right:
            lost.append(seed)
            if given.without_syncs:
                break
    print(f"{checked} images in {time.monotonic() - started_s:.0f} s, {len(lost)} with losses")
    for seed in lost:
        print(f"once more: make powerloss SEED={seed}")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
