"""Local noise on a device: clip and noise by their formula, random numbers, refusals."""

import hashlib
import os
import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairbed.device_agent import trainer
from fairbed.device_agent.config import OwnerPrivacy
from fairbed.device_agent.host import Host, SecureNoise
from fairbed.device_agent.privacy import (
    BLOCK,
    NOISE,
    SeededNoise,
    buffers_problem,
    privatised,
)
from fairbed.device_agent.sensors import real_host
from fairbed.wire.codecs import codec_named, unpack
from fairbed.wire.messages import (
    Coding,
    EvaluateRequest,
    Failed,
    Hello,
    Hyperparameters,
    Personal,
    PersonalScore,
    Privacy,
)
from fairbed.wire.shard import encode_shard
from fairbed.wire.tensors import Layout, Tensor
from tests.device_agent.conftest import AgentSetup, real_host_for_tests
from tests.device_agent.coordinator import FakeCoordinator
from tests.device_agent.softmax import (
    N_VALUES,
    SoftmaxEngine,
    examples,
    softmax_artifact,
    softmax_task,
)
from tests.testbed.replay.cohort.fleets import Meter

Vector = NDArray[np.float32]

TASK, TRAINING = softmax_task(), examples(40)
SHARD = encode_shard(msgspec.structs.replace(TRAINING, held_out=examples(16, seed=1)))
SGD = Hyperparameters(epochs=1, batch_size=10, learning_rate=0.5)
"""As in `FakeCoordinator.request_training`."""
PRIVACY = Privacy(clip=0.25, noise_multiplier=2.0)
DITTO = Personal(run="run-a", hyperparameters=SGD)
NO_NOISE = np.zeros
agent_test = [pytest.mark.anyio, pytest.mark.idle_time_skipped]


def w(round_id: int) -> Vector:
    """Return the global model of a round."""
    return np.random.default_rng(round_id).normal(size=N_VALUES).astype(np.float32)


def f32(*values: float) -> Vector:
    return np.array(values, dtype=np.float32)


# --- the formula ---------------------------------------------------------------------------------


def test_a_long_update_is_clipped_and_noise_is_added() -> None:
    privacy = Privacy(clip=2.5, noise_multiplier=2.0)
    model, trained = f32(1, 1, 1), f32(4, 1, 5)  # D = (3, 0, 4), |D| = 5
    assert privatised(model, trained, privacy, NO_NOISE) == pytest.approx([2.5, 1, 3], abs=1e-7)
    sent = privatised(model, trained, privacy, lambda n: np.array([1.0, -1.0, 0.5]))
    assert sent == pytest.approx([7.5, -4, 5.5], abs=1e-6)
    assert sent.dtype == np.float32


def test_a_short_update_keeps_its_length() -> None:
    model, trained = f32(1, 1, 1), f32(1.5, 1, 1)
    sent = privatised(model, trained, Privacy(clip=2.5, noise_multiplier=1.0), NO_NOISE)
    assert sent.tobytes() == trained.tobytes()
    still = privatised(model, model, Privacy(clip=1e-9, noise_multiplier=1.0), NO_NOISE)
    assert still.tobytes() == model.tobytes()


floats = st.floats(-1e3, 1e3, width=32)


@given(
    st.lists(floats, min_size=3, max_size=3),
    st.lists(floats, min_size=3, max_size=3),
    st.floats(0.01, 100.0),
)
def test_two_updates_of_a_device_differ_by_at_most_twice_the_clip(
    one: list[float], other: list[float], clip: float
) -> None:
    model, privacy = f32(0, 0, 0), Privacy(clip=clip, noise_multiplier=1.0)
    sent = [privatised(model, f32(*x), privacy, NO_NOISE).astype(float) for x in (one, other)]
    for update in sent:
        assert np.linalg.norm(update) <= clip * (1 + 1e-6)
    assert np.linalg.norm(sent[0] - sent[1]) <= 2.0 * clip * (1 + 1e-6)


