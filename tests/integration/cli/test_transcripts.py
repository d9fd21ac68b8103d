"""The transcripts of docs/commands.md are what the commands print now: those that are quick."""

import re
from pathlib import Path

from scripts import transcripts
from scripts.transcripts import output

QUICK = re.compile(r"dafka (produce|consume numbers --exit|topics$|trim|delete)")
"""Deterministic ones, and few: each is a process of its own."""

MASKS = (
    (r"\b[0-9A-F]{32}\b", "ADDRESS"),
    (r"\d{4}-\d\d-\d\d[T ][\d:.]+\+00:00", "TIME"),
    (r":\d{4,5}\b", ":PORT"),
)
"""Parts that differ each time."""


def masked(text: str) -> list[str]:
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return text.splitlines()


def printed(section: str, step: str) -> str:
    _, _, rest = section.partition(f"\n$ {step}\n")
    return re.split(r"^(?:\$ |```)", rest, maxsplit=1, flags=re.MULTILINE)[0]


def test_commands_print_what_the_page_says(tmp_path: Path) -> None:
    page = transcripts.PAGE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (.*)\n\n```text(\n\$ [^`]*```)", page, re.MULTILINE))
    directory = tmp_path.resolve()
    with transcripts.cluster(directory) as (environment, said):
        now = [("A cluster", transcripts.UP, said)]
        for title, steps in transcripts.STEPS.items():
            quick = filter(QUICK.search, steps)
            now += [(title, step, output(step, directory, environment)) for step in quick]
    assert len(now) == 8
    for title, step, text in now:
        shown = masked(text.replace(str(directory), "/srv/dafka"))
        assert (step, shown) == (step, masked(printed(sections[title], step)))
