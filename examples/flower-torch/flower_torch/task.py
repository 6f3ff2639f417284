"""Model, data and training of the app; no part of it knows Flower."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

CLASSES, SIDE = 10, 8


class Net(nn.Module):
    """Two convolutions and a linear layer, for pictures of 8x8."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(32 * (SIDE // 4) ** 2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return one logit per class."""
        return self.head(self.features(x).flatten(1))


def load_data(partition: int, partitions: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the digits of one partition: x and y for training, x and y for tests.

    A partition has more of some classes than of others.
    """
    digits = load_digits()
    x = torch.tensor(digits.images[:, None] / 16.0, dtype=torch.float32)
    y = torch.tensor(digits.target, dtype=torch.int64)
    rng = np.random.default_rng(0)
    owner = np.empty(len(y), np.int64)
    for label in range(CLASSES):
        of_label = rng.permutation(np.flatnonzero(digits.target == label))
        shares = rng.dirichlet(np.full(partitions, 1.0))
        ends = np.round(np.cumsum(shares)[:-1] * len(of_label)).astype(np.int64)
        for number, part in enumerate(np.split(of_label, ends)):
            owner[part] = number
    own = np.flatnonzero(owner == partition)
    if len(own) < 10:  # every node has a few
        own = rng.permutation(len(y))[:10]
    own = rng.permutation(own)
    cut = max(1, len(own) // 5)
    test, train = own[:cut], own[cut:]
    return x[train], y[train], x[test], y[test]


def augmented(x: Tensor) -> Tensor:
    """Return pictures, each moved by at most a pixel, and with a little noise."""
    moved = torch.empty_like(x)
    padded = pad(x, (1, 1, 1, 1))
    for at, (row, column) in enumerate(torch.randint(0, 3, (len(x), 2)).tolist()):
        moved[at] = padded[at, :, row : row + SIDE, column : column + SIDE]
    return moved + 0.05 * torch.randn_like(moved)


def train(
    model: nn.Module, x: Tensor, y: Tensor, *, learning_rate: float, epochs: int, batch_size: int
) -> float:
    """Train with Adam on augmented pictures; return the mean loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    model.train()
    total, steps = 0.0, 0
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(batch_size):
            optimizer.zero_grad()
            loss = cross_entropy(model(augmented(x[batch])), y[batch])
            loss.backward()
            optimizer.step()
            total, steps = total + float(loss), steps + 1
    return total / max(1, steps)


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the mean cross-entropy and the accuracy."""
    model.eval()
    logits = model(x)
    return float(cross_entropy(logits, y)), float((logits.argmax(1) == y).float().mean())
