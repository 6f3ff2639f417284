"""What curves come to, and when they say what the paper says: only with 0 outside the interval."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from experiments.rbcs_f_paper.accuracy import ends, over_time
from experiments.rbcs_f_paper.accuracy_report import accuracy_markdown, summarise_accuracy
from experiments.rbcs_f_paper.reading import Outcome, Reading, outcomes, readings
from experiments.rbcs_f_paper.settings import SIZES, Figure, Setting, settings_of
from experiments.rbcs_f_paper.training import Curve

SIZE = replace(SIZES["softmax"], rounds=100, every=5, seeds=5)
ROUNDS = list(range(5, 101, 5))
LUCK = (0.03, -0.02, 0.01, 0.0, -0.04)
"""What a seed does to all of its runs alike."""
ROUND_S = {"random": 6.0, "RBCS-F(5)": 3.5, "RBCS-F(20)": 3.0, "RBCS-F(50)": 2.8}
QUICK_S = 2.0

Accuracy = Callable[[Setting, int], float]


def flat(setting: Setting, round_id: int) -> float:
    """Return an accuracy that only the seed moves."""
    return 0.5 + LUCK[setting.seed]


def trained(accuracy: Accuracy, figures: list[Figure]) -> dict[Setting, Curve]:
    return {
        one: Curve(
            ROUNDS,
            [ROUND_S.get(one.policy.label, QUICK_S) * r for r in ROUNDS],
            [accuracy(one, r) for r in ROUNDS],
        )
        for one in settings_of(figures, SIZE)
    }


def found(accuracy: Accuracy, figure: Figure, dataset: str = "cifar10") -> dict[str, Reading]:
    said = readings(figure, trained(accuracy, [figure]), SIZE)
    return {one.text: one for one in said if one.dataset == dataset}


def by_label(accuracy: Accuracy, figure: Figure) -> dict[str, Outcome]:
    """Return the outcomes of one panel."""
    said = outcomes(figure, trained(accuracy, [figure]), SIZE)
    return {one.label: one for one in said if (one.dataset, one.mixture) == ("fashion-mnist", 10.0)}


def test_differences_are_paired_so_that_the_luck_of_a_seed_drops_out() -> None:
    def accuracy(setting: Setting, round_id: int) -> float:
        return flat(setting, round_id) - 0.01 * (setting.evenness == 0.1)

    panel = by_label(accuracy, 5)
    base, uneven = panel["gamma_2 = 10"], panel["gamma_2 = 0.1"]
    assert base.final_against is None
    assert base.final.mean == pytest.approx(0.496)
    assert base.final.low is not None
    assert base.final.low < 0.48
    assert uneven.final_against is not None
    assert uneven.final_against.low == pytest.approx(-0.01)
    assert uneven.final_against.high == pytest.approx(-0.01)
    assert uneven.final_against.verdict == "less"


@pytest.mark.parametrize(
    ("gains", "word"),
    [
        ((0.02, 0.03, 0.01, 0.02, 0.04), "shown"),
        ((-0.02, -0.03, -0.01, -0.02, -0.04), "the opposite is shown"),
        ((0.02, -0.03, 0.01, 0.02, 0.04), "not shown"),
    ],
)
def test_the_paper_is_borne_out_only_where_0_is_outside(
    gains: tuple[float, ...], word: str
) -> None:
    def accuracy(setting: Setting, round_id: int) -> float:
        return flat(setting, round_id) + gains[setting.seed] * (setting.evenness == 10.0)

    said = found(accuracy, 5)
    for text in ("gamma_1 = 1", "gamma_1 = inf", "mean of the panels"):
        assert said[f"gamma_2 = 10 ends above 0.1, {text}"].word == word
    assert said["evenness gains more with gamma_1 = 1 than inf"].word == "not shown"


def test_four_seeds_show_nothing() -> None:
    size = replace(SIZE, seeds=4)

    def accuracy(setting: Setting, round_id: int) -> float:
        return 0.5 + 0.1 * (setting.evenness == 10.0)

    words = {one.word for one in readings(5, trained(accuracy, [5]), size)}
    assert words == {"not shown"}


def test_a_gain_on_one_data_set_alone_is_larger_there() -> None:
    def accuracy(setting: Setting, round_id: int) -> float:
        return 0.5 + 0.1 * (setting.evenness == 10.0 and setting.dataset == "cifar10")

    said = found(accuracy, 5, dataset="")
    (one,) = said.values()
    assert one.difference.mean == pytest.approx(0.1)
    assert one.word == "shown"


def test_swings_are_the_changes_of_the_second_half() -> None:
    def accuracy(setting: Setting, round_id: int) -> float:
        is_odd = round_id // 5 % 2
        if setting.mixture == 1.0:
            return 0.5 + 0.02 * is_odd
        return 0.5 + 0.3 * is_odd * (round_id <= 45)

    said = found(accuracy, 5)
    reading = said["swings are larger with gamma_1 = 1 than inf"]
    assert reading.difference.mean == pytest.approx(0.02)
    assert reading.word == "shown"


def test_rounds_to_a_target_are_those_of_the_running_mean_and_never_more_than_all() -> None:
    """The target is 0.9 x 0.8; a mean of five is there once four of them are 0.8 and one 0.45."""

    def accuracy(setting: Setting, round_id: int) -> float:
        late = {1.0: 1_000, 10.0: 50, float("inf"): 25}[setting.mixture]
        return 0.8 if round_id > late else 0.45

    panels = outcomes(5, trained(accuracy, [5]), SIZE)
    rounds = {one.mixture: (one.rounds_to.mean, one.reached) for one in panels}
    assert panels[0].target == pytest.approx(0.72)
    assert rounds == {1.0: (100.0, 0), 10.0: (70.0, 5), None: (45.0, 5)}
    reading = next(t for t in found(accuracy, 5) if "takes more rounds" in t)
    assert reading == "gamma_1 = 1 takes more rounds to 0.720 than inf"
    assert found(accuracy, 5)[reading].difference.mean == pytest.approx(55.0)


def test_a_fast_strategy_is_ahead_at_the_end_of_the_fastest_run() -> None:
    """All learn alike in rounds; at 200 s chance has had 33 of them, FedCS a hundred."""

    def accuracy(setting: Setting, round_id: int) -> float:
        return round_id / 100.0

    panel = by_label(accuracy, 6)
    assert panel["FedCS(3)"].early_s == 200.0
    assert panel["FedCS(3)"].early.mean == pytest.approx(0.9)
    assert panel["random"].early.mean == pytest.approx(0.2), "the mean of rounds 10 to 30"
    assert panel["RBCS-F(20)"].early_against is not None
    assert panel["RBCS-F(20)"].early_against.mean == pytest.approx(0.55 - 0.2)
    assert panel["FedCS(3)"].final_against is not None
    assert panel["FedCS(3)"].final_against.verdict == "unclear"
    said = found(accuracy, 6)
    words = "RBCS-F(50) is above random at the end of the fastest run, mean of the panels"
    assert said[words].word == "shown"
    assert said["RBCS-F(5) ends above FedCS(3), mean of the panels"].word == "not shown"


def test_tables_put_in_bold_what_is_shown_and_nothing_else() -> None:
    def accuracy(setting: Setting, round_id: int) -> float:
        gap = {0.1: -0.05, 0.5: LUCK[setting.seed]}.get(setting.evenness or 1.0, 0.0)
        return 0.5 + gap

    curves = trained(accuracy, [5, 6])
    text = accuracy_markdown(summarise_accuracy([5, 6], curves, SIZE))
    assert "| **-0.050 [-0.050, -0.050]** |" in text
    (uneven, *_) = (line for line in text.splitlines() if "gamma_2 = 0.5" in line)
    assert "**" not in uneven
    assert "Figure 6, CIFAR-10:" in text
    widths = {len(line) for line in text.split("\n\n")[2].splitlines()}
    assert len(widths) == 1


def test_the_band_of_a_figure_is_the_interval_of_the_mean() -> None:
    values = np.array([[0.1, 0.5], [0.2, 0.5], [0.3, 0.5], [0.2, 0.5], [0.2, 0.5]])
    low, mean, high = ends(values)
    assert mean == pytest.approx([0.2, 0.5])
    assert 0.1 < low[0] < 0.2 < high[0] < 0.3
    assert low[1] == high[1] == 0.5
    alone = ends(values[:1])
    assert all(side.tolist() == [0.1, 0.5] for side in alone)


def test_curves_over_time_end_with_the_first_that_ends() -> None:
    curves = [Curve([1, 2], [1.0, 3.0], [0.0, 1.0]), Curve([1, 2], [2.0, 4.0], [0.5, 0.5])]
    instants, known = over_time(curves)
    assert (instants[0], instants[-1]) == (2.0, 3.0)
    assert known[:, 0].tolist() == [0.5, 0.5]
    assert known[0, -1] == 1.0
