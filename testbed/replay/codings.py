"""What the codecs of a run leave of models and updates on their way, as on a live one."""

from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Ints, Vector
from fairbed.coordinator.fleet.codec_agreement import Agreement, encoded_version
from fairbed.coordinator.policy.config import ExchangeConfig
from fairbed.device_agent.coding import ENCODING
from fairbed.wire.codecs import encode_with_feedback, pack, unpack
from fairbed.wire.errors import EncodeError
from fairbed.wire.tensors import Layout


class Codings:
    """Encodes and decodes at once; keeps what top-k owes to each device's next update.

    Every device knows every codec, as all of this version do.

    Args:
        config: The codecs.
        layout: Of the model.
    """

    def __init__(self, config: ExchangeConfig, layout: Layout) -> None:
        agreement = Agreement(config, layout, "replay")
        self._layout = layout
        self._up, self._down = agreement.up, agreement.down
        self._keeps_owed, self._is_delta = config.up == "top-k", config.down == "delta"
        self._owed: dict[int, Vector] = {}

    def version(self, vector: Vector, old: Vector | None, rng: np.random.Generator) -> Vector:
        """Return what a model, shape (n_values,), is once it has been published.

        Args:
            vector: The model.
            old: The version before; None for the first.
            rng: Rounds.
        """
        if self._down is None or (self._is_delta and old is None):
            return vector
        base = old if self._is_delta else None
        try:
            return encoded_version(self._down, self._layout, vector, base, rng)[1]
        except EncodeError:
            return vector  # the model goes out whole

    def update(self, row: int, seed: int, sent: Vector, trained: Vector) -> Vector:
        """Return the model that the coordinator decodes from an update that it merges.

        Args:
            row: The device.
            seed: Of its training.
            sent: w_t, shape (n_values,).
            trained: w_k after local training, shape (n_values,).

        Raises:
            EncodeError: A change is too large for the codec.
        """
        if self._up is None:
            return trained
        n = self._layout.n_params
        rng = np.random.default_rng(np.random.SeedSequence([seed, ENCODING]))
        with np.errstate(over="ignore"):  # the codec refuses what is not finite
            change = trained[:n] - sent[:n]
        if self._keeps_owed:
            owed = self._owed.get(row)
            payload, self._owed[row] = encode_with_feedback(self._up, change, owed, rng)
        else:
            payload = self._up.encode(change, rng)
        blob = pack(self._up, n, payload, trained[n:])
        return unpack(blob, self._up, self._layout, sent)

    def updates(
        self, rows: Ints, seeds: Ints, sent: Vector, trained: Vector
    ) -> tuple[Vector, Bools]:
        """Return the models of K devices as `update` does, and which of them can be coded.

        Args:
            rows: The devices, shape (K,).
            seeds: Of their training, shape (K,).
            sent: w_t, shape (n_values,).
            trained: After local training, shape (K, n_values); not changed.
        """
        is_coded = np.ones(len(rows), dtype=np.bool_)
        if self._up is None:
            return trained, is_coded
        models = trained.copy()
        for at, (row, seed) in enumerate(zip(rows.tolist(), seeds.tolist(), strict=True)):
            try:
                models[at] = self.update(row, seed, sent, trained[at])
            except EncodeError:
                is_coded[at] = False
        return models, is_coded

    def to_state(self) -> list[Any]:
        """Return what is owed to whom, for the checkpoint."""
        return [[row, owed.tobytes()] for row, owed in sorted(self._owed.items())]

    def load_state(self, state: list[Any]) -> None:
        """Take over a state that `to_state` returned."""
        self._owed = {row: np.frombuffer(owed, dtype=np.float32).copy() for row, owed in state}
