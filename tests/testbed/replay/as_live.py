"""One small fleet, live with real agents in real time, and replayed on the virtual clock."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np

from fairbed.coordinator.algorithms.arrays import Ints, Vector
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.policy.decisions import Decisions, make_decisions
from fairbed.coordinator.store.schema import Columns
from fairbed.coordinator.store.tables import ExchangeRow, LossQueryRow, RoundRow
from fairbed.device_agent.privacy import SeededNoise
from fairbed.testbed.emulation.malicious import Attack, MaliciousDevice
from fairbed.testbed.replay.cohort.devices import DeviceTrainer
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.testbed.replay.device_vectors import LocalValues, optimiser_states
from fairbed.testbed.replay.engine.engine import ReplayEngine
from fairbed.testbed.replay.engine.rows import exchange_rows, release_rows, round_row
from fairbed.testbed.replay.learning import BatchLosses, Learning
from fairbed.testbed.replay.world.linear import LinearLaw, LinearWorld
from fairbed.wire.artifact import Artifact, initial_vector
from fairbed.wire.evaluation import Targets
from fairbed.wire.tensors import vector_to_bytes
from tests.coordinator import lab as live
from tests.coordinator.lab import ARTIFACT, EXAMPLES, NAMES, Lab, NormEvaluator
from tests.coordinator.stragglers import SlowTraining

Attacks: TypeAlias = Mapping[int, Attack]
NO_ATTACKS: Attacks = {}


class Story:
    """Rounds and exchanges of a run, and the model after each round."""

    def __init__(
        self,
        rounds: Sequence[RoundRow],
        exchanges: Sequence[ExchangeRow],
        releases: Mapping[str, int],
    ) -> None:
        self.releases = releases
        """Updates with local noise that left each device."""
        self.rounds = [
            (
                r.round,
                r.status,
                r.selected,
                r.aggregated,
                r.aggregated_late,
                r.dropped_late,
                r.rounds_empty,
            )
            for r in rounds
        ]
        self.exchanges = sorted(
            (x.round, x.device, x.outcome, x.reason, x.staleness or 0, x.aggregated_round or 0)
            for x in exchanges
        )
        self.models = [r.model_sha256 for r in rounds]


class QueryStory:
    """Loss queries and cohorts of a run, and the model after each round."""

    def __init__(
        self,
        queries: Sequence[LossQueryRow],
        chosen: Iterable[tuple[int, str]],
        models: Sequence[str],
    ) -> None:
        self.losses = {
            (query.round, query.device): (query.outcome, query.loss) for query in queries
        }
        self.chosen = sorted(chosen)
        """Round and device."""
        self.models = list(models)


def names_and_shards(artifact: Artifact = ARTIFACT) -> live.Shards:
    """Return the data of the fleet, which depends on the order of its names."""
    shards = live.Shards(width=artifact.spec.x_shape[0])
    for name in NAMES:
        shards.shard(name)
    return shards


async def run_live(
    folder: Path,
    config: CoordinatorConfig,
    train_s: Sequence[float],
    attacks: Attacks = NO_ATTACKS,
    artifact: Artifact = ARTIFACT,
) -> Lab:
    """Run an experiment with agents that train for `train_s`; some may be malicious, by row."""
    async with live.lab(folder, agents=0, artifact=artifact) as place:
        place.device_names = NAMES
        place.shards = names_and_shards(artifact)
        for row, (name, seconds) in enumerate(zip(NAMES, train_s, strict=True)):
            host = replace(SlowTraining(seconds).host(), noise=SeededNoise())
            if row in attacks:
                host = replace(host, behaviour=MaliciousDevice(attacks[row]))
            place.start_agent(name, host=host)
        assert await place.run(config) == "done"
    return place


class _Whole:
    """The same data, by row."""

    def __init__(self, artifact: Artifact) -> None:
        self._shards = names_and_shards(artifact)

    def whole(self, device: int) -> tuple[Vector | Ints, Targets]:
        shard = self._shards.shard(NAMES[device])
        assert shard is not None
        return shard.arrays()


def a_learning(
    decisions: Decisions,
    folder: Path,
    attacks: Attacks = NO_ATTACKS,
    artifact: Artifact = ARTIFACT,
) -> Learning:
    """Return the model of the fleet, trained by the devices' own engine."""
    shards = cast(Shards, _Whole(artifact))
    trainer, batches = DeviceTrainer(artifact, shards), BatchLosses(artifact, shards)
    vector = initial_vector(artifact.spec, decisions.config.seed_init)
    layout = artifact.spec.layout
    local = LocalValues(layout, vector) if layout.local.size else None
    folder.mkdir(parents=True, exist_ok=True)
    return Learning(
        decisions,
        trainer,
        NormEvaluator(),
        vector,
        folder,
        batches,
        attacks,
        local=local,
        states=optimiser_states(decisions.config.training, layout),
    )


