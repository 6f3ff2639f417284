"""A plain torch script: it trains a small network on handwritten digits, on this machine.

    python torch_script.py

Nothing in it is of Fairbed. torch-script.toml names its function `load` and its class `Net`, and
trains the same network on the same pictures on emulated devices.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def load() -> TensorDataset:
    """Return 1,797 pictures (1, 8, 8), each with its digit."""
    digits = load_digits()
    pictures = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)
    return TensorDataset(pictures, torch.tensor(digits.target))


class Net(nn.Module):
    """One convolution and two dense layers."""

    def __init__(self, channels: int = 8, hidden: int = 32) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, channels, kernel_size=3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(channels * 4 * 4, hidden)
        self.output = nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (B, 10), of pictures, shape (B, 1, 8, 8)."""
        x = self.pool(torch.relu(self.convolution(x)))
        x = torch.relu(self.hidden(x.flatten(1)))
        logits: torch.Tensor = self.output(x)
        return logits


def main(epochs: int = 5) -> None:
    """Train on four fifths of the pictures, and print the accuracy on the others."""
    torch.manual_seed(1)
    train, test = random_split(load(), [0.8, 0.2])
    model, loss = Net(), nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in DataLoader(train, batch_size=20, shuffle=True):
            optimiser.zero_grad()
            loss(model(x), y).backward()
            optimiser.step()
    with torch.no_grad():
        correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test, 100))
    print(f"accuracy {correct / len(test):.3f} of {len(test)} pictures")


if __name__ == "__main__":
    main()
