"""The client of tests of whole runs: a softmax regression with counters, bytes and a state."""

import os
import sys
from typing import Any

import numpy as np


def _grown(old: dict[str, Any], updates: list[Any]) -> dict[str, Any]:
    """Merge the raw arrays: count all examples, and add the notes of all devices."""
    seen = old["seen"] + sum(arrays["seen"] - old["seen"] for arrays, _, _ in updates)
    notes = b"".join(arrays["notes"][len(old["notes"]) :] for arrays, _, _ in updates)
    return {"seen": np.asarray(seen), "flags": old["flags"], "notes": old["notes"] + notes}


merge = _grown


def broken_merge(old: dict[str, Any], updates: list[Any]) -> dict[str, Any]:
    """Fail."""
    raise KeyError("trees")


class Softmax:
    """Trains as Fairbed trains its softmax, from the same first model."""

    def __init__(self, context: Any) -> None:
        self.context = context

    @staticmethod
    def initial(config: dict[str, Any]) -> dict[str, Any]:
        """Return the model before round 1."""
        rng = np.random.Generator(np.random.PCG64(config["seed"]))
        return {
            "w": rng.uniform(-0.125, 0.125, 640).reshape(10, 64),
            "seen": np.zeros((), np.int64),
            "b": rng.uniform(-0.125, 0.125, 10).astype(np.float32),
            "flags": np.array([True, False]),
            "notes": b"",
        }

    def fit(self, arrays: dict[str, Any], config: dict[str, Any]) -> Any:
        """Train one epoch of one mini-batch."""
        how = self.context.options.get("how", "")
        if how == "raise" and self.context.number == 0:
            raise ValueError("no such batch")
        if how == "exit" and self.context.number == 0:
            os._exit(3)
        if how == "nan" and self.context.number == 0:
            arrays["w"][0, 0] = np.nan
        examples = self.context.examples()
        before, accuracy, gradients = _measure(arrays, *examples)
        rate = self.context.hyperparameters["learning_rate"]
        arrays["w"] -= rate * gradients[0]
        arrays["b"] -= rate * gradients[1]
        n = len(examples[1])
        arrays["seen"] += n
        arrays["notes"] += b"%d;" % self.context.number
        rounds = self.context.state["rounds"] = self.context.state.get("rounds", 0) + 1
        metrics = {"f_k": before, "train accuracy": accuracy, "rounds": rounds}
        return arrays, n, metrics

    def evaluate(self, arrays: dict[str, Any], config: dict[str, Any]) -> Any:
        """Test the model on the held-out examples."""
        x, y = self.context.test_examples()
        loss, accuracy, _ = _measure(arrays, x, y)
        return loss, len(y), {"accuracy": accuracy, "number": self.context.number}


class Blind(Softmax):
    """Cannot evaluate."""

    evaluate = None  # type: ignore[assignment] # of a user


class OwnData:
    """Divides data itself, by its number."""

    n_examples = 5

    def __init__(self, context: Any) -> None:
        self.context = context

    @staticmethod
    def initial(config: dict[str, Any]) -> list[Any]:
        """Return the model before round 1: no floats at all."""
        return [np.zeros(config.get("size", 4), np.int32)]

    def fit(self, arrays: list[Any], config: dict[str, Any]) -> Any:
        """Count the devices by their numbers."""
        assert self.context.examples() is None
        arrays[0][self.context.number] += self.context.count
        return arrays, 5, {}


class Broken:
    """Has no first model that can be sent, in the way that the options name."""

    @staticmethod
    def initial(config: dict[str, Any]) -> Any:
        """Fail."""
        how = config["how"]
        if how == "raises":
            raise RuntimeError("no such file")
        if how == "exits":
            sys.stderr.write("the last words\n")
            os._exit(7)
        found: dict[str, Any] = {
            "objects": {"w": np.array([{}], object)},
            "text": "w",
            "empty": {},
            "no value": {"w": np.zeros((0, 3), np.float32)},
            "nan": {"w": np.array([np.nan])},
            "bytes": {"w": np.zeros(3), "trees": b"x"},
            "name": {"": np.zeros(3)},
        }
        return found[how]

    def fit(self, arrays: Any, config: dict[str, Any]) -> Any:
        """Never called."""
        raise AssertionError


def _measure(arrays: dict[str, Any], x: Any, y: Any) -> Any:
    flat = np.asarray(x, np.float64).reshape(len(y), -1)
    logits = flat @ arrays["w"].T + arrays["b"]
    logits -= logits.max(axis=1, keepdims=True)
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    accuracy = (p.argmax(axis=1) == y).mean()
    p[np.arange(len(y)), y] -= 1.0
    p /= len(y)
    return loss, accuracy, (p.T @ flat, p.sum(axis=0))
