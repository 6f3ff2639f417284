"""Runs with a local rule: real agents train by it, its vectors travel with model and update."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from fairbed.coordinator.policy.config import (
    AggregationConfig,
    CoordinatorConfig,
    ExchangeConfig,
    RoundConfig,
    SelectionConfig,
    TrainingConfig,
)
from fairbed.device_agent import agent
from fairbed.device_agent.stored_vector import KEPT, file_of
from fairbed.wire.messages import Capabilities
from fairbed.wire.plugins import PluginError
from fairbed.wire.tensors import BYTES_PER_VALUE
from tests.coordinator.lab import ARTIFACT, NAMES, PATIENT, WHOLE_FLEET, Lab, lab, make_config
from tests.local_rules import DRIFT, HERE

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

LAYOUT = ARTIFACT.spec.layout
EQUAL = AggregationConfig(weights="equal")


def with_rule(
    rule: str = DRIFT, rounds: int = 3, rate: float = 0.05, **sections: object
) -> CoordinatorConfig:
    training = TrainingConfig(rule=rule, learning_rate=rate)
    sections = {"selection": WHOLE_FLEET, "round": PATIENT, "aggregation": EQUAL} | sections
    return make_config(rounds, len(NAMES), training=training, **sections)


def prepared(place: Lab) -> Lab:
    """Give each device a shard that does not depend on who joins first."""
    place.shards.given, place.device_names = list(NAMES), NAMES
    return place


def sent_vectors(place: Lab) -> NDArray[np.float32]:
    """Return the vectors that the coordinator sends next, from the checkpoint."""
    store = place.open_store()
    checkpoint = store.last_checkpoint()
    store.close()
    assert checkpoint is not None
    state = msgspec.msgpack.decode(checkpoint.state)["decisions"]["local"]["sent"]
    return np.frombuffer(state, dtype=np.float32)


def kept_vectors(place: Lab, name: str) -> NDArray[np.float32]:
    """Return the vectors that a device keeps, before its last round and after it."""
    content = (place.folder / f"{name}-state" / file_of(KEPT)).read_bytes()
    values = content[-2 * LAYOUT.n_params * BYTES_PER_VALUE :]
    return np.frombuffer(values, dtype=np.float32).reshape(2, -1)


async def test_vectors_travel_and_the_coordinator_holds_the_mean_of_the_kept_ones(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, local_rules=(DRIFT,)) as place:
        assert await prepared(place).run(with_rule()) == "done"
    with place.reader() as reader:
        sizes = {(x.bytes_down, x.bytes_up) for x in reader.exchanges()}
        final = reader.final_model()
    travelling = BYTES_PER_VALUE * (LAYOUT.n_values + LAYOUT.n_params)
    assert sizes == {(travelling, travelling)}
    assert final is not None
    assert final[1].size == LAYOUT.n_values, "the stored model has no vectors"
    kept = np.array([kept_vectors(place, name)[1] for name in NAMES])
    mean = kept.mean(axis=0, dtype=np.float64)
    assert np.abs(mean).max() > 1e-3
    np.testing.assert_allclose(sent_vectors(place), mean, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(
    ("up", "down"), [("float16", "float16"), ("int8", "delta"), ("top-k", "float32")]
)
async def test_codecs_encode_the_parameters_alone(up: str, down: str, tmp_path: Path) -> None:
    async with lab(tmp_path, local_rules=(DRIFT,)) as place:
        exchange = msgspec.convert({"up": up, "down": down}, ExchangeConfig)
        assert await prepared(place).run(with_rule(exchange=exchange)) == "done"
    with place.reader() as reader:
        assert {x.outcome for x in reader.exchanges()} == {"done"}
    kept = np.array([kept_vectors(place, name)[1] for name in NAMES])
    np.testing.assert_allclose(sent_vectors(place), kept.mean(axis=0), rtol=0.0, atol=1e-6)


async def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path: Path) -> None:
    config = with_rule(rounds=5)
    async with lab(tmp_path / "whole", local_rules=(DRIFT,)) as whole:
        assert await prepared(whole).run(config) == "done"
    async with lab(tmp_path / "parts", local_rules=(DRIFT,)) as parts:
        store = prepared(parts).open_store()
        first = parts.coordinator(config, store)
        parts.on_progress = lambda p: first.stop() if p.round.round == 2 else None
        assert await first.run() == "stopped"
        store.close()
        for name in NAMES:
            parts.kill_agent(name)
            parts.start_agent(name)
        parts.on_progress = lambda p: None
        assert await parts.run(config) == "done"
    assert sent_vectors(parts).tobytes() == sent_vectors(whole).tobytes()
    for name in NAMES:
        assert kept_vectors(parts, name).tobytes() == kept_vectors(whole, name).tobytes()


async def test_the_coordinator_half_moves_the_model_and_keeps_its_state(tmp_path: Path) -> None:
    rule = f"{HERE}:Momentum"
    config = with_rule(rule, rounds=4, rate=1.0)  # no rounding by the rate, in steps of either kind
    models = []
    for at in (None, 2):
        async with lab(tmp_path / f"{at}", local_rules=(rule,)) as place:
            store = prepared(place).open_store()
            first = place.coordinator(config, store)
            place.on_progress = lambda p, at=at, one=first: (  # type: ignore[misc]
                one.stop() if p.round.round == at else None
            )
            assert await first.run() == ("done" if at is None else "stopped")
            store.close()
            place.on_progress = lambda p: None
            if at is not None:
                assert await place.run(config) == "done"
        with place.reader() as reader:
            models.append([row.model_sha256 for row in reader.rounds()])
    assert models[0] == models[1]
    async with lab(tmp_path / "sgd") as place:
        assert await prepared(place).run(with_rule("sgd", rounds=4, rate=1.0)) == "done"
    with place.reader() as reader:
        plain = [row.model_sha256 for row in reader.rounds()]
    assert plain[0] == models[0][0]
    assert plain[1] != models[0][1]


async def test_a_device_without_the_rule_is_never_selected(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=0) as place:
        prepared(place).start_agent("pi-0")
        place.local_rules = (DRIFT,)
        place.start_agent("pi-1")
        place.start_agent("pi-2")
        config = with_rule(
            selection=SelectionConfig(policy="uniform", per_round=3),
            round=RoundConfig(min_devices=2, deadline_s=30.0, join_timeout_s=30.0),
        )
        assert await place.run(config) == "done"
    with place.reader() as reader:
        assert {x.device for x in reader.exchanges()} == {"pi-1", "pi-2"}
        (event,) = [e for _, e in reader.events() if e.kind == "skill"]
    assert event.device == "pi-0"
    assert event.text == (
        f"its agent has no local rule {DRIFT}, which the run needs, so it is never selected; "
        f"start its agent with --local-training {DRIFT}"
    )


@pytest.mark.parametrize("lacking", ["optimisers", "augment"])
async def test_an_agent_that_would_train_plain_sgd_is_never_selected(
    tmp_path: Path, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older agent, which names other skills."""
    training = (
        TrainingConfig(optimiser="adam")
        if lacking == "optimisers"
        else TrainingConfig(augment=({"kind": "noise"},))
    )
    made, real = list[Capabilities](), agent.capabilities

    def older_first(*arguments: Any, **options: Any) -> Capabilities:
        found = real(*arguments, **options)
        skills = found.skills if made else tuple(s for s in found.skills if s != lacking)
        made.append(msgspec.structs.replace(found, skills=skills))
        return made[-1]

    monkeypatch.setattr(agent, "capabilities", older_first)
    async with lab(tmp_path, agents=0) as place:
        prepared(place).start_agent("pi-0")
        place.start_agent("pi-1")
        place.start_agent("pi-2")
        config = make_config(
            2,
            training=training,
            selection=SelectionConfig(policy="uniform", per_round=3),
            round=RoundConfig(min_devices=2, deadline_s=30.0, join_timeout_s=30.0),
        )
        assert await place.run(config) == "done"
    with place.reader() as reader:
        assert {x.device for x in reader.exchanges()} == {"pi-1", "pi-2"}
        (event,) = [e for _, e in reader.events() if e.kind == "skill"]
    assert event.device == "pi-0"
    assert event.text == (
        f"its agent does not know {lacking} of [training], which the run uses, so it is never "
        "selected; update its agent"
    )


async def test_a_fault_at_the_coordinator_ends_the_run_at_its_last_closed_round(
    tmp_path: Path,
) -> None:
    rule = f"{HERE}:WrongMerge"
    async with lab(tmp_path, local_rules=(rule,)) as place:
        with pytest.raises(PluginError) as caught:
            await prepared(place).run(with_rule(rule))
    assert str(caught.value) == (
        f"local rule {rule}: merge(): c must be float32 of shape (610,), got float64 of shape "
        f"(610,); run fairbed doctor --local-training {rule} to check it"
    )
    with place.reader() as reader:
        assert reader.rounds() == []
