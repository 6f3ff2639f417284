"""Malicious devices: the formulas of the source, and what they report."""

from typing import get_args

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from fairbed.testbed.emulation.malicious import (
    POISONS_LABELS,
    Attack,
    AttackKind,
    MaliciousDevice,
    poison_labels,
)
from fairbed.wire.codec import decode_from_device, encode
from fairbed.wire.messages import Context, EvaluateReply, FromDevice, Offer
from tests.coordinator.builders import context, offer
from tests.wire.messages import MESSAGES

KINDS: tuple[AttackKind, ...] = get_args(AttackKind)

SENT = np.array([1.0, 2.0, -1.0, 0.5, 9.0], dtype=np.float32)
"""Four parameters and a buffer."""
N = 4


def sends(
    kind: AttackKind, change: list[float], seed: int = 7, **options: float
) -> NDArray[np.float32]:
    """Return the change that a device sends instead of its own; the last entry is the buffer."""
    own = np.array(change, dtype=np.float32)
    device = MaliciousDevice(Attack(kind=kind, **options))  # type: ignore[arg-type]
    return device.update(SENT, SENT + own, N, seed) - SENT


def test_labels_of_two_classes_are_flipped() -> None:
    rng = np.random.default_rng(0)
    assert poison_labels(np.array([1, 0, 0, 1]), 2, rng).tolist() == [0, 1, 1, 0]


def test_labels_of_many_classes_are_uniform_over_all_classes() -> None:
    y = np.full(20_000, 3)
    drawn = poison_labels(y, 10, np.random.default_rng(0))
    assert np.bincount(drawn, minlength=10) / len(y) == pytest.approx(np.full(10, 0.1), abs=0.01)
    assert (y == 3).all(), "not changed"
    again = poison_labels(y, 10, np.random.default_rng(0))
    assert (drawn == again).all()


def test_model_replacement_sends_m_times_its_update() -> None:
    change = sends("model-replacement", [0.1, -0.2, 0.0, 0.0, 0.25], scale=10.0)
    assert change == pytest.approx([1.0, -2.0, 0.0, 0.0, 0.25], abs=1e-6), (
        "the buffer is not scaled"
    )


def test_an_infinite_update_is_left_to_the_guards() -> None:
    change = sends("model-replacement", [1e38, 0.0, 0.0, 0.0, 0.0], scale=10.0)
    assert np.isinf(change[0])


