"""docs/theory.md names tests that exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "theory.md"


def test_every_test_that_the_page_names_exists_and_every_one_is_named() -> None:
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE.read_text(encoding="utf-8")))
    there = {path.name for path in HERE.glob("test_*.py")} - {Path(__file__).name}
    assert named == there
