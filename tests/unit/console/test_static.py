"""Rules for all pages: records are untrusted, and nothing is loaded from elsewhere."""

import re

import pytest

from dafka_console.api import STATIC

FILES = sorted(path for path in STATIC.iterdir() if path.suffix in (".js", ".html", ".css", ".svg"))
NAMESPACE = "http://www.w3.org/2000/svg"


def test_the_pages_are_there() -> None:
    assert {"index.html", "app.js", "style.css", "icon.svg"} <= {path.name for path in FILES}
    assert len([path for path in FILES if path.name.startswith("page_")]) == 8


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_becomes_markup_or_code(path: object) -> None:
    text = STATIC.joinpath(str(path)).read_text("utf-8")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "srcdoc"):
        assert word not in text
    assert not re.search(r"\beval\(|new Function|setTimeout\(['\"]|javascript:", text)
    assert re.findall(r"https?://[^\s\"'`)]+", text.replace(NAMESPACE, "")) == []


def test_the_page_itself_has_no_script_and_no_style_of_its_own() -> None:
    text = STATIC.joinpath("index.html").read_text("utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert not re.search(r"<style|\sstyle=|\son\w+=", text)


def test_modules_import_what_is_there() -> None:
    for path in FILES:
        for name in re.findall(r'from "\./([\w.]+)"', path.read_text("utf-8")):
            assert (STATIC / name).exists(), f"{path.name} imports {name}"


def test_what_a_module_imports_by_name_is_exported() -> None:
    exported = {
        path.name: set(re.findall(r"export (?:async )?(?:function|const) (\w+)", path.read_text()))
        for path in FILES
    }
    for path in FILES:
        found = re.findall(r'import \{([^}]*)\} from "\./([\w.]+)"', path.read_text("utf-8"))
        for names, module in found:
            wanted = {name.strip() for name in names.split(",") if name.strip()}
            assert wanted <= exported[module], f"{path.name}: {wanted - exported[module]}"


def test_texts_have_the_contrast_of_wcag_aa() -> None:
    """At least 4.5 between each colour of texts and each background that it is shown on."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = (x / 12.92 if x <= 0.04 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
        red, green, blue = linear
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    text = (STATIC / "style.css").read_text("utf-8")
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", text)
    assert len(found) == len(re.findall(r"#\w{6}\b", text)) / 2 == 15
    for theme, number in (("light", 1), ("dark", 2)):
        of = {each[0]: each[number] for each in found}
        pairs = [(each, f"{each}-soft") for each in ("accent", "good", "warn", "bad")]
        pairs += [(each, on) for each in ("ink", "soft", "faint") for on in ("bg", "card")]
        pairs += [("accent", "card"), ("ink", "hover"), ("soft", "hover")]
        for front, on in pairs:
            dark, bright = sorted((light(of[front]), light(of[on])))
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (front, on, theme)
