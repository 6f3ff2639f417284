"""FedRep: the values that a device keeps are trained first, then the others, as torch does it."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from fairbed.device_agent.trainer import TrainResult, local_steps, mini_batches, train
from fairbed.wire.messages import Hyperparameters, Optimiser, Schedule
from fairbed.wire.tensors import Layout
from tests.device_agent.softmax import (
    CLASSES,
    FEATURES,
    N_VALUES,
    SoftmaxEngine,
    examples,
    softmax_artifact,
)
from tests.testbed.replay.cohort.fleets import Meter

PLAIN = Hyperparameters(epochs=2, personal_epochs=3, batch_size=10, learning_rate=0.4)
CASES = {
    "plain": PLAIN,
    "steps": replace(PLAIN, max_steps=2),
    "terms": replace(PLAIN, momentum=0.9, weight_decay=0.05, proximal=0.3, clip_norm=0.2),
    "proximal": replace(PLAIN, proximal=0.3),
    "adamw": replace(
        PLAIN, learning_rate=0.05, weight_decay=0.1, optimiser=Optimiser(name="adamw")
    ),
    "cosine": replace(PLAIN, schedule=Schedule(kind="cosine")),
}
SEED, START = 7, np.random.default_rng(0).normal(size=N_VALUES).astype(np.float32)
ANCHOR = np.random.default_rng(1).normal(size=N_VALUES).astype(np.float32)
N_W = FEATURES * CLASSES


def trained(h: Hyperparameters) -> TrainResult:
    """Return the result of a device that keeps b."""
    spec = softmax_artifact().spec
    w, b = spec.layout.tensors
    spec = replace(spec, layout=Layout(tensors=(w, replace(b, is_local=True))))
    x, y = examples(35).arrays()
    return train(SoftmaxEngine(spec), START, x, y, h, SEED, Meter(), lambda: False, ANCHOR)


def reference(h: Hyperparameters) -> NDArray[Any]:
    """Return the model after a round of torch: one optimiser for b, then another one for W."""
    import torch

    x, y = (torch.from_numpy(values) for values in examples(35).arrays())
    batches = [batch for _, batch in mini_batches(35, h, SEED)]
    first = h.personal_epochs * 4
    shared = batches[first:][: h.max_steps]
    flat = torch.from_numpy(START.astype(np.float64))
    w = flat[:N_W].reshape(FEATURES, CLASSES).clone().requires_grad_()
    b = flat[N_W:].clone().requires_grad_()
    anchor = torch.from_numpy(ANCHOR.astype(np.float64))[:N_W].reshape(w.shape)
    for own, at, part in ((b, flat[N_W:].clone(), batches[:first]), (w, anchor, shared)):
        rest: dict[str, Any] = {"lr": h.learning_rate, "weight_decay": h.weight_decay}
        optimiser = (
            torch.optim.SGD([own], momentum=h.momentum, **rest)
            if h.optimiser is None
            else torch.optim.AdamW([own], **rest)
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, len(part))
        for batch in part:
            w.grad = b.grad = None
            logits = x[batch].double() @ w + b
            torch.nn.functional.cross_entropy(logits, y[batch]).backward()  # type: ignore[no-untyped-call] # torch has no types for it
            assert own.grad is not None
            own.grad += h.proximal * (own.detach() - at)
            if h.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_([own], h.clip_norm)
            optimiser.step()
            if h.schedule is not None:
                schedule.step()
    found: NDArray[Any] = torch.cat([w.detach().ravel(), b.detach()]).numpy()
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
def test_both_parts_are_trained_as_by_torch(name: str) -> None:
    pytest.importorskip("torch")
    h = CASES[name]
    found = trained(h)
    np.testing.assert_allclose(found.vector, reference(h), rtol=1e-4, atol=2e-6)
    assert found.steps == local_steps(35, h) == 12 + (2 if h.max_steps else 8)


def test_each_part_stands_still_while_the_other_one_is_trained() -> None:
    first = trained(replace(CASES["terms"], epochs=1, max_steps=1)).vector
    whole = trained(CASES["terms"]).vector
    assert np.array_equal(first[N_W:], whole[N_W:]), "b is trained in the first part alone"
    assert not np.array_equal(first[:N_W], whole[:N_W])
    assert not np.array_equal(first[N_W:], START[N_W:])
