"""Links between the pages, and paths that they name, lead to files and headings that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMING = [*(page for page in PAGES if page.parent.name != "decisions"), ROOT / "CHANGELOG.md"]
"""Decisions also name files that they decide against."""
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(
    r"(?<![\w./-])"
    r"(?:benchmarks|coordinator|device_agent|docs|examples|experiments|profiles|testbed|tests|tools|wire)"
    r"/[\w./-]*\w\.(?:csv(?:\.xz)?|json|md|py|svg|toml|txt)\b"
)
"""A file of this repository in a text or a command."""
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_to_something(page: Path) -> None:
    broken = []
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if link.startswith(("http://", "https://")):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", NAMING, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = set(NAMED.findall(page.read_text(encoding="utf-8")))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
