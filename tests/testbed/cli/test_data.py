"""`fairbed data`: list, verify and show."""

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.published import PUBLISHED


def test_list_has_licence_users_and_the_way_to_what_is_not_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRBED_DATA", str(tmp_path))
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    for name, published in PUBLISHED.items():
        assert f"missing  {name}" in out
        assert f"class {published.licence_class}: {published.citation}" in out
    assert "run fairbed data fetch heart, or put processed." in out
    assert "23 users: sensors" in out
    assert main(["data", "list", "heart", "--json"]) == 0
    (status,) = msgspec.json.decode(capsys.readouterr().out)
    assert (status["published"]["users"], status["published"]["licence_class"]) == (4, "A")
    assert main(["data", "verify", "heart"]) == 1


def test_show_draws_text_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "d.html"
    words = ["data", "show", "digits", "--partition", "dirichlet:0.3", "--devices", "6"]
    assert main([*words, "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "digits, dirichlet, 6 devices, seed 1"
    assert sum("|" in line for line in lines) == 6
    assert lines[-1] == str(out)
    page = out.read_text("utf-8")
    assert "data:image/svg+xml;base64," in page
    assert "classes per device: " in page
    assert main([*words, "--out", str(tmp_path / "d.svg")]) == 0
    ElementTree.parse(tmp_path / "d.svg")
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert np.array(found["counts"]).shape == (6, 10)
    assert np.array(found["counts"]).sum() == 1797


def test_show_of_an_experiment_is_its_own_division(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "e.toml"), "--count", "7"]) == 0
    capsys.readouterr()
    assert main(["data", "show", str(tmp_path / "e.toml")]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("digits, dirichlet, 7 devices, seed ")


def test_names_of_users_cannot_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.npz"
    labels = np.array(["a\x1b[31m", "b"])[np.arange(40) % 2]
    np.savez(path, x=np.zeros((40, 2), np.float32), y=labels)
    assert main(["data", "show", str(path), "--devices", "2"]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits", "--devices", "0"], "data show: --devices must be 1 .. 1,000,000, got 0"),
        (["digits", "--partition", "even"], "--partition must be iid, dirichlet, class-mix, by-cl"),
        (["digits", "--partition", "iid:3"], "--partition iid has no option, got '3'; leave it"),
        (["digits", "--partition", "dirichlet:x"], "--partition dirichlet: Expected `float`, got "),
        (["digits", "--partition", "natural"], "partition must not be 'natural' for dataset"),
        (
            ["digits", "--devices", "9000"],
            "9000 devices need 9000 examples (min_examples = 1 each)",
        ),
        (["digits", "--out", "a.gif"], "--out: must end in .svg, .pdf, .png, .html, got 'a.gif'"),
        (["imagenet"], "got 'imagenet'; own data are set as source"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "show", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
