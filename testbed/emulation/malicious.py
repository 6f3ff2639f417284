"""Malicious devices: what they train on, send and report.

    label-poisoning      trains on poisoned labels                        A1 of the source
    random-update        sends N(0, sd^2) per entry, sd of its own D      A2
    model-replacement    sends m D                                        A3
    free-rider           sends 0
    replayed-update      sends the D of its first round again
    nan                  sends NaN
    lying-loss           is honest, but reports a false loss
    lying-context        is honest, but claims other resources

D = w_k - w_t is the device's own update. The first three train on poisoned labels, as the source's
code does. One implementation serves emulated devices (`device_agent.host.Behaviour`) and replays.

Source: Li et al., Ditto, ICML 2021 (arXiv:2012.04221), Definition 1, and its code
(litian96/ditto). The other kinds are Fairbed's.
"""

from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from fairbed.wire.messages import Context, EvaluateReply, FromDevice, Offer

AttackKind: TypeAlias = Literal[
    "label-poisoning",
    "random-update",
    "model-replacement",
    "free-rider",
    "replayed-update",
    "nan",
    "lying-loss",
    "lying-context",
]

Vector: TypeAlias = NDArray[np.float32]

POISONS_LABELS = ("label-poisoning", "random-update", "model-replacement")
"""Kinds that train on poisoned labels."""

NOISE = 2
"""Key of the random stream of `random-update`; the seed without a key orders the mini-batches, with
the key 1 it rounds encoded updates (`device_agent.coding.ENCODING`)."""

MAX_CORES = 4096.0
"""Most free cores that a context may claim (`wire.messages.Context`)."""


class Attack(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The behaviour of one malicious device."""

    kind: AttackKind
    scale: float = 1.0
    """m of `model-replacement`."""
    loss: float = 0.0
    """The loss that `lying-loss` reports, nats."""
    speed: float = 1.0
    """`lying-context` claims this many times its free cores and link rates."""
    claims_cold: bool = False
    """`lying-context` claims that session and data were never in memory."""
    honest_exchanges: int = 0
    """Exchanges in which `lying-context` trains before it begins to lie."""

    @property
    def poisons_labels(self) -> bool:
        """Whether the device trains on poisoned labels."""
        return self.kind in POISONS_LABELS

    @property
    def needs_training(self) -> bool:
        """Whether the attack has an effect only where models are trained."""
        return self.kind != "lying-context"


def poison_labels(
    y: NDArray[np.int64], classes: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return poisoned labels: flipped if there are two classes, else uniform over all classes.

    Args:
        y: True labels, 0 .. classes - 1, shape (n, *y_shape); -1 is no label and stays so. Not
            changed.
        classes: Number of classes.
        rng: Draws the labels; a drawn label may be the true one.
    """
    if classes == 2:
        return np.where(y < 0, y, 1 - y)
    return np.where(y < 0, y, rng.integers(classes, size=y.shape, dtype=np.int64))


class MaliciousDevice:
    """The behaviour of a malicious device; satisfies `device_agent.host.Behaviour`."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack
        self._first: Vector | None = None
        """The first update of `replayed-update`, shape (n_params,)."""
        self._exchanges = 0
        """Exchanges in which the device has trained."""

    def update(self, sent: Vector, trained: Vector, n_params: int, seed: int) -> Vector:
        """Return the model that the device sends, shape (n_values,).

            random-update        w_t + e,   e ~ N(0, sd^2) per entry, sd = std of the entries of D
            model-replacement    w_t + m D
            free-rider           w_t
            replayed-update      w_t + D of the first round
            nan                  NaN

        All but `nan` and `free-rider` leave the buffers as trained.

        Args:
            sent: w_t, shape (n_values,), `[params | buffers]`; not changed.
            trained: w_k after local training, shape (n_values,); not changed.
            n_params: Number of parameters; the other values are buffers.
            seed: Seed of the device's training in this round.
        """
        kind = self.attack.kind
        self._exchanges += 1
        if kind == "free-rider":
            return sent
        if kind == "nan":
            return np.full(len(trained), np.nan, dtype=np.float32)
        if kind not in ("random-update", "model-replacement", "replayed-update"):
            return trained
        start = sent[:n_params].astype(np.float64)
        change = trained[:n_params] - start
        if kind == "random-update":
            rng = np.random.default_rng(np.random.SeedSequence([seed, NOISE]))
            change = rng.normal(0.0, float(change.std()), n_params)
        elif kind == "model-replacement":
            change *= self.attack.scale
        else:
            if self._first is None:
                self._first = change.astype(np.float32)
            change = self._first.astype(np.float64)
        result: Vector = trained.copy()
        with np.errstate(over="ignore"):  # the coordinator refuses values that are not finite
            result[:n_params] = start + change
        return result

    def loss(self, loss: float) -> float:
        """Return the loss that the device reports, nats, instead of the loss that it found."""
        return self.attack.loss if self.attack.kind == "lying-loss" else loss

    def message(self, message: FromDevice) -> FromDevice:
        """Return the message that the device sends instead of an honest one."""
        match message:
            case Offer() if self.attack.kind == "lying-loss":
                return structs.replace(
                    message,
                    loss_before=self._loss_or_none(message.loss_before),
                    loss_train=self._loss_or_none(message.loss_train),
                )
            case EvaluateReply() if self.attack.kind == "lying-loss":
                return structs.replace(message, loss=self.loss(message.loss))
            case Offer() if self._lies_about_context:
                return structs.replace(
                    message,
                    was_cold=message.was_cold or self.attack.claims_cold,
                    downlink_bps=self._times_speed(message.downlink_bps),
                )
            case EvaluateReply() if self._lies_about_context:
                return structs.replace(
                    message, was_cold=message.was_cold or self.attack.claims_cold
                )
            case Context() if self._lies_about_context:
                return self._claimed(message)
            case _:
                return message

    @property
    def _lies_about_context(self) -> bool:
        is_liar = self.attack.kind == "lying-context"
        return is_liar and self._exchanges >= self.attack.honest_exchanges

    def _claimed(self, context: Context) -> Context:
        free_cores = self._times_speed(context.free_cores)
        return structs.replace(
            context,
            mu_cores=min(context.mu_cores * self.attack.speed, MAX_CORES),
            free_cores=None if free_cores is None else min(free_cores, MAX_CORES),
            downlink_bps=self._times_speed(context.downlink_bps),
            uplink_bps=self._times_speed(context.uplink_bps),
            is_warm=context.is_warm and not self.attack.claims_cold,
        )

    def _loss_or_none(self, loss: float | None) -> float | None:
        return None if loss is None else self.loss(loss)

    def _times_speed(self, value: float | None) -> float | None:
        return None if value is None else value * self.attack.speed

    def to_state(self) -> Any:
        """Return the state for a checkpoint: the first update as bytes, or None."""
        return None if self._first is None else self._first.tobytes()

    def load_state(self, state: Any) -> None:
        """Restore a state that `to_state` returned."""
        self._first = None if state is None else np.frombuffer(state, dtype=np.float32).copy()
