"""The check of words: what it finds, and what it leaves alone."""

from pathlib import Path

import pytest

from tools.check_words import findings


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.py", "# a device that nobody told\n", ["nobody", "told"]),
        ("a.py", 'def f() -> None:\n    """Tell whether it is\n    so, says the device."""\n', 2),
        ("a.py", "def f(told_at: float) -> None:\n    crowd = told_at\n", ["told_at", "crowd"]),
        ("a.py", "# `whoami`, storytelling and the crowded\n", []),
        ("a.py", "x = left.told()  # a name of another package is not ours\n", []),
        ("a.md", "Everybody\n\n```sh\nsay hello\n```\n`who`\n", ["Everybody"]),
    ],
)
def test_it_finds_words_and_names(
    name: str, text: str, words: list[str] | int, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = [word for _, word in findings(path)]
    assert len(found) == words if isinstance(words, int) else found == words
