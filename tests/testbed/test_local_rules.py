"""The contract of local rules: a faulty rule for each property, and our own rules."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from examples.feddyn import FedDyn
from examples.scaffold import Scaffold
from fairbed.coordinator.algorithms.contract import check_contract, check_property
from fairbed.coordinator.policy.config import TrainingConfig
from fairbed.testbed.cli.main import main
from fairbed.testbed.local_rules import PROPERTIES, Halves, make_halves
from fairbed.wire.local_training import Floats32, Merged, Step, Trained
from tests.testbed.cli.test_mistakes import error_of

DECLARES = "settings that it is defined for"
FORM = "vectors are complete, inputs stay"
ALONE = "a device alone trains as among others"
DIVERGING = "a diverging device changes no other"
MEMORY = "a device has no memory but vectors"
BITS = "the same mini-batches give the same bits"
NO_STEP = "a device without a step"
RESUMES = "a resumed coordinator continues the same"
MERGES = "merges of one, few and all devices"
FAST = "a round is fast enough"


class Honest:
    """A correct rule; each class below adds one fault."""

    sent: tuple[str, ...] = ("mean",)
    kept: tuple[str, ...] = ("own",)
    returned: tuple[str, ...] = ("moved",)

    def __init__(self) -> None:
        self.rounds = 0

    def gradient(self, step: Step) -> None:
        step.gradient += 0.1 * (step.vectors["mean"] - step.vectors["own"])

    def end(self, trained: Trained) -> Mapping[str, Floats32]:
        moved = trained.params - trained.anchor
        return {"own": moved, "moved": moved}

    def merge(self, merged: Merged) -> Mapping[str, Floats32]:
        self.rounds += 1
        factor = np.float32(1.0 / self.rounds)
        return {"mean": factor * merged.returned["moved"]}

    def to_state(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


class Misspelt(Honest):
    defined_for = ("momentun",)


class Float64(Honest):
    def gradient(self, step: Step) -> None:
        step.gradient = step.gradient.astype(np.float64)


class OtherShape(Honest):
    def gradient(self, step: Step) -> None:
        step.gradient = step.gradient[..., :1]


class ChangesModel(Honest):
    def gradient(self, step: Step) -> None:
        params = step.params
        params -= step.gradient


class ChangesKept(Honest):
    def end(self, trained: Trained) -> Mapping[str, Floats32]:
        own = trained.vectors["own"]
        own += trained.params
        return super().end(trained)


class ChangesSent(Honest):
    def merge(self, merged: Merged) -> Mapping[str, Floats32]:
        mean = merged.sent["mean"]
        mean += merged.params
        return {}


class LacksReturned(Honest):
    def end(self, trained: Trained) -> Mapping[str, Floats32]:
        return {"own": trained.params - trained.anchor}


class ReturnsUnknown(Honest):
    def end(self, trained: Trained) -> Mapping[str, Floats32]:
        return {**super().end(trained), "other": trained.params}


class Infinite(Honest):
    def end(self, trained: Trained) -> Mapping[str, Floats32]:
        moved = np.full_like(trained.params, np.inf)
        return {"own": moved, "moved": moved}


class Explodes(Honest):
    """Makes the model infinite although each vector is not."""

    def gradient(self, step: Step) -> None:
        step.gradient *= np.float32(1e38)


class SumsOverDevices(Honest):
    """Normalises by the gradients of all devices of a stack."""

    def gradient(self, step: Step) -> None:
        step.gradient /= np.float32(1.0) + np.abs(step.gradient).max()


class FirstAxis(Honest):
    """Takes the first axis of a stack for that of the parameters."""

    def gradient(self, step: Step) -> None:
        step.gradient *= np.linspace(0.5, 1.0, len(step.gradient), dtype=np.float32).reshape(
            -1, *[1] * (step.gradient.ndim - 1)
        )


class AllOrNone(Honest):
    """Changes gradients only where all losses of the stack are finite."""

    def gradient(self, step: Step) -> None:
        if np.isfinite(step.loss).all():
            super().gradient(step)


class Counts(Honest):
    """Keeps the number of steps in the object of the device."""

    calls = 0

    def gradient(self, step: Step) -> None:
        self.calls += 1
        step.gradient /= np.float32(self.calls)


class OwnDice(Honest):
    dice = np.random.default_rng(1)

    def gradient(self, step: Step) -> None:
        step.gradient += self.dice.normal(0.0, 0.1, step.gradient.shape).astype(np.float32)


class DividesBySteps(Honest):
    def end(self, trained: Trained) -> Mapping[str, Floats32]:
        steps = trained.steps[..., np.newaxis].astype(np.float32)
        moved = (trained.params - trained.anchor) / steps
        return {"own": moved, "moved": moved}


class Forgets(Honest):
    def load_state(self, state: dict[str, Any]) -> None:
        pass


class ForgetsModel(Honest):
    """Changes the model by a vector that its state lacks."""

    speed: Any = 0.0

    def merge(self, merged: Merged) -> Mapping[str, Floats32]:
        self.speed = 0.5 * self.speed + merged.params - merged.before
        merged.params[:] = merged.before + self.speed
        return {}


class OtherDevices(Honest):
    """Divides by the number of devices that were not selected."""

    def merge(self, merged: Merged) -> Mapping[str, Floats32]:
        others = np.float32(merged.n_devices - merged.n_merged)
        return {"mean": merged.returned["moved"] / others}


class Normalises(Honest):
    """Divides by the length of a returned vector, which may be zero."""

    def merge(self, merged: Merged) -> Mapping[str, Floats32]:
        moved = merged.returned["moved"]
        return {"mean": moved / np.float32(np.linalg.norm(moved))}


class NormalisesMove(Honest):
    def merge(self, merged: Merged) -> Mapping[str, Floats32]:
        d = merged.params - merged.before
        return {"mean": d / np.float32(np.linalg.norm(d))}


BROKEN: list[tuple[type[Honest], str, str]] = [
    (Misspelt, DECLARES, "defined_for must be a tuple of epochs, momentum, "),
    (Float64, FORM, "gradient() must leave float32 of shape (3, 5), got float64 of shape (3, 5)"),
    (OtherShape, FORM, "got float32 of shape (3, 1)"),
    (ChangesModel, FORM, "gradient() must not raise, got ValueError: output array is read-only"),
    (ChangesKept, FORM, "end() must not raise, got ValueError: output array is read-only"),
    (ChangesSent, FORM, "merge() must not raise, got ValueError: output array is read-only"),
    (LacksReturned, FORM, "end() must return moved, may return own, and no other, got 'own'"),
    (ReturnsUnknown, FORM, "got 'moved', 'other', 'own'"),
    (Infinite, FORM, "end(): own must be finite, got a value that is not"),
    (Explodes, FORM, "the model must stay finite"),
    (SumsOverDevices, ALONE, "a device must train alone as among others (device 0)"),
    (FirstAxis, ALONE, "a device must train alone as among others"),
    (SumsOverDevices, DIVERGING, "a device that diverges must change no other one"),
    (AllOrNone, DIVERGING, "a device that diverges must change no other one"),
    (Counts, MEMORY, "so an object must train as a new one does"),
    (OwnDice, BITS, "the same mini-batches must give the same bits"),
    (DividesBySteps, NO_STEP, "end(): own must be finite"),
    (Forgets, RESUMES, "after load_state() the coordinator must merge as without a restart: mean"),
    (ForgetsModel, RESUMES, "after load_state() the coordinator must merge as without a restart"),
    (OtherDevices, MERGES, "one update of one device: merge(): mean must be finite"),
    (Normalises, MERGES, "returned vectors of zeros: merge(): mean must be finite"),
    (NormalisesMove, MERGES, "updates that do not move the model: merge(): mean must be finite"),
]


def find(make: Callable[[], Any], name: str) -> Any:
    return check_property(PROPERTIES, name, lambda: Halves.of(make), time.perf_counter)


@pytest.mark.parametrize(("broken", "name", "why"), BROKEN)
def test_a_faulty_rule_violates_its_property(broken: type[Honest], name: str, why: str) -> None:
    finding = find(broken, name)
    assert not finding.is_ok
    assert why in finding.found


def test_a_slow_rule_violates_the_last_property() -> None:
    ticks = iter(range(99))
    finding = check_property(
        PROPERTIES, FAST, lambda: Halves.of(Honest), lambda: float(2 * next(ticks))
    )
    assert not finding.is_ok
    assert "1,000,000 parameters must take at most 1.0 s, got 4.00" in finding.found


def test_every_property_has_a_rule_that_violates_it() -> None:
    assert {name for _, name, _ in BROKEN} | {FAST} == set(PROPERTIES)


@pytest.mark.parametrize("make", [Honest, Scaffold, FedDyn])
def test_our_plug_ins_keep_the_contract(make: Callable[[], Any]) -> None:
    found = check_contract(PROPERTIES, lambda: Halves.of(make), time.perf_counter)
    assert [finding for finding in found if not finding.is_ok] == []


def test_doctor_states_what_a_rule_refuses() -> None:
    class Declared(Honest):
        defined_for = ("epochs", "momentum")

    assert find(Declared, DECLARES).found.startswith(
        "for plain SGD, epochs, momentum; refused: weight_decay, proximal, clip_norm, "
    )
    found = find(Honest, DECLARES).found
    assert found.startswith(
        "declares no defined_for, so it counts as one for plain SGD; refused: mom"
    )


@pytest.mark.full
def test_propfair_keeps_the_contract() -> None:
    config = TrainingConfig(rule="propfair", M=8.0)
    found = check_contract(PROPERTIES, lambda: make_halves(config), time.perf_counter)
    assert [finding for finding in found if not finding.is_ok] == []


@pytest.mark.full
def test_doctor_prints_a_line_for_each_property(capsys: pytest.CaptureFixture[str]) -> None:
    name = "examples.feddyn:FedDyn"
    assert main(["doctor", "--local-training", name, "--option", "alpha=0.2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:8] for line in lines[: len(PROPERTIES)]] == ["ok      "] * len(PROPERTIES)
    assert [line[8:48].rstrip() for line in lines[: len(PROPERTIES)]] == list(PROPERTIES)
    assert lines[-1] == f"local rule {name}: satisfies the contract"


@pytest.mark.full
def test_doctor_reports_a_faulty_rule_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--local-training", f"{__name__}:Forgets", "--json"]) == 1
    found = {line["name"]: line["is_ok"] for line in json.loads(capsys.readouterr().out)}
    assert [name for name, is_ok in found.items() if not is_ok] == [RESUMES]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere"], "local rule nowhere: must be one of propfair or package.module:Name, got no"),
        (["no.mod:Rule"], "must be importable as package.module:Name"),
        (["sgd"], "local rule sgd: must change local training, got the training without a rule"),
        (["examples.feddyn:FedDyn", "--option", "alpha=0"], "alpha must be above 0 and at most"),
        (["propfair", "--option", "M=0.1"], "--option: Expected `float` > 0.2 - at `$.M`"),
        (["examples.term:Term"], "local rule examples.term:Term: gradient(), end() must exist"),
    ],
)
def test_a_rule_that_cannot_be_checked_is_one_line(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--local-training", *arguments]) == 2
    assert why in error_of(capsys)
