import numpy as np
import pytest
from scipy import stats

from fairbed.testbed.experiment.data import DataConfig, SyntheticConfig
from fairbed.testbed.experiment.datasets import load
from fairbed.testbed.experiment.datasets.synthetic import DIMENSIONS, draw_users, synthetic


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


MANY = SyntheticConfig(alpha=0.5, beta=0.5, users=4000)


def test_the_second_argument_of_each_normal_is_a_standard_deviation() -> None:
    users = draw_users(MANY, rng())
    # The mean over the coordinates of v_k is B_k and a 1/60 of variance; read as variances,
    # alpha = beta = 0.5 would give 0.5 + 1/60.
    feature = users.feature_means.mean(axis=1)
    assert feature.var() == pytest.approx(0.25 + 1 / 60, rel=0.06)
    model = users.weights.mean(axis=(1, 2))
    assert model.var() == pytest.approx(0.25 + 1 / 600, rel=0.06)


def test_weights_and_biases_of_a_user_share_their_mean() -> None:
    users = draw_users(MANY, rng())
    correlation = np.corrcoef(users.weights.mean(axis=(1, 2)), users.biases.mean(axis=1))[0, 1]
    assert correlation == pytest.approx(0.5 / np.sqrt(0.25 + 0.1), abs=0.03)


def test_features_of_a_user_scatter_with_unit_variance() -> None:
    users = draw_users(MANY, rng())
    spread = users.feature_means - users.feature_means.mean(axis=1, keepdims=True)
    assert spread.var() == pytest.approx(1 - 1 / DIMENSIONS, rel=0.02)


@pytest.mark.parametrize(
    ("variant", "beta", "sigma"), [("non-iid", 1.0, 2.0), ("iid", 0.0, 1.0), ("hybrid", 1.0, 1.0)]
)
def test_sizes_are_log_normal_above_fifty(variant: str, beta: float, sigma: float) -> None:
    config = SyntheticConfig(variant=variant, beta=beta, users=4000)  # type: ignore[arg-type]  # one of the literals
    sizes = draw_users(config, rng(2)).sizes
    assert sizes.min() >= 50
    assert np.median(sizes - 50) == pytest.approx(np.exp(4.0), rel=0.1)
    # Kolmogorov-Smirnov against the law, half a unit put back for the rounding down.
    distance = stats.kstest(np.log(sizes - 49.5), "norm", args=(4.0, sigma)).statistic
    assert distance < 0.05


def test_features_have_the_stated_covariance() -> None:
    data = synthetic(SyntheticConfig(alpha=0.0, beta=0.0, users=100, variant="iid"), rng(1))
    covariance = np.cov(data.x, rowvar=False)
    expected = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(np.diag(covariance), expected, rtol=0.06)
    scale = np.sqrt(np.outer(expected, expected))
    assert np.abs((covariance / scale)[~np.eye(60, dtype=bool)]).max() < 0.06
    np.testing.assert_allclose(data.x.mean(axis=0), 0.0, atol=0.06)


def test_labels_are_the_argmax_of_the_users_model() -> None:
    config = SyntheticConfig(users=20)
    users, data = draw_users(config, rng(3)), synthetic(config, rng(3))
    assert data.device_ids is not None
    np.testing.assert_array_equal(np.bincount(data.device_ids), users.sizes)
    for k in range(20):
        mine = data.device_ids == k
        logits = data.x[mine].astype(np.float64) @ users.weights[k] + users.biases[k]
        assert (logits.argmax(axis=1) == data.y[mine]).mean() > 0.999  # x was rounded to float32
        np.testing.assert_allclose(
            data.x[mine].mean(axis=0), users.feature_means[k], atol=5 / np.sqrt(mine.sum())
        )


def test_alpha_changes_no_label() -> None:
    # u_k moves all logits of an example alike: a quirk of the published generator.
    low, high = (synthetic(SyntheticConfig(alpha=a, users=20), rng(5)) for a in (0.0, 3.0))
    np.testing.assert_array_equal(low.x, high.x)
    assert (low.y == high.y).mean() > 0.999


def test_iid_users_share_one_model_and_no_shift() -> None:
    users = draw_users(SyntheticConfig(variant="iid", beta=0.0, users=30), rng())
    assert not users.feature_means.any()
    assert (users.weights == users.weights[0]).all()
    assert (users.biases == users.biases[0]).all()


def test_the_first_half_of_hybrid_is_iid() -> None:
    users = draw_users(SyntheticConfig(variant="hybrid", users=100), rng())
    assert not users.feature_means[:50].any()
    assert users.feature_means[50:].all()
    assert (users.weights[:50] == users.weights[0]).all()
    assert len(np.unique(users.weights[50:, 0, 0])) == 50


def test_defaults_are_the_hundred_users_of_the_papers() -> None:
    data = load(DataConfig(dataset="synthetic"), 1, {})
    assert data.device_ids is not None
    assert data.device_ids.max() == 99
    assert (data.x_shape, data.x.dtype.name, data.classes) == ((60,), "float32", 10)


def test_the_same_seed_gives_the_same_data() -> None:
    first, again, other = (load(DataConfig(dataset="synthetic"), s, {}) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.x, again.x)
    np.testing.assert_array_equal(first.y, again.y)
    assert first.x.shape != other.x.shape or (first.x != other.x).any()
