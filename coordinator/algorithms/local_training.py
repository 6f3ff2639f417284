"""The coordinator's half of a local rule: vectors to devices, and what their vectors do after.

The vectors that devices return are merged as buffers of the model: with the weights of the updates,
and so that the order of arrival changes no bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Accumulator, Merge, Report, Stack
from fairbed.coordinator.algorithms.arrays import Ints, Vector
from fairbed.coordinator.algorithms.plugin import Guard
from fairbed.wire.local_training import (
    NOUN,
    UNDECLARED,
    Extra,
    Merged,
    defined_for,
    vector_names,
)
from fairbed.wire.plugins import described


class ServerHalf(Guard):
    """The coordinator's half of a local rule, checked on every call.

    Args:
        name: Its name in the experiment.
        plugin: The rule.

    Raises:
        PluginError: It lacks a member, or a declaration is not made of known names.
    """

    noun: ClassVar[str] = NOUN
    doctor: ClassVar[str] = "--local-training"
    page: ClassVar[str] = "own-local-training.md"
    verbs: ClassVar[tuple[str, ...]] = ("gradient", "end", "merge")

    def __init__(self, name: str, plugin: Any) -> None:
        self.sent = vector_names(name, plugin, "sent")
        self.kept = vector_names(name, plugin, "kept")
        self.returned = vector_names(name, plugin, "returned")
        declared = defined_for(name, plugin)
        self.is_declared = declared is not None
        """The rule states the settings that it is defined for."""
        self.defined_for: tuple[Extra, ...] = UNDECLARED if declared is None else declared
        """Settings beyond plain SGD and FedAvg for which its formulas hold."""
        self._vectors: Vector | None = None
        super().__init__(name, plugin)

    def vectors(self, n_params: int) -> Vector:
        """Return the vectors to send, one after the other, shape (len(sent) * n_params,)."""
        if self._vectors is None:
            self._vectors = np.zeros(len(self.sent) * n_params, dtype=np.float32)
        return self._vectors

    def padded(self, sent: Vector, n_params: int) -> Vector:
        """Return a model, shape (n_values,), followed by zeros in place of returned vectors."""
        return np.concatenate([sent, np.zeros(len(self.returned) * n_params, dtype=np.float32)])

    def finish(
        self, merge: Merge, sent: Vector, n_params: int, n_devices: int, learning_rate: float
    ) -> Merge:
        """Return a merge whose model the rule may have changed, without the returned vectors.

        Args:
            merge: The merge of updates that the returned vectors follow.
            sent: The model that was sent, shape (n_values,).
            n_params: Number of its parameters.
            n_devices: Devices that have joined, selected or not.
            learning_rate: Step size of local training.

        Raises:
            PluginError: The rule breaks its contract.
        """
        n_values, after = sent.size, merge.vector
        model = after[:n_values].copy()
        n_merged = int(np.count_nonzero(merge.weights))
        if n_merged == 0:
            return replace(merge, vector=model)
        now = _named(self.sent, self.vectors(n_params))
        merged = Merged(
            params=model[:n_params],
            before=_read_only(sent[:n_params]),
            sent={name: _read_only(vector) for name, vector in now.items()},
            returned=_named(self.returned, after[n_values:]),
            n_merged=n_merged,
            n_devices=max(n_devices, n_merged),
            learning_rate=learning_rate,
        )
        got: object = self.call("merge()", lambda: self.plugin.merge(merged))
        if not isinstance(got, Mapping) or not set(got) <= set(self.sent):
            names = sorted(map(str, got)) if isinstance(got, Mapping) else described(got)
            wanted = ", ".join(self.sent) or "{}"
            self.fail("merge()", f"must return a dict of vectors to send ({wanted}), got {names}")
        for name, vector in got.items():
            self._check(f"merge(): {name}", vector, n_params)
        model[:n_params] = self._check("merge(): params", merged.params, n_params)
        if self.sent:
            self._vectors = np.concatenate([got.get(name, now[name]) for name in self.sent])
        return replace(merge, vector=model)

    def to_state(self) -> dict[str, Any]:
        """Return the state of the rule and the vectors to send, for the checkpoint."""
        sent = None if self._vectors is None else self._vectors.tobytes()
        return {"rule": super().to_state(), "sent": sent}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        super().load_state(state["rule"])
        sent = state["sent"]
        self._vectors = None if sent is None else np.frombuffer(sent, dtype=np.float32).copy()

    def _check(self, where: str, vector: object, n_params: int) -> Vector:
        """Return a vector of the rule that keeps the contract.

        Raises:
            PluginError: It is not float32 of shape (n_params,), or not finite.
        """
        is_float32 = isinstance(vector, np.ndarray) and vector.dtype == np.float32
        if not (is_float32 and isinstance(vector, np.ndarray) and vector.shape == (n_params,)):
            self.fail(where, f"must be float32 of shape ({n_params},), got {described(vector)}")
        if not np.isfinite(vector).all():
            self.fail(where, "must be finite, got a value that is not; lower learning_rate")
        return vector


class LocalMerge:
    """The merge of a round whose updates are followed by vectors of the local rule.

    Args:
        merge: Takes these updates; it began with `ServerHalf.padded`.
        finish: Returns the next model from the result; see `ServerHalf.finish`.
    """

    def __init__(self, merge: Accumulator, finish: Callable[[Merge], Merge]) -> None:
        self._merge, self._finish = merge, finish

    def add(self, report: Report) -> None:
        """Add an update, as the accumulator does."""
        self._merge.add(report)

    def add_all(self, stack: Stack) -> None:
        """Add updates, as the accumulator does."""
        self._merge.add_all(stack)

    def finish(self) -> Merge:
        """Return the next model, after the rule.

        Raises:
            PluginError: The rule breaks its contract.
        """
        return self._finish(self._merge.finish())


class MergeOfOthers:
    """The merge of a round in which devices keep some values of the model for themselves.

    An update has the values of the model that was sent there, whatever arrives, so that no rule
    counts a change of them; the next model has them, too.

    Args:
        merge: Takes the updates.
        sent: The model that devices train, shape (n_values,).
        local: Places of the values that devices keep, shape (n,).
    """

    def __init__(self, merge: Accumulator, sent: Vector, local: Ints) -> None:
        self._merge, self._local, self._values = merge, local, sent[local].copy()

    def add(self, report: Report) -> None:
        """Add an update, as the accumulator does."""
        self._merge.add(replace(report, model=self._without(report.model)))

    def add_all(self, stack: Stack) -> None:
        """Add updates, as the accumulator does."""
        self._merge.add_all(replace(stack, models=self._without(stack.models)))

    def finish(self) -> Merge:
        """Return the next model.

        Raises:
            PluginError: The rule breaks its contract.
        """
        merge = self._merge.finish()
        return replace(merge, vector=self._without(merge.vector))

    def _without(self, models: Vector) -> Vector:
        others: Vector = models.copy()
        others[..., self._local] = self._values
        return others


def _named(names: tuple[str, ...], vectors: Vector) -> dict[str, Vector]:
    """Return each of some vectors that follow each other, by name, as a view."""
    size = vectors.size // max(len(names), 1)
    return {name: vectors[i * size : (i + 1) * size] for i, name in enumerate(names)}


def _read_only(vector: Vector) -> Vector:
    view: Vector = vector.view()
    view.flags.writeable = False
    return view
