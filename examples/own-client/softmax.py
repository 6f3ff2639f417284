"""A training loop of your own in numpy: softmax regression with label smoothing.

`own-client.toml` trains it on emulated devices; docs/own-client.md describes each part.
"""

from typing import Any

import numpy as np

CLASSES, SIZE = 10, 64
"""The data set `digits` has pictures of 8 x 8 pixels."""


class Client:
    """Trains on the examples of the device."""

    def __init__(self, context: Any) -> None:
        self.context = context
        x, self.y = context.examples()
        self.x = np.asarray(x, np.float32).reshape(len(x), -1)
        self.n_examples = len(self.y)

    @staticmethod
    def initial(config: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return the arrays before round 1; `rounds` is an integer, which travels raw."""
        return {
            "weight": np.zeros((SIZE, CLASSES), np.float32),
            "bias": np.zeros(CLASSES, np.float32),
            "rounds": np.zeros(1, np.int64),
        }

    def fit(
        self, arrays: dict[str, np.ndarray], config: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], int, dict[str, float]]:
        """Train, and return the arrays, the number of examples and metrics by name."""
        before, _ = _loss(arrays, self.x, self.y)
        rng = np.random.default_rng(self.context.seed)
        steps, epochs, smoothing = 0, config["epochs"], config.get("smoothing", 0.0)
        for epoch in range(epochs):
            order = rng.permutation(len(self.y))
            for at in range(0, len(order), config["batch_size"]):
                batch = order[at : at + config["batch_size"]]
                slope = _probabilities(arrays, self.x[batch])
                slope -= smoothing / CLASSES
                slope[np.arange(len(batch)), self.y[batch]] -= 1.0 - smoothing
                rate = config["learning_rate"] / len(batch)
                arrays["weight"] -= rate * self.x[batch].T @ slope
                arrays["bias"] -= rate * slope.sum(axis=0)
                steps += 1
            self.context.report((epoch + 1) / epochs)
            if self.context.should_stop():
                break
        arrays["rounds"] += 1
        own = self.context.state["rounds"] = self.context.state.get("rounds", 0) + 1
        loss, accuracy = _loss(arrays, self.x, self.y)
        return (
            arrays,
            self.n_examples,
            {
                "loss_before": before,
                "loss": loss,
                "accuracy": accuracy,
                "steps": steps,
                "own_rounds": own,
            },
        )

    def evaluate(
        self, arrays: dict[str, np.ndarray], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, float]]:
        """Return loss, number of examples and metrics of a model, which is not trained."""
        found = self.context.test_examples() if config["split"] == "test" else (self.x, self.y)
        if found is None:
            return 0.0, 0, {}
        x, y = found
        loss, accuracy = _loss(arrays, np.asarray(x, np.float32).reshape(len(x), -1), y)
        return loss, len(y), {"accuracy": accuracy}


def _probabilities(arrays: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    scores = x @ arrays["weight"] + arrays["bias"]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _loss(arrays: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    probabilities = _probabilities(arrays, x)
    loss = -np.log(probabilities[np.arange(len(y)), y] + 1e-12).mean()
    return float(loss), float((probabilities.argmax(axis=1) == y).mean())
