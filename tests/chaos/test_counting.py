"""The comparison finds a planted loss and a planted double, and distinguishes them."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.counting import compare
from tests.chaos.harness import Chaos, ChaosError
from tests.chaos.queries import check, expected, value

VALUES = [f"value-{number}" for number in range(1000)] + ["twice"] * 2


def shuffled(values: Sequence[str]) -> list[str]:
    return random.Random(4).sample(values, len(values))


@pytest.mark.parametrize(
    ("gone", "again", "counts"),
    [
        ([], [], (0, 0, 0)),
        (["value-77"], [], (1, 0, 0)),
        (["twice"], [], (1, 0, 0)),
        ([], ["value-77"], (0, 1, 0)),
        ([], ["twice"], (0, 1, 0)),
        ([], ["never written"], (0, 0, 1)),
        (["value-2"], ["value-1"], (1, 1, 0)),  # they do not cancel out
    ],
)
def test_losses_doubles_and_strangers_are_counted_and_named(
    gone: list[str], again: list[str], counts: tuple[int, int, int]
) -> None:
    found = shuffled([*VALUES, *again])
    for each in gone:
        found.remove(each)
    difference = compare(VALUES, found)
    assert (difference[:3], bool(difference)) == (counts, any(counts))
    assert all(each in str(difference) for each in gone + again)


def test_what_was_not_acknowledged_may_be_there_or_not() -> None:
    acknowledged, sent = VALUES[:500], VALUES
    assert not compare(acknowledged, acknowledged, sent)
    assert not compare(acknowledged, sent, sent)
    assert compare(acknowledged, sent[1:], sent)[:3] == (1, 0, 0)
    assert compare(acknowledged, [*sent, sent[0]], sent)[:3] == (0, 1, 0)


def test_a_round_that_lost_something_fails_with_its_files_kept(tmp_path: Path) -> None:
    chaos = Chaos(9, "planted", 7, tmp_path)
    with chaos.round(0) as kept:
        chaos.compare("here", ["a", "b"], ["a"])
    with chaos.round(1) as gone:
        chaos.compare("here", ["a", "b"], ["b", "a"])
    outcome = chaos.end()
    assert (outcome.rounds, outcome.losses, outcome.doubles, outcome.good) == (2, 1, 0, False)
    assert "round 0" in outcome.failures[0]
    assert "lost b" in outcome.failures[0]
    assert '"losses": 1' in outcome.line()
    assert (kept.exists(), gone.exists()) == (True, False)


def test_doubles_are_a_failure(tmp_path: Path) -> None:
    chaos = Chaos(9, "planted", 7, tmp_path)
    with pytest.raises(ChaosError, match="1 doubled"):
        chaos.compare("here", ["a"], ["a", "a"])
    assert chaos.end().doubles == 1


def test_a_seed_gives_a_round_the_same_moments_whichever_came_before(tmp_path: Path) -> None:
    all_rounds, alone = Chaos(1, "same", 5, tmp_path), Chaos(1, "same", 5, tmp_path)
    for number in range(3):
        all_rounds.chance(number).random()
    moment = alone.chance(3).random()
    assert all_rounds.chance(3).random() == moment
    assert Chaos(1, "other", 6, tmp_path).chance(3).random() != moment


def checkpoint(directory: Path, ends: Sequence[dict[str, int]]) -> Path:
    """Spark's form: a file for each batch, the source's offset on its third line."""
    (directory / "offsets").mkdir()
    for number, each in enumerate(ends):
        offset = f'{{"topics": {{"t": {each}}}}}'.replace("'", '"')
        (directory / "offsets" / str(number)).write_text(f"v1\n{{}}\n{offset}\n")
    return directory


def test_what_a_query_must_have_written_follows_from_its_checkpoint(tmp_path: Path) -> None:
    kept = checkpoint(tmp_path, [{"P": 2}, {"P": 3, "Q": 1}])
    records = {"P": ["a-1", "b-2", "a-3", "a-4"], "Q": ["a-5"]}
    assert sorted(expected(kept, "t", records)) == ["a=1", "a=3", "b=1"]


def test_a_query_that_doubled_or_lost_a_row_is_found(tmp_path: Path) -> None:
    records = {"P": [value(number) for number in range(300)]}
    kept = checkpoint(tmp_path, [{"P": 100}, {"P": 200}, {"P": 300}])
    written = expected(kept, "t", records)
    answer = {row.split("=")[0]: int(row.split("=")[1]) for row in written}
    chaos = Chaos(9, "planted", 7, tmp_path)
    check(chaos, "the sink", written, shuffled(written), answer)
    with pytest.raises(ChaosError, match="0 lost, 1 doubled"):
        check(chaos, "the sink", written, [*written, written[5]], answer)
    with pytest.raises(ChaosError, match="1 lost, 0 doubled"):
        check(chaos, "the sink", written, written[:-1], answer)
    with pytest.raises(ChaosError, match="batch answer"):
        check(chaos, "the sink", written, written, answer | {"key0": 0})
