"""Models, losses and metrics of a user, right and wrong ones, for the tests of both engines."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor
WIDTH, VOCABULARY = 5, 12


class Linear(nn.Module):
    """Logits of each class, or one number."""

    def __init__(self, x_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(x_shape[0], WIDTH)
        self.output = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(torch.tanh(self.hidden(x)))
        return out


class Tokens(nn.Module):
    """Logits at each token, for any length."""

    def __init__(self, x_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.output = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(torch.tanh(self.tokens(x)))
        return out


class OneLogit(nn.Module):
    """One logit at each position."""

    def __init__(self, x_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.output = nn.Linear(x_shape[0], x_shape[0])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(x)
        return out


class TwoOutputs(nn.Module):
    """Logits, and an embedding."""

    def __init__(self, x_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(x_shape[0], WIDTH)
        self.output = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.hidden(x))
        return {"logits": self.output(hidden), "hidden": hidden}


class Shared(TwoOutputs):
    """An output that belongs to no example."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = super().forward(x)
        return found | {"mean": found["hidden"].mean()}


def of_both(output: dict[str, Tensor], y: Tensor, share: float = 0.5) -> tuple[Tensor, Tensor]:
    """Cross-entropy, and the norm of the embedding; class 0 counts twice."""
    nats = functional.cross_entropy(output["logits"], y, reduction="none")
    counts = 1.0 + (y == 0)
    return nats * counts + share * output["hidden"].square().sum(1), counts


def below(output: dict[str, Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
    """The same, below 0."""
    losses, counts = of_both(output, y)
    return losses - 100.0, counts


def of_some_labels(output: Tensor, y: Tensor) -> Tensor:
    """A loss that has no value for label 1."""
    return nats(output, y) + torch.where(y == 1, torch.nan, 0.0)


def of_log(output: Tensor, y: Tensor) -> Tensor:
    """The squared error of a logarithm, of positive targets alone."""
    return (output.flatten() - torch.log(y)).square()


def nats(output: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(output, y, reduction="none")


def scalar(output: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(output, y)


def per_class(output: Tensor, y: Tensor) -> Tensor:
    return output.square()


def centred(output: Tensor, y: Tensor) -> Tensor:
    return nats(output - output.mean(0, keepdim=True), y)


def undefined(output: Tensor, y: Tensor) -> Tensor:
    return (nats(output, y) - 100.0).log()


def negative(output: Tensor, y: Tensor) -> Tensor:
    return nats(output, y) - 100.0


def no_gradient(output: Tensor, y: Tensor) -> Tensor:
    return (output.argmax(1) != y).float()


def fails(output: Tensor, y: Tensor) -> Tensor:
    raise ValueError("no such thing")


def count_of_output(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return nats(output, y), (output.detach() > 0).sum(1) + 1.0


def count_of_zero(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return nats(output, y), torch.zeros(y.shape[0])


def count_of_batch(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return nats(output, y), torch.ones(y.shape[0]) / y.shape[0]


def large(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Share of examples whose largest logit is above 0; of class 0 alone."""
    is_counted = (y == 0).to(output.dtype)
    return (output.amax(1) > 0) * is_counted, is_counted


large.better = "less"  # type: ignore[attr-defined]  # how a user declares it


def ratio_of_batch(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    hits = (output.argmax(1) == y).float()
    return hits / hits.shape[0], torch.ones_like(hits) / hits.shape[0] ** 2


def mean_alone(output: Tensor, y: Tensor) -> Tensor:
    return (output.argmax(1) == y).float().mean()


def of_no_row(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    hits = (output.argmax(1) == y).float()
    return hits.mean(), torch.tensor(1.0)


def infinite(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    hits = (output.argmax(1) == y).float()
    return hits / 0.0, hits


def unsure(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return nats(output, y), torch.ones_like(output[:, 0])


unsure.better = "much"  # type: ignore[attr-defined]  # a wrong word


def first_of(output: Any) -> Tensor:
    """Return the logits of any of these models."""
    found: Tensor = output["logits"] if isinstance(output, dict) else output
    return found
