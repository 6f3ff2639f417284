"""Local rules on a device: the built-in ones, and the guard of every other one.

A rule changes the gradient of each mini-batch before the step of `trainer.Descent`. FedProx and the
personal models of Ditto are `Proximal`; PropFair is `PropFair`; plug-ins are `wire.local_training`.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent.host import Meter
from fairbed.device_agent.installed import known_rules
from fairbed.device_agent.stored_vector import KEPT, StoredVector, VectorStore
from fairbed.wire.local_training import NOUN, LocalRule, Step, Trained, vector_names
from fairbed.wire.messages import LOCAL_RULES_GROUP, LocalTraining, Train
from fairbed.wire.plugins import PluginError, described, factory_of, is_path, users_code
from fairbed.wire.tensors import Layout

Vector = NDArray[np.float32]
T = TypeVar("T")
Number = TypeVar("Number", bound=np.generic)


class GradientRule(Protocol):
    """Changes the gradient of a mini-batch in place; all that `trainer.Descent` needs of a rule."""

    def gradient(self, step: Step) -> None:
        """Change `step.gradient`."""
        ...


class Proximal:
    """Pulls parameters towards the model that was sent.

        g = grad F(w) + mu (w - w_t)

    Args:
        mu: FedProx mu, or lambda of a personal model (Ditto).

    Source:
        Li et al., MLSys 2020, Algorithm 2 (arXiv:1812.06127); Li et al., ICML 2021, Algorithm 1
        (arXiv:2012.04221).
    """

    def __init__(self, mu: float) -> None:
        self._mu = np.float32(mu)

    def gradient(self, step: Step) -> None:
        """Add the gradient of the proximal term."""
        step.gradient += self._mu * (step.params - step.anchor)


PROPFAIR_MARGIN = 0.2
"""A mini-batch whose loss is nearer to the bound than this, nats, counts as l / M."""


class PropFair:
    """Proportional fairness in local training: the loss l of a mini-batch becomes -log(1 - l/M).

        g = grad l / (M - l)   if M - l >= 0.2,   else grad l / M

    Args:
        base: M, above every usual loss, nats.

    Raises:
        ValueError: M is not above the margin.

    Source:
        Zhang et al., TMLR 2023, Algorithm 1 (arXiv:2202.01666), with the guard of its
        implementation.
    """

    sent: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    def __init__(self, base: float) -> None:
        if not PROPFAIR_MARGIN < base <= 1e6:
            raise ValueError(f"base must be above {PROPFAIR_MARGIN} and at most 1e6, got {base}")
        self._base = base

    def gradient(self, step: Step) -> None:
        """Scale the gradient."""
        left = self._base - step.loss
        factor = 1.0 / np.where(left >= PROPFAIR_MARGIN, left, self._base)
        step.gradient *= factor.astype(np.float32)[..., np.newaxis]

    def end(self, trained: Trained) -> Mapping[str, Vector]:
        """Return no vector."""
        return {}


BUILT_IN: Final[Mapping[str, Callable[..., Any]]] = {"propfair": PropFair}
"""Local rules that every device has, by name (`wire.messages.LOCAL_RULES`)."""


def make_rule(name: str, options: Mapping[str, Any]) -> "GuardedRule":
    """Return a local rule, checked on every call.

    Raises:
        PluginError: It is unknown, cannot be imported, or does not take the options.
    """
    choices = f"one of {', '.join(known_rules(()))} or package.module:Name"
    make = BUILT_IN.get(name) or factory_of(NOUN, LOCAL_RULES_GROUP, name, choices)

    def broken(problem: str) -> PluginError:
        return PluginError(
            f"{NOUN} {name}: must be made from the options {dict(options)}, got {problem}; "
            "correct training.rule_options"
        )

    with users_code(broken):
        rule = make(**options)
    return GuardedRule(name, rule)


def allowed_rule(name: str, options: Mapping[str, Any], allowed: Collection[str]) -> "GuardedRule":
    """Return a local rule that a coordinator asks for; a path only if the owner allows it.

    Raises:
        PluginError: It is not allowed, unknown, cannot be imported, or does not take the options.
    """
    if is_path(name) and name not in allowed:
        raise PluginError(
            f"{NOUN} {name}: must be allowed by this device, got a path that is not; start the "
            f"agent with --local-training {name}"
        )
    return make_rule(name, options)


class GuardedRule:
    """A local rule whose results are checked.

    Args:
        name: Its name in the experiment.
        rule: The rule.

    Raises:
        PluginError: It lacks a member, or its vectors are not named properly.
    """

    def __init__(self, name: str, rule: LocalRule) -> None:
        self.name, self._rule = name, rule
        missing = [verb for verb in ("gradient", "end") if not callable(getattr(rule, verb, None))]
        if missing:
            self._fail(", ".join(f"{verb}()" for verb in missing), "must exist, got none")
        self.sent = vector_names(name, rule, "sent")
        self.kept = vector_names(name, rule, "kept")
        self.returned = vector_names(name, rule, "returned")
        names = [*self.sent, *self.kept, *self.returned]
        if len(set(names)) < len(names):
            self._fail("sent, kept and returned", f"must have distinct names, got {names}")

    def gradient(self, step: Step) -> None:
        """Change the gradient of a mini-batch; all other arrays become read-only.

        Raises:
            PluginError: The rule raised, or replaced the gradient by something else.
        """
        shape = step.gradient.shape
        step.params, step.anchor = _read_only(step.params), _read_only(step.anchor)
        step.loss, step.buffers = _read_only(step.loss), _read_only(step.buffers)
        step.vectors = {name: _read_only(vector) for name, vector in step.vectors.items()}
        self._call("gradient()", lambda: self._rule.gradient(step))
        got = step.gradient
        if not isinstance(got, np.ndarray) or got.shape != shape or got.dtype != np.float32:
            self._fail("gradient()", f"must leave float32 of shape {shape}, got {described(got)}")

    def end(self, trained: Trained) -> tuple[dict[str, Vector], dict[str, Vector]]:
        """Return the vectors kept and returned after a round, each of shape (..., n_params).

        A vector that is kept and did not change is the one before the round.

        Raises:
            PluginError: The rule raised; a vector is missing, unknown, of another shape or dtype,
                or not finite although the model is.
        """
        shape = trained.params.shape
        trained.params, trained.anchor = _read_only(trained.params), _read_only(trained.anchor)
        trained.vectors = {name: _read_only(vector) for name, vector in trained.vectors.items()}
        got = self._call("end()", lambda: self._rule.end(trained))
        if not isinstance(got, Mapping):
            self._fail("end()", f"must return a dict of vectors, got {described(got)}")
        unknown = sorted(set(got) - {*self.kept, *self.returned})
        lacking = sorted(set(self.returned) - set(got))
        if unknown or lacking:
            self._fail(
                "end()",
                f"must return {', '.join(self.returned) or 'none'}, may return "
                f"{', '.join(self.kept) or 'none'}, and no other, "
                f"got {', '.join(map(repr, sorted(map(str, got)))) or 'none'}",
            )
        for name, vector in got.items():
            is_array = isinstance(vector, np.ndarray) and vector.dtype == np.float32
            if not is_array or vector.shape != shape:
                what = f"must return float32 of shape {shape}, got {described(vector)}"
                self._fail(f"end(): {name}", what)
            is_wrong = ~np.isfinite(vector).all(-1) & np.isfinite(trained.params).all(-1)
            if is_wrong.any():
                self._fail(f"end(): {name}", "must be finite, got a value that is not")
        kept = {name: got.get(name, trained.vectors[name]) for name in self.kept}
        return kept, {name: got[name] for name in self.returned}

    def _call(self, where: str, verb: Callable[[], T]) -> T:
        with users_code(lambda got: self._error(where, f"must not raise, got {got}")):
            return verb()

    def _fail(self, where: str, what: str) -> NoReturn:
        raise self._error(where, what)

    def _error(self, where: str, what: str) -> PluginError:
        return PluginError(
            f"{NOUN} {self.name}: {where} {what}; run fairbed doctor --local-training {self.name} "
            "to check it",
            f"{where} {what}",
        )


class LocalRules:
    """The local rules of a device: the one of a round, and the vectors that it keeps.

    Args:
        allowed: Paths of rules that the owner of this device allows.
        state: Folder of the kept vectors.
    """

    def __init__(self, allowed: Collection[str], state: Path) -> None:
        self._allowed, self._kept = allowed, VectorStore(state, KEPT)
        self._made: tuple[LocalTraining, GuardedRule] | None = None
        """The rule of the last round, and what named it."""

    def of(self, train: Train, local: LocalTraining) -> GuardedRule:
        """Return the local rule of a round.

        Raises:
            PluginError: This device does not allow it, lacks it, or has another version of it.
        """
        made = self._made
        if made is None or (made[0].rule, made[0].options) != (local.rule, local.options):
            rule = allowed_rule(local.rule, dict(local.options), self._allowed)
            made = self._made = local, rule
        rule, coding = made[1], train.coding
        counts = len(rule.sent), len(rule.returned)
        if counts != (coding.sent, coding.returned):
            raise PluginError(
                f"local rule {local.rule}: must send and return as many vectors as the "
                f"coordinator's, {coding.sent} and {coding.returned}, got "
                f"{counts[0]} and {counts[1]}; install the same version on both"
            )
        return rule

    def kept(
        self, task: bytes, local: LocalTraining, rule: GuardedRule, n_params: int, meter: Meter
    ) -> dict[str, Vector]:
        """Return the vectors that a rule keeps, by name, each of shape (n_params,).

        Those after the last round count only if its update was merged, else those before it.
        """
        if not rule.kept:
            return {}
        stored = self._kept.load(task, local.run, 2 * len(rule.kept) * n_params)
        if stored is None:
            return {name: np.zeros(n_params, np.float32) for name in rule.kept}
        meter.read(stored.vector.nbytes)
        before, after = stored.vector.reshape(2, len(rule.kept), n_params)
        valid = after if stored.round == local.merged else before
        return dict(zip(rule.kept, valid, strict=True))

    def keep(
        self,
        task: bytes,
        local: LocalTraining,
        round_id: int,
        before: Mapping[str, Vector],
        after: Mapping[str, Vector],
    ) -> None:
        """Save the vectors that a rule keeps, from before the round and after it."""
        if after:
            both = np.concatenate([*before.values(), *(after[name] for name in before)])
            self._kept.save(StoredVector(task, local.run, round_id, both))


def sent_vectors(received: Vector, layout: Layout, rule: GuardedRule) -> dict[str, Vector]:
    """Return the vectors that follow a model, by name, each of shape (n_params,).

    Args:
        received: The model and the vectors, shape (n,).
        layout: Layout of the model without them.
        rule: Names them.
    """
    if not rule.sent:
        return {}
    vectors = received[layout.n_values :].reshape(len(rule.sent), layout.n_params)
    return dict(zip(rule.sent, vectors, strict=True))


def _read_only(array: NDArray[Number]) -> NDArray[Number]:
    """Return a view that a plug-in cannot write to, so that a mistake is an error."""
    view: NDArray[Number] = array.view()
    view.flags.writeable = False
    return view
