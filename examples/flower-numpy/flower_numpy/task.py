"""Model, data and training of the app; no part of it knows Flower."""

import numpy as np

FEATURES, CLASSES = 20, 5


def initial_model() -> list[np.ndarray]:
    """Return weights, shape (FEATURES, CLASSES), and biases, shape (CLASSES,)."""
    rng = np.random.default_rng(0)
    weights = rng.normal(0.0, 0.01, (FEATURES, CLASSES)).astype(np.float32)
    return [weights, np.zeros(CLASSES, np.float32)]


def load_data(partition: int, examples: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """Return the examples of one partition, with more of some classes than of others.

    Returns:
        x, shape (examples, FEATURES), and y, shape (examples,).
    """
    centres = np.random.default_rng(1).normal(0.0, 1.0, (CLASSES, FEATURES))
    rng = np.random.default_rng([2, partition])
    y = rng.choice(CLASSES, examples, p=rng.dirichlet(np.full(CLASSES, 1.0)))
    x = centres[y] + rng.normal(0.0, 1.5, (examples, FEATURES))
    return x.astype(np.float32), y.astype(np.int64)


def train(
    model: list[np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    *,
    learning_rate: float,
    epochs: int,
    batch_size: int,
    seed: int,
) -> list[np.ndarray]:
    """Return the model after some epochs of mini-batch gradient descent."""
    weights, biases = (part.copy() for part in model)
    rng = np.random.default_rng(seed)
    targets = np.eye(CLASSES, dtype=np.float32)
    for _ in range(epochs):
        order = rng.permutation(len(y))
        for at in range(0, len(y), batch_size):
            batch = order[at : at + batch_size]
            error = (probabilities([weights, biases], x[batch]) - targets[y[batch]]) / len(batch)
            weights -= np.float32(learning_rate) * (x[batch].T @ error)
            biases -= np.float32(learning_rate) * error.sum(axis=0)
    return [weights, biases]


def evaluate(model: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the mean cross-entropy and the accuracy."""
    found = probabilities(model, x)
    loss = -np.log(np.maximum(found[np.arange(len(y)), y], 1e-12)).mean()
    return float(loss), float((found.argmax(axis=1) == y).mean())


def probabilities(model: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    """Return the probability of each class, shape (examples, CLASSES)."""
    weights, biases = model
    logits = x @ weights + biases
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