def test_a_model_with_other_values_than_parameters_is_refused() -> None:
    weight = Tensor(name="w", shape=(21,), offset=0)
    mean = Tensor(name="m", shape=(4,), offset=21, role="buffer")
    assert buffers_problem(Layout(tensors=(weight,))) == ""
    assert buffers_problem(Layout(tensors=(weight, mean))).startswith(
        "privacy: every value of the model that is merged must be a parameter, got 4 others, such"
    )
    own = msgspec.structs.replace(mean, is_local=True)
    assert buffers_problem(Layout(tensors=(weight, own))) == "", "it is not sent"


# --- random numbers ------------------------------------------------------------------------------


def test_secure_noise_is_standard_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    monkeypatch.setattr(os, "urandom", rng.bytes)
    n = 400_001
    z = SecureNoise().stream(seed=1)(n)
    assert z.shape == (n,)
    # Standard errors: mean 1/sqrt(n), variance sqrt(2/n), 4th moment sqrt(96/n); 4 of each.
    assert abs(z.mean()) < 4 / np.sqrt(n)
    assert abs(z.var() - 1.0) < 4 * np.sqrt(2 / n)
    assert abs((z**4).mean() - 3.0) < 4 * np.sqrt(96 / n)
    # Both halves of a pair of Box and Muller are independent: a correlation has 1/sqrt(n/2).
    half = n // 2
    assert abs(np.corrcoef(z[:half], z[half + 1 : 2 * half + 1])[0, 1]) < 4 / np.sqrt(half)


def test_secure_noise_is_finite_for_every_random_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for byte in (b"\x00", b"\xff"):
        monkeypatch.setattr(os, "urandom", lambda n, byte=byte: byte * n)
        z = SecureNoise().stream(seed=1)(5)
        assert np.isfinite(z).all()
        assert np.abs(z).max() < 8.6


def test_secure_noise_never_repeats_and_real_devices_have_it() -> None:
    noise = SecureNoise()
    assert not np.array_equal(noise.stream(seed=1)(8), noise.stream(seed=1)(8))
    assert isinstance(real_host().noise, SecureNoise)
    assert isinstance(real_host_for_tests().noise, SecureNoise)


def test_seeded_noise_repeats_and_has_a_stream_of_its_own() -> None:
    noise = SeededNoise()
    assert not np.array_equal(noise.stream(seed=5)(8), noise.stream(seed=6)(8))
    rng = np.random.default_rng(np.random.SeedSequence([5, NOISE]))
    assert noise.stream(seed=5)(8).tobytes() == rng.standard_normal(8).tobytes()


def test_a_large_model_is_worked_on_in_blocks_as_if_it_were_whole() -> None:
    n = 2 * BLOCK + 5
    rng = np.random.default_rng(3)
    model, trained = (rng.normal(size=n).astype(np.float32) for _ in range(2))
    sent = privatised(model, trained, PRIVACY, SeededNoise().stream(7))
    change = trained.astype(np.float64) - model
    change *= PRIVACY.clip / np.linalg.norm(change)
    noise = SeededNoise().stream(7)(n)
    whole = model + change + PRIVACY.noise_multiplier * PRIVACY.clip * noise
    assert sent == pytest.approx(whole, abs=1e-6)


# --- the agent -----------------------------------------------------------------------------------


def seeded() -> Host:
    return replace(real_host_for_tests(), noise=SeededNoise())


def expected(round_id: int) -> Vector:
    """Return the update of a round by the formula."""
    engine, (x, y) = SoftmaxEngine(softmax_artifact().spec), TRAINING.arrays()
    model = w(round_id)
    done = trainer.train(engine, model, x, y, SGD, round_id, Meter(), lambda: False)
    return privatised(model, done.vector, PRIVACY, SeededNoise().stream(round_id))


