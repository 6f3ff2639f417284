"""The models of published studies by a name, as torch modules, for the exporter only.

`MODEL_NAMES` of `recipes.py` has their names. With two classes a model has one logit. Parameters
begin as `wire.artifact.initial_vector` draws them, not as the authors' libraries do.
"""

import math

from torch import Tensor, nn

KERNEL = 5


def _outputs(classes: int) -> int:
    return 1 if classes <= 2 else classes


def linear_svm(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a linear support vector machine: one linear layer, whose loss is the hinge.

    Source:
        Li et al., q-FFL, ICLR 2020, and Ditto, ICML 2021, for Vehicle. Ditto minimises the mean of
        max(0, 1 - y w'x) + 0.01 |w|^2, so `training.weight_decay = 0.02`; q-FFL the sum over a
        mini-batch of B + 0.5 |w|^2: the mean with B times its step and `weight_decay = 1 / B`.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(x_shape), _outputs(classes)))


def _convolutions(
    x_shape: tuple[int, ...],
    classes: int,
    channels: tuple[int, int],
    hidden: tuple[int, ...],
    *,
    padding: int,
    dropout: tuple[float, float] = (0.0, 0.0),
) -> nn.Module:
    """Return two convolutions of 5 x 5, each with ReLU and 2 x 2 pooling, and hidden layers."""
    depth, height, width = x_shape
    first, second = channels
    for _ in channels:
        height, width = ((n + 2 * padding - KERNEL + 1) // 2 for n in (height, width))
    layers: list[nn.Module] = [
        nn.Conv2d(depth, first, KERNEL, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, KERNEL, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    if dropout[0]:
        layers.append(nn.Dropout(dropout[0]))
    layers.append(nn.Flatten())
    features = second * height * width
    for units in hidden:
        layers += [nn.Linear(features, units), nn.ReLU()]
        features = units
    if dropout[1]:
        layers.append(nn.Dropout(dropout[1]))
    return nn.Sequential(*layers, nn.Linear(features, _outputs(classes)))


def cnn_ditto(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return 32 and 64 channels, and 1,024 hidden units.

    Source:
        Li et al., Ditto, ICML 2021, for Fashion-MNIST, as in the authors' code.
    """
    return _convolutions(x_shape, classes, (32, 64), (1024,), padding=2)


def cnn_femnist(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return 16 and 32 channels and 128 hidden units, with dropout of 0.25 and 0.5.

    Source:
        Li et al., Ditto, ICML 2021, for FEMNIST, as in the authors' code.
    """
    return _convolutions(x_shape, classes, (16, 32), (128,), padding=2, dropout=(0.25, 0.5))


def cnn_corefed(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return 6 and 16 channels without padding, and 120 and 84 hidden units.

    Source:
        Chaudhury et al., CoreFed, NeurIPS 2022, names the layers; the widths are those of Li et
        al., NIID-Bench, ICDE 2022, with the same words for the network.
    """
    return _convolutions(x_shape, classes, (6, 16), (120, 84), padding=0)


def cnn_celeba(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return four convolutions of 3 x 3 with 32 channels, batch normalisation and pooling.

    Source:
        Caldas et al., LEAF, arXiv:1812.01097, for CelebA.
    """
    depth, height, width = x_shape
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Conv2d(depth, 32, 3, padding=1), nn.BatchNorm2d(32)]
        layers += [nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()]
        depth, height, width = 32, -(-height // 2), -(-width // 2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * height * width, _outputs(classes)))


def vgg_11(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return eight convolutions of 3 x 3 and two hidden layers of 512 units with dropout.

    Source:
        Simonyan, Zisserman, ICLR 2015, configuration A, for pictures of 32 x 32: 512 hidden units
        instead of 4,096, as is usual for CIFAR-10. CoreFed names the network alone.
    """
    depth, height, width = x_shape
    layers: list[nn.Module] = []
    for channels, count in ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)):
        for _ in range(count):
            layers += [nn.Conv2d(depth, channels, 3, padding=1), nn.ReLU()]
            depth = channels
        layers.append(nn.MaxPool2d(2))
        height, width = height // 2, width // 2
    layers.append(nn.Flatten())
    features = depth * height * width
    for _ in range(2):
        layers += [nn.Dropout(0.5), nn.Linear(features, 512), nn.ReLU()]
        features = 512
    return nn.Sequential(*layers, nn.Linear(features, _outputs(classes)))


def m5(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return four convolutions over time with 64, 64, 128 and 256 channels, and a mean.

    Source:
        Dai et al., ICASSP 2017, for raw audio; Hahn, Jeong, Lee, AAggFF, ICML 2024, for
        SpeechCommands.
    """
    sizes = ((64, 80, 4, 0), (64, 3, 1, 1), (128, 3, 1, 1), (256, 3, 1, 1))
    depth = x_shape[0]
    layers: list[nn.Module] = []
    for channels, kernel, stride, padding in sizes:
        layers += [nn.Conv1d(depth, channels, kernel, stride, padding), nn.BatchNorm1d(channels)]
        layers += [nn.ReLU(), nn.MaxPool1d(4)]
        depth = channels
    layers += [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(depth, _outputs(classes))]
    return nn.Sequential(*layers)


class Recurrent(nn.Module):
    """Two layers of LSTM over embedded tokens; logits of the last position, or of each one."""

    def __init__(
        self, tokens: int, embedding: int, units: int, layers: nn.Module, *, all_positions: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, embedding)
        self.body = nn.LSTM(embedding, units, num_layers=2, batch_first=True)
        self.last = layers
        self._all_positions = all_positions

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of tokens (B, T): (B, classes), or (B, T, classes)."""
        states, _ = self.body(self.embedding(x))
        logits: Tensor = self.last(states if self._all_positions else states[:, -1])
        return logits


def char_lstm(classes: int, x_classes: int) -> nn.Module:
    """Return an embedding of 8 and two layers of 256 units; the next character after the last.

    Source:
        McMahan et al., AISTATS 2017; Caldas et al., LEAF, arXiv:1812.01097, for Shakespeare.
    """
    last = nn.Linear(256, _outputs(classes))
    return Recurrent(x_classes, 8, 256, last, all_positions=False)


def word_lstm(classes: int, x_classes: int) -> nn.Module:
    """Return an embedding of 200 and two layers of 256 units; the next word at each position.

    Source:
        Caldas et al., LEAF, arXiv:1812.01097, for Reddit, in the sizes of Hahn, Jeong, Lee, AAggFF,
        ICML 2024.
    """
    return Recurrent(x_classes, 200, 256, nn.Linear(256, classes), all_positions=True)


def text_lstm(classes: int, x_classes: int) -> nn.Module:
    """Return an embedding of 300, two layers of 100 units, and a linear layer of 30.

    Source:
        Caldas et al., LEAF, arXiv:1812.01097, and Li et al., q-FFL, ICLR 2020, for Sent140.
    Deviates:
        The sources take GloVe vectors and do not train them; here the embedding begins at random
        and is trained, unless `[model] weights` and `adaptation` set it.
    """
    last = nn.Sequential(nn.Linear(100, 30), nn.Linear(30, _outputs(classes)))
    return Recurrent(x_classes, 300, 100, last, all_positions=False)
