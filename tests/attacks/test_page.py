"""The page's table of attacks is that of the tests."""

import re

from tests.attacks.test_mesh import ATTACKS
from tests.pages import ROOT


def test_the_table_of_attacks_on_the_mesh_is_what_is_tried() -> None:
    page = (ROOT / "tests" / "situations.md").read_text(encoding="utf-8")
    section = page.split("\n## Attacks on the mesh\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (succeeds|fails)\b.* \| fails \|$", section, re.MULTILINE)
    words = {True: "succeeds", False: "fails"}
    assert rows == [(name, words[attack.in_the_open]) for name, attack in ATTACKS.items()]