class TestRounds:
    """An agent that adds noise."""

    pytestmark = agent_test

    async def test_sends_the_clipped_update_with_noise_and_no_loss(self, setup: AgentSetup) -> None:
        setup.host = seeded()
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            offer, update = await coordinator.run_round(1, w(1), privacy=PRIVACY)
        assert update.tobytes() == expected(1).tobytes()
        assert (offer.loss_before, offer.loss_train) == (None, None)

    async def test_encodes_after_the_noise(self, setup: AgentSetup) -> None:
        setup.host = seeded()
        codec, layout = codec_named("float16"), softmax_artifact().spec.layout
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            await coordinator.request_training(
                1, w(1), privacy=PRIVACY, coding=Coding(up="float16")
            )
            offer = await coordinator.expect_offer(1)
            await coordinator.grant(offer)
            data = await coordinator.receive_bytes(offer)
        assert codec is not None
        decoded = unpack(bytearray(data), codec, layout, w(1))
        assert decoded == pytest.approx(expected(1), abs=2e-3)

    async def test_noise_of_a_real_device_differs_each_time(self, setup: AgentSetup) -> None:
        updates = []
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            for attempt in (0, 1):
                done = await coordinator.run_round(1, w(1), attempt=attempt, privacy=PRIVACY)
                updates.append(done[1])
        noise = updates[0].astype(float) - updates[1].astype(float)
        # The difference of two draws: N(0, 2 z^2 C^2) in 21 values; 6 standard errors.
        sd = np.sqrt(2.0) * PRIVACY.noise_multiplier * PRIVACY.clip
        assert abs(noise.std() / sd - 1.0) < 6 / np.sqrt(2 * N_VALUES)

    @pytest.mark.parametrize("scores", [False, True])
    async def test_personal_model_is_scored_only_if_asked(
        self, setup: AgentSetup, scores: bool
    ) -> None:
        privacy = msgspec.structs.replace(PRIVACY, scores=scores)
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            await coordinator.run_round(1, w(1), privacy=privacy, personal=DITTO)
            if scores:
                assert (await coordinator.expect(PersonalScore)).n == 16
            await coordinator.run_round(2, w(2), privacy=privacy)
            assert len(coordinator.seen[PersonalScore]) == scores

    @pytest.mark.parametrize(("z", "got"), [(None, "0"), (1.5, "1.5")])
    async def test_owner_refuses_too_little_noise(
        self, setup: AgentSetup, z: float | None, got: str
    ) -> None:
        setup.privacy = OwnerPrivacy(min_noise_multiplier=2.0)
        privacy = None if z is None else Privacy(clip=1.0, noise_multiplier=z)
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            (hello,) = coordinator.seen[Hello][:1]
            assert isinstance(hello, Hello)
            assert hello.capabilities.min_noise_multiplier == 2.0
            await coordinator.request_training(1, w(1), privacy=privacy)
            failed = await coordinator.expect(Failed)
            assert failed.reason == (
                "privacy: the owner of this device wants a noise_multiplier of at least 2, got "
                f"{got}; raise privacy.noise_multiplier in the experiment"
            )
            assert not coordinator.chunks
            await coordinator.run_round(2, w(2), privacy=PRIVACY)

    async def test_owner_lets_no_loss_and_no_score_leave(self, setup: AgentSetup) -> None:
        setup.privacy = OwnerPrivacy(min_noise_multiplier=2.0)
        privacy = msgspec.structs.replace(PRIVACY, scores=True)
        async with setup.running() as (_, coordinator):
            await coordinator.join(TASK, SHARD)
            await coordinator.run_round(1, w(1), privacy=privacy, personal=DITTO)
            assert await coordinator.expect(PersonalScore) == PersonalScore(round=1, n=0)
            request = await self._evaluate_request(coordinator)
            await coordinator.send(request)
            failed = await coordinator.expect(Failed)
            assert re.search("which no loss has; select without loss queries", failed.reason)

    async def _evaluate_request(self, coordinator: FakeCoordinator) -> EvaluateRequest:
        data = w(2).tobytes()
        manifest = await coordinator.publish_blob("model", data)
        assert hashlib.sha256(data).digest() == manifest.sha256
        return EvaluateRequest(round=2, model=manifest, seed=1, limit_s=10.0)
