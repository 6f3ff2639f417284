"""The benchmark of secure aggregation measures parts that work together."""

import secrets

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.secure_aggregation import PRIME, agreed, main, mask, rebuilt, shares_of, value_bytes


@pytest.mark.parametrize("by_chacha", [False, True])
def test_the_masks_of_three_devices_cancel_in_the_sum(by_chacha: bool) -> None:
    keys = [X25519PrivateKey.generate() for _ in range(3)]
    updates = np.arange(15, dtype=np.uint32).reshape(3, 5)
    masked = updates.copy()
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert agreed(keys[i], keys[j]) == agreed(keys[j], keys[i])
        both = mask(agreed(keys[i], keys[j]), 5, by_chacha=by_chacha)
        masked[i] += both
        masked[j] -= both
    assert not (masked == updates).any(axis=1).any()
    assert (masked.sum(axis=0, dtype=np.uint32) == updates.sum(axis=0)).all()


def test_a_secret_needs_as_many_shares_as_its_threshold() -> None:
    secret = secrets.randbelow(PRIME)
    shares = shares_of(secret, 7, 4)
    assert rebuilt(shares[1:5]) == rebuilt(shares[3:]) == secret
    assert rebuilt(shares[:3]) != secret


def test_a_masked_value_has_room_for_the_sum_of_the_cohort() -> None:
    assert [value_bytes(n) for n in (1, 2, 256, 257)] == [2, 3, 3, 4]


def test_it_states_bytes_and_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--cohorts", "4,30"]) == 0
    report = msgspec.json.decode(capsys.readouterr().out)
    assert all(value > 0.0 for value in report["measured"].values())
    small, large = (
        next(c for c in report["costs"] if (c["model"], c["link"], c["cohort"]) == (*of, n))
        for of, n in ((("cnn, 28 x 28", "wifi-board"), 4), (("cnn, 28 x 28", "wifi-board"), 30))
    )
    # 2 keys, 3 encrypted pairs of shares, 4 shares to unmask
    assert small["up_bytes"] == 2 * 32 + 3 * (2 * 33 + 28) + 4 * 33
    assert small["update_bytes"] == 3 * 215_370
    assert large["mask_s"] == pytest.approx(small["mask_s"] * 30 / 4)
    assert large["unmask_s"] > small["unmask_s"]
