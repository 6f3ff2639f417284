"""The command in small: every figure is a picture, and only what is asked for is played."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.rbcs_f_paper import main
from fairbed.testbed.errors import UsageError

FIGURES = (
    "fig2-queues",
    "front",
    "fig3-time",
    "regret",
    "fig4-pulls",
    "fig5-evenness-softmax",
    "fig6-rounds-softmax",
    "fig6-time-softmax",
)
PNG = b"\x89PNG\r\n\x1a\n"
LEAST_BYTES = 8_000
"""An empty figure is smaller."""


@pytest.mark.timeout(300)
def test_it_writes_the_table_and_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs fairbed[figures]")
    arguments = ["--quick", "--json", "--seeds", "2", "--rounds", "40", "--out", str(tmp_path)]
    status = main(arguments)
    said = msgspec.json.decode(capsys.readouterr().out)
    assert (said["seeds"], said["rounds"]) == (2, 40)
    assert status == (0 if all(check["holds"] for check in said["checks"]) else 1)
    assert all(cell["is_within"] is None for cell in said["cells"]), "the reference has 500 rounds"
    guarantee = [check for check in said["checks"] if "after every round" in check["text"]]
    assert [check["holds"] for check in guarantee] == [True]
    for name in FIGURES:
        picture, vectors = (tmp_path / f"{name}.{kind}" for kind in ("png", "svg"))
        assert picture.read_bytes().startswith(PNG)
        assert picture.stat().st_size > LEAST_BYTES, name
        assert "</svg>" in vectors.read_text()
    assert "| RBCS-F(20)" in (tmp_path / "table.md").read_text()
    assert [one["word"] for one in said["accuracy"]["readings"]] == ["not shown"] * (2 + 8)
    curves = sorted((tmp_path / "curves").iterdir())
    assert len(curves) == 4 + 5
    for path in curves:
        curve = msgspec.json.decode(path.read_bytes())
        assert curve["rounds"] == [2, 4]
        assert 0.05 < curve["accuracy"][-1] <= 1.0
        assert 0.0 < curve["time_s"][0] < curve["time_s"][1]


@pytest.mark.timeout(300)
def test_figures_that_train_come_without_the_table_that_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs fairbed[figures]")
    assert main(["--figures", "6", "--quick", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "Figure 6, digits:" in said.out
    assert "5 of 5 training runs" in said.err
    assert "FedCS(3) ends above" not in said.out
    assert "RBCS-F(5) ends above FedCS(3)" in said.out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "accuracy-softmax.json",
        "accuracy-softmax.md",
        "curves",
        *(
            f"fig6-{kind}-softmax.{suffix}"
            for kind in ("rounds", "time")
            for suffix in ("pdf", "png", "svg")
        ),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--figures", "1"], "--figures must be some of 2,3,4,5,6 or none, got '1'"),
        (["--figures", "2,"], "got ''"),
        (["--datasets", "imagenet"], "--datasets must be some of fashion-mnist,cifar10, got"),
        (["--mixtures", "1,2"], "--mixtures must be some of 1,10,inf, got '2'"),
        (["--examples", "12"], "--examples must be all or a number of at least 1000, got '12'"),
        (["--train-rounds", "9"], "--train-rounds must be at least 10, got 9"),
    ],
)
def test_a_figure_that_there_is_not_is_refused(arguments: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        main(arguments)


def test_missing_data_are_named_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="needs fairbed[figures]")
    monkeypatch.delenv("FAIRBED_DATA", raising=False)
    with pytest.raises(UsageError, match=r"figures 5 and 6 need data: .*FAIRBED_DATA"):
        main(["--figures", "5", "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_no_round_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--rounds", "0"])
    assert raised.value.code == 2
    assert "--rounds: must be at least 1, got 0" in capsys.readouterr().err