def test_a_random_update_has_the_spread_of_the_own_update() -> None:
    n = 50_000
    sent, own = (
        np.zeros(n, dtype=np.float32),
        np.tile(np.array([1.0, -1.0], dtype=np.float32), n // 2),
    )
    device = MaliciousDevice(Attack(kind="random-update"))
    first, second = (device.update(sent, own, n, seed) for seed in (1, 2))
    for drawn in (first, second):
        assert float(drawn.mean()) == pytest.approx(0.0, abs=0.02)
        assert float(drawn.std()) == pytest.approx(1.0, abs=0.02)
        assert float(np.abs(drawn).max()) > 3.0, "normal, not +-1"
    assert abs(float(np.corrcoef(first, second)[0, 1])) < 0.02, "fresh in every round"
    assert (device.update(sent, own, n, 1) == first).all(), "by the seed alone"


def test_a_random_update_spreads_around_0_whatever_the_mean_of_the_own_update() -> None:
    assert sends("random-update", [5.0, 5.0, 5.0, 5.0, 0.0]) == pytest.approx(np.zeros(5))


def test_a_free_rider_sends_the_model_that_it_received() -> None:
    assert sends("free-rider", [1.0, 2.0, 3.0, 4.0, 5.0]).tolist() == [0.0] * 5


def test_nan_is_sent_in_every_entry() -> None:
    assert np.isnan(sends("nan", [1.0, 2.0, 3.0, 4.0, 5.0])).all()


def test_a_replayed_update_is_the_first_one_on_the_model_of_the_round() -> None:
    device = MaliciousDevice(Attack(kind="replayed-update"))
    own = np.array([0.5, -0.5, 0.25, 0.0, 1.0], dtype=np.float32)
    assert (device.update(SENT, SENT + own, N, 1) == SENT + own).all()
    later = SENT * 2
    resumed = MaliciousDevice(Attack(kind="replayed-update"))
    resumed.load_state(device.to_state())
    for one in (device, resumed):
        sent = one.update(later, later - own, N, 2)
        assert sent[:N].tolist() == (later + own)[:N].tolist()
        assert sent[N] == (later - own)[N], "the buffer is its own"


@pytest.mark.parametrize("kind", ["label-poisoning", "lying-loss", "lying-context"])
def test_the_other_kinds_send_their_own_update(kind: AttackKind) -> None:
    assert sends(kind, [1.0, 2.0, 3.0, 4.0, 5.0]).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_the_attacks_of_the_source_poison_labels() -> None:
    poisoning = {kind for kind in KINDS if Attack(kind=kind).poisons_labels}
    assert (
        poisoning
        == set(POISONS_LABELS)
        == {
            "label-poisoning",
            "random-update",
            "model-replacement",
        }
    )
    assert [k for k in KINDS if not Attack(kind=k).needs_training] == ["lying-context"]


REPLY = EvaluateReply(
    round=3,
    model=bytes(32),
    loss=2.25,
    n=9,
    was_cold=False,
    download_s=0.0,
    decode_s=0.0,
    load_s=0.0,
    evaluate_s=0.0,
)
FROM_DEVICE = {name: m for name, m in MESSAGES.items() if isinstance(m, FromDevice)}


def changed(message: FromDevice, attack: Attack) -> dict[str, object]:
    """Return the fields that a malicious device changes, with their new values."""
    before, after = (
        structs.asdict(message),
        structs.asdict(MaliciousDevice(attack).message(message)),
    )
    return {key: value for key, value in after.items() if value != before[key]}


def test_a_false_loss_is_reported_in_offers_and_replies_only() -> None:
    lie = Attack(kind="lying-loss", loss=1e6)
    assert changed(offer(), lie) == {"loss_before": 1e6}
    assert changed(structs.replace(offer(), loss_before=None, loss_train=0.5), lie) == {
        "loss_train": 1e6
    }
    assert changed(REPLY, lie) == {"loss": 1e6}
    assert changed(context(), lie) == {}


def test_a_false_context_claims_free_cores_and_rates() -> None:
    lie = Attack(kind="lying-context", speed=10.0)
    claimed = {"mu_cores": 10.0, "downlink_bps": 8e7, "uplink_bps": 4e7}
    assert changed(context(), lie) == claimed
    assert changed(context(free_cores=3.0), lie) == claimed | {"free_cores": 30.0}
    assert changed(context(downlink_bps=None, uplink_bps=None), lie) == {"mu_cores": 10.0}
    assert changed(structs.replace(offer(), downlink_bps=1e6), lie) == {"downlink_bps": 1e7}
    assert changed(REPLY, lie) == {}


def test_a_device_can_claim_that_it_is_always_cold() -> None:
    lie = Attack(kind="lying-context", claims_cold=True)
    assert changed(context(is_warm=True), lie) == {"is_warm": False}
    assert changed(structs.replace(offer(), was_cold=False), lie) == {"was_cold": True}
    assert changed(REPLY, lie) == {"was_cold": True}


def test_a_device_can_be_honest_in_its_first_exchanges() -> None:
    lie = Attack(kind="lying-context", speed=10.0, claims_cold=True, honest_exchanges=2)
    device = MaliciousDevice(lie)
    for trained in (0, 1):
        assert device.message(context()) == context(), trained
        assert device.message(REPLY) == REPLY
        assert (device.update(SENT, SENT + 1, N, trained) == SENT + 1).all()
    assert device.message(context()) == MaliciousDevice(
        structs.replace(lie, honest_exchanges=0)
    ).message(context())
    assert device.message(context()) != context()


@pytest.mark.parametrize("name", FROM_DEVICE)
def test_every_lie_is_a_valid_message(name: str) -> None:
    for kind in KINDS:
        attack = Attack(kind=kind, loss=1e6, speed=1e6, claims_cold=kind == "lying-context")
        message = FROM_DEVICE[name]
        lie = MaliciousDevice(attack).message(message)
        assert decode_from_device(encode(lie)) == lie
        if not isinstance(message, Offer | EvaluateReply | Context):
            assert lie is message
        if kind not in ("lying-loss", "lying-context"):
            assert lie is message
