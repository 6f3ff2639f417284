"""Networks as people train them on devices: small, with all kinds of blocks of their papers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from fairbed.coordinator.task.export import export_task
from fairbed.coordinator.task.selfcheck import ExportFigures
from fairbed.wire.artifact import Artifact, TaskKind, XRange
from tests.coordinator.task import attention_networks as attention
from tests.coordinator.task import convolutional_networks as convolutional
from tests.coordinator.task import sequence_networks as sequence
from tests.coordinator.task.attention_networks import LENGTH, VOCABULARY
from tests.coordinator.task.sequence_networks import CATEGORIES, Bag, PaddedText, Text


@dataclass(frozen=True, slots=True)
class Architecture:
    """A network, and what it maps to what."""

    make: Callable[[], nn.Module]
    x_shape: tuple[int, ...] = (3, 32, 32)
    classes: int = 10
    kind: TaskKind = "classification"
    y_shape: tuple[int, ...] = ()
    x_classes: int = 0
    """Size of the vocabulary; 0 for x of floats."""
    x_range: XRange | None = None

    def export(
        self, model: nn.Module, report: Callable[[ExportFigures], None] | None = None
    ) -> Artifact:
        """Return the checked artifact of a model that `make` returned.

        Args:
            model: The model.
            report: As for `export_task`.
        """
        return export_task(
            model,
            "test",
            "test",
            self.x_shape,
            self.classes,
            x_dtype="int64" if self.x_classes else "float32",
            x_classes=self.x_classes,
            kind=self.kind,
            y_shape=self.y_shape,
            x_range=self.x_range,
            report=report,
        )


def text(make: Callable[[], nn.Module], classes: int = 3) -> Architecture:
    return Architecture(make, (LENGTH,), classes, x_classes=VOCABULARY)


def each_token(make: Callable[[], nn.Module]) -> Architecture:
    """Return an architecture that predicts a token at each position."""
    return Architecture(make, (LENGTH,), VOCABULARY, y_shape=(LENGTH,), x_classes=VOCABULARY)


def _characters(read: str) -> nn.Module:
    body = nn.LSTM(8, 8, 2, batch_first=True)
    return Text(body, 8, VOCABULARY, read=read)


def _two_layers(cells: type[nn.GRU] | type[nn.LSTM]) -> nn.Module:
    return PaddedText(cells(12, 12, 2, batch_first=True, dropout=0.2), padding=0, dropout=0.3)


ARCHITECTURES: dict[str, Architecture] = {
    "ResNet-18": Architecture(convolutional.resnet18, (3, 64, 64)),
    "ResNet-50": Architecture(convolutional.resnet50),
    "ResNeXt": Architecture(partial(convolutional.resnet50, 4)),
    "ResNet with group norm before activations": Architecture(convolutional.group_normed),
    "MobileNet": Architecture(convolutional.mobilenet_v1),
    "MobileNetV2": Architecture(convolutional.mobilenet_v2),
    "MobileNetV3, small": Architecture(convolutional.mobilenet_v3_small),
    "MobileNetV3, large": Architecture(convolutional.mobilenet_v3_large),
    "EfficientNet": Architecture(convolutional.efficientnet),
    "MnasNet": Architecture(convolutional.mnasnet),
    "ShuffleNetV2": Architecture(convolutional.shufflenet),
    "SqueezeNet 1.1": Architecture(convolutional.squeezenet),
    "GoogLeNet": Architecture(convolutional.googlenet),
    "DenseNet": Architecture(convolutional.densenet),
    "VGG-11 with batch norm": Architecture(convolutional.vgg, (3, 40, 40)),
    "RegNetY": Architecture(convolutional.regnet),
    "AlexNet": Architecture(convolutional.alexnet),
    "LeNet": Architecture(convolutional.lenet, (1, 28, 28)),
    "CNN of FEMNIST": Architecture(convolutional.femnist, (1, 28, 28), 62),
    "Xception": Architecture(convolutional.xception),
    "ConvNeXt": Architecture(convolutional.convnext),
    "ConvMixer": Architecture(convolutional.convmixer),
    "U-Net": Architecture(convolutional.UNet, (3, 16, 16), 3, y_shape=(16, 16)),
    "feature pyramid": Architecture(convolutional.Pyramid, (3, 16, 16)),
    "autoencoder": Architecture(
        convolutional.autoencoder, (1, 16, 16), 1, "regression", (1, 16, 16)
    ),
    "DS-CNN": Architecture(sequence.keyword_spotting, (1, 49, 10), 12),
    "M5": Architecture(sequence.m5, (1, 2000)),
    "temporal convolutions": Architecture(sequence.Temporal, (4, 24), 6),
    "PointNet": Architecture(sequence.PointNet, (3, 20)),
    "CRNN": Architecture(sequence.Lines, (1, 8, 12), 5),
    "ViT-B/16": Architecture(attention.VisionTransformer),
    "ViT-Tiny": Architecture(lambda: attention.SmallTransformer(convolutional.StochasticDepth())),
    "MLP-Mixer": Architecture(attention.Mixer),
    "tabular with categories": Architecture(
        sequence.Tabular, (6,), 3, x_range=XRange(low=0, high=CATEGORIES - 1, is_whole=True)
    ),
    "bag of embeddings": text(lambda: Text(nn.Identity(), padding=0)),
    "fastText, mean": text(lambda: Bag("mean", 0)),
    "fastText, sum": text(lambda: Bag("sum", None)),
    "fastText, maximum": text(lambda: Bag("max", None)),
    "text convolutions": text(
        lambda: Text(sequence.OverTime(nn.Conv1d(12, 12, 3, padding=1), nn.ReLU()))
    ),
    "TextCNN": text(lambda: Text(sequence.Windows(12), dropout=0.5)),
    "RNN": text(lambda: Text(nn.RNN(12, 12, batch_first=True))),
    "GRU": text(lambda: _two_layers(nn.GRU)),
    "LSTM": text(lambda: _two_layers(nn.LSTM)),
    "LSTM of both directions": text(
        lambda: Text(nn.LSTM(12, 6, batch_first=True, bidirectional=True))
    ),
    "LSTM of characters": each_token(lambda: _characters("each")),
    "LSTM of the next character": text(lambda: _characters("last"), VOCABULARY),
    "GRU with attention": text(lambda: Text(sequence.Attentive(12))),
    "DistilBERT": text(attention.DistilBERT),
    "encoder with padding": text(attention.PaddedEncoder),
    "causal transformer": each_token(attention.CausalModel),
    "rotary transformer": each_token(
        lambda: Text(attention.Rotary(12), classes=VOCABULARY, read="each")
    ),
}
