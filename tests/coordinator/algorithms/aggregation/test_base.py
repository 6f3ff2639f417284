"""Changes of the updates of a round, and notes about a merged round."""

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Changes, Note

SENT = np.array([1.0, 2.0, 3.0], dtype=np.float32)
MODELS = [SENT + np.float32(1.0), SENT - np.float32(2.0)]


def test_a_change_is_the_difference_to_the_model_that_was_sent() -> None:
    changes = Changes(SENT, MODELS, n_params=2)
    assert [change.tolist() for change in changes] == [[1.0] * 3, [-2.0] * 3]
    assert changes.params(1).tolist() == [-2.0, -2.0]
    assert changes.part(1, 3).tolist() == [[1.0, 1.0], [-2.0, -2.0]]


def test_a_treated_change_is_scaled_as_often_as_it_was_treated() -> None:
    once = Changes(SENT, MODELS, n_params=2).treated(np.array([1, 0]), np.array([0.5, 1.0]))
    assert [change.tolist() for change in once] == [[-1.0] * 3, [1.0] * 3]
    twice = once.treated(np.array([0]), np.array([0.5]))
    assert twice[0].tolist() == [-0.5] * 3
    assert twice.part(0, 2).tolist() == [[-0.5, -0.5]]


def test_a_note_names_its_devices_but_not_all_of_many() -> None:
    names = [f"pi-{i}" for i in range(20)]
    assert Note("loss", "too large").about(names) == "too large"
    assert Note("loss", "too large", (2, 5)).about(names) == "too large (pi-2, pi-5)"
    text = Note("loss", "too large", tuple(range(20))).about(names)
    assert text.startswith("too large (pi-0, pi-1, ")
    assert text.endswith(" more)")
