"""The split of a command line between `fairbed shape` and the command."""

import pytest

from fairbed.testbed.shape.options import split_command


@pytest.mark.parametrize(
    ("line", "own", "command"),
    [
        ("shape pi -- ls -l", "shape pi", "ls -l"),
        ("shape --cpu 0.5 -- sh -- x", "shape --cpu 0.5", "sh -- x"),
        ("--debug shape pi -- ls", "--debug shape pi", "ls"),
        ("shape pi ls -l", "shape", ""),
        ("shape pi --", "shape pi", ""),
        ("shape --help", "shape --help", ""),
        ("shape -- ls --help", "shape", "ls --help"),
        ("bench codecs -- x", "bench codecs -- x", ""),
        ("", "", ""),
    ],
)
def test_everything_after_the_first_two_hyphens_is_the_command(
    line: str, own: str, command: str
) -> None:
    assert split_command(line.split()) == (own.split(), command.split())
