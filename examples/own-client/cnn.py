"""A torch client of your own: a small CNN, augmentation by shifts, and Adam with its own state.

`own-client-torch.toml` trains it on emulated devices.
"""

from typing import Any

import numpy as np
import torch
from torch import nn


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )


def _arrays(network: nn.Module) -> dict[str, np.ndarray]:
    """Return all that the network has; the counter of the normalisation is an integer."""
    return {name: value.detach().numpy().copy() for name, value in network.state_dict().items()}


class Client:
    """Trains on the pictures of the device; Adam's moments stay there."""

    def __init__(self, context: Any) -> None:
        self.context = context
        x, y = context.examples()
        self.x = torch.tensor(np.asarray(x, np.float32).reshape(-1, 1, 8, 8))
        self.y = torch.tensor(np.asarray(y, np.int64))
        self.n_examples = len(self.y)
        self.network = _network()

    @staticmethod
    def initial(config: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return the arrays before round 1."""
        torch.manual_seed(config["seed"])
        return _arrays(_network())

    def fit(
        self, arrays: dict[str, np.ndarray], config: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], int, dict[str, float]]:
        """Train with augmentation and Adam."""
        self._load(arrays)
        random = torch.Generator().manual_seed(self.context.seed % (1 << 63))
        adam = torch.optim.Adam(self.network.parameters(), lr=config["learning_rate"])
        self._restore(adam)
        before, _ = self._measure(self.x, self.y)
        self.network.train()
        for epoch in range(config["epochs"]):
            for batch in torch.randperm(len(self.y), generator=random).split(config["batch_size"]):
                across, down = torch.randint(-1, 2, (2,), generator=random).tolist()
                x = torch.roll(self.x[batch], (across, down), dims=(2, 3))
                adam.zero_grad()
                nn.functional.cross_entropy(self.network(x), self.y[batch]).backward()
                adam.step()
            self.context.report((epoch + 1) / config["epochs"])
            if self.context.should_stop():
                break
        self._keep(adam)
        loss, accuracy = self._measure(self.x, self.y)
        metrics = {"loss_before": before, "loss": loss, "accuracy": accuracy}
        return _arrays(self.network), self.n_examples, metrics

    def evaluate(
        self, arrays: dict[str, np.ndarray], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, float]]:
        """Return loss, number of examples and metrics of a model, which is not trained."""
        self._load(arrays)
        x, y = self.x, self.y
        if config["split"] == "test":
            found = self.context.test_examples()
            if found is None:
                return 0.0, 0, {}
            x = torch.tensor(np.asarray(found[0], np.float32).reshape(-1, 1, 8, 8))
            y = torch.tensor(np.asarray(found[1], np.int64))
        loss, accuracy = self._measure(x, y)
        return loss, len(y), {"accuracy": accuracy}

    def _load(self, arrays: dict[str, np.ndarray]) -> None:
        self.network.load_state_dict({k: torch.from_numpy(v) for k, v in arrays.items()})

    @torch.no_grad()
    def _measure(self, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        self.network.eval()
        scores = self.network(x)
        loss = nn.functional.cross_entropy(scores, y).item()
        return loss, (scores.argmax(1) == y).float().mean().item()

    def _restore(self, adam: torch.optim.Adam) -> None:
        """Continue with the moments of the last round."""
        state = self.context.state
        for number, parameter in enumerate(self.network.parameters()):
            if f"mean.{number}" in state:
                adam.state[parameter] = {
                    "step": torch.tensor(float(state["steps"])),
                    "exp_avg": torch.from_numpy(state[f"mean.{number}"]),
                    "exp_avg_sq": torch.from_numpy(state[f"square.{number}"]),
                }

    def _keep(self, adam: torch.optim.Adam) -> None:
        state = self.context.state
        for number, parameter in enumerate(self.network.parameters()):
            found = adam.state[parameter]
            state["steps"] = int(found["step"].item())
            state[f"mean.{number}"] = found["exp_avg"].numpy()
            state[f"square.{number}"] = found["exp_avg_sq"].numpy()
