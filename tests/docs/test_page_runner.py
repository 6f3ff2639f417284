"""A page is found broken when its commands do not do what it shows."""

import os
from pathlib import Path

import pytest

from tests.docs.pages import BrokenPage, run_page


def run(page: str, folder: Path) -> int:
    """Run a page with the environment of the tests."""
    return run_page(page, folder, os.environ)


def test_writes_the_files_and_runs_the_commands_in_order(tmp_path: Path) -> None:
    file = "```toml\n# file: a.toml\nx = 1\n```\n"
    assert run(f"```sh\ncp a.toml b.toml\n```\n{file}```sh\ncat b.toml\n```\n", tmp_path) == 2
    assert (tmp_path / "b.toml").read_text() == "x = 1\n"


def test_a_command_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(BrokenPage, match="line 3: exit status 1 of\nfalse"):
        run("# Title\n```sh\nfalse\ntrue\n```\n", tmp_path)


def test_an_exit_status_and_its_error_must_be_those_of_the_page(tmp_path: Path) -> None:
    page = "<!-- exit 2 -->\n```sh\necho broken >&2; exit 2\n```\n\n```text\n{}\n```\n"
    assert run(page.format("broken"), tmp_path) == 1
    with pytest.raises(BrokenPage, match="must show the error, got:\nbroken"):
        run(page.format("fine"), tmp_path)
    with pytest.raises(BrokenPage, match="exit status 0"):
        run("<!-- exit 2 -->\n```sh\ntrue\n```\n", tmp_path)


def test_skips_a_command_with_a_reason(tmp_path: Path) -> None:
    assert run("<!-- not run: needs a device -->\n```sh\nfalse\n```\n", tmp_path) == 0


def test_interrupts_a_command_that_stays(tmp_path: Path) -> None:
    stays = "trap 'touch ended; exit 0' INT; echo ready; while :; do sleep 0.05; done"
    assert run(f"<!-- stays -->\n```sh\n{stays}\n```\n\n```sh\ntrue\n```\n", tmp_path) == 2
    assert (tmp_path / "ended").exists()


def test_a_command_that_should_stay_must_not_end(tmp_path: Path) -> None:
    with pytest.raises(BrokenPage, match="line 3: ended at once"):
        run("<!-- stays -->\n```sh\nfalse\n```\n", tmp_path)