def a_world(train_s: Sequence[float]) -> LinearWorld:
    """Return devices whose training takes `train_s`, and whose other phases take no time."""
    laws = [
        LinearLaw(
            theta=(seconds, 0.0, 0.0),
            mu=(1.0, 1.0),
            bandwidth_bps=(1e9, 1e9),
            availability=1.0,
            noise=0.0,
        )
        for seconds in train_s
    ]
    return LinearWorld(laws, 1.0, 0, np.full(len(laws), EXAMPLES, dtype=np.int64))


def replay_story(
    folder: Path,
    config: CoordinatorConfig,
    train_s: Sequence[float],
    attacks: Attacks = NO_ATTACKS,
    artifact: Artifact = ARTIFACT,
) -> Story:
    """Replay rounds whose exchanges may outlive them."""
    decisions = make_decisions(config)
    learning = a_learning(decisions, folder, attacks, artifact)
    rounds, exchanges, models = [], dict[tuple[int, str], ExchangeRow](), []
    released = dict[tuple[int, str], bool]()
    engine = ReplayEngine(
        decisions, a_world(train_s), cohort=learning, attacks=attacks, explains=True
    )
    for one_round in engine.replay(config.rounds):
        rounds.append(round_row(one_round, decisions, NAMES))
        exchanges |= {(x.round, x.device): x for x in _records(exchange_rows(one_round, NAMES))}
        models.append(hash_of(learning.vector))
        released |= {(x.round, x.device): x.is_released for x in release_rows(one_round, NAMES)}
    releases = Counter({name: 0 for name in NAMES})
    releases.update(device for (_, device), was in released.items() if was)
    story = Story(rounds, list(exchanges.values()), releases)
    story.models = models
    return story


def replay_query_story(
    folder: Path,
    config: CoordinatorConfig,
    train_s: Sequence[float],
    attacks: Attacks = NO_ATTACKS,
    artifact: Artifact = ARTIFACT,
) -> QueryStory:
    """Replay synchronous rounds with a loss query before each selection."""
    decisions = make_decisions(config)
    learning = a_learning(decisions, folder, attacks, artifact)
    world = a_world(train_s)
    queries, chosen, models = list[LossQueryRow](), list[tuple[int, str]](), []
    for one_round in ReplayEngine(decisions, world, cohort=learning).replay(config.rounds):
        assert one_round.queried is not None
        queries += one_round.queried.rows(NAMES)
        chosen += [(one_round.choice.round, NAMES[row]) for row in one_round.choice.rows.tolist()]
        models.append(hash_of(learning.vector))
    return QueryStory(queries, chosen, models)


def _records(columns: Columns[ExchangeRow]) -> list[ExchangeRow]:
    """Return the rows of columns one by one."""
    cells = {
        name: cells if isinstance(cells, list | np.ndarray) else [cells] * len(columns)
        for name, cells in columns.cells.items()
    }
    rows = zip(*cells.values(), strict=True)
    return [ExchangeRow(**dict(zip(cells, row, strict=True))) for row in rows]


def hash_of(vector: Vector) -> str:
    """Return the hash by which a coordinator announces a model."""
    return hashlib.sha256(vector_to_bytes(vector)).hexdigest()
