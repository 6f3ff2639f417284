"""Published times of training steps and forward passes on boards and phones.

Times of one source, framework, number of threads and model are comparable among boards. A set that
is `relative` compares boards only: its batch, or its exact network, is not known.

Sources:
    jafermarq/federated-embedded-vision 17ecd8b: PyTorch, batches of 16, mean of 20 steps; its
        training times are in Flower's article of 7 December 2023. Fine-tuning of the last layer is
        a forward pass in training mode; times of the Raspberry Pi 5 are read off its figure, to
        0.07 s.
    Tencent/ncnn a4d2ea1, benchmark/README.md: one image, mean; float16 where the core computes it.
    aallan/benchmarking-ml-on-the-edge: SSD with MobileNetV2, 300 x 300 pixels.
    PKU-Chengxu/FLASH 55cbede: a training batch on phones, DL4J.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from fairbed.testbed.emulation.work import StepWork

FLOWER = "jafermarq/federated-embedded-vision"
NCNN = "Tencent/ncnn"
ALLAN = "aallan/benchmarking-ml-on-the-edge"
FLASH = "PKU-Chengxu/FLASH"


class PublishedSet(Struct, frozen=True, kw_only=True):
    """Times of one model by one source, framework and number of threads."""

    source: str
    framework: str
    model: str
    kind: Literal["train", "forward"]
    threads: int
    seconds: Mapping[str, float]
    """By profile."""
    batch: int = 1
    is_inference: bool = False
    """It has the shares of an inference library, otherwise those of training."""
    half: frozenset[str] = frozenset()
    """Profiles whose time is of float16, which halves arithmetic and bytes."""
    is_relative: bool = False
    used_for: frozenset[str] = frozenset()
    """Profiles whose rates, or the constants, were chosen with this time."""


_BOTH = frozenset({"raspberry-pi-4b", "raspberry-pi-5"})


def _flower(
    model: str, kind: Literal["train", "forward"], pi4: float | None, pi5: float, *, used: bool
) -> PublishedSet:
    seconds = {"raspberry-pi-5": pi5} | ({} if pi4 is None else {"raspberry-pi-4b": pi4})
    return PublishedSet(
        source=FLOWER,
        framework="PyTorch",
        model=model,
        kind=kind,
        threads=4,
        batch=16,
        seconds=seconds,
        used_for=_BOTH if used else frozenset(),
    )


_HALF = frozenset(
    {
        "raspberry-pi-5",
        "jetson-orin-nano",
        "jetson-agx-orin",
        "orange-pi-5",
        "phone-high",
        "phone-flagship-2023",
    }
)
_NETS = ("resnet-18", "resnet-50", "mobilenet-v2")
_NCNN_MS: Mapping[int, Mapping[str, tuple[float | None, float | None, float | None]]] = {
    1: {
        "raspberry-pi-zero-2w": (654.69, 1802.79, 274.23),
        "raspberry-pi-3b-plus": (379.57, 979.75, 158.80),
        "raspberry-pi-4b": (191.10, 534.11, 93.48),
        "raspberry-pi-5": (29.68, 89.43, 16.38),
        "jetson-nano": (221.27, 624.43, 93.81),
        "jetson-tx2": (123.43, 384.10, 58.72),
        "jetson-orin-nano": (48.49, 138.19, 19.32),
        "jetson-agx-orin": (31.08, 89.80, 13.29),
        "orange-pi-5": (42.48, 108.70, 18.96),
        "nanopi-neo4": (176.85, 504.18, 79.18),
        "odroid-n2-plus": (192.49, 531.87, 81.62),
        "phone-high": (22.12, 65.93, 9.84),
        "phone-flagship-2023": (21.94, 53.96, 10.02),
    },
    4: {
        "raspberry-pi-zero-2w": (353.45, 782.63, 147.39),
        "raspberry-pi-3b-plus": (271.93, 587.42, 111.68),
        "raspberry-pi-4b": (123.12, 262.83, 61.88),
        "raspberry-pi-5": (19.96, 46.21, 10.52),
        "jetson-nano": (83.10, 203.42, 33.49),
        "visionfive-2": (401.61, 1193.34, 174.31),
        "lichee-pi-4a": (506.06, None, 215.35),
        "orange-pi-zero-2w": (255.00, 576.17, 100.91),
        "odroid-n2-plus": (77.46, 186.18, 39.56),
        "phone-high": (10.35, 26.24, 4.68),
        "phone-flagship-2023": (6.63, 18.94, 3.23),
    },
    6: {
        "jetson-tx2": (51.99, None, 21.95),
        "jetson-orin-nano": (12.26, 38.69, 5.86),
        "nanopi-neo4": (107.65, 265.18, 57.40),
    },
    8: {"milk-v-jupiter": (869.32, 1825.00, 169.97), "orange-pi-5": (15.52, 42.96, 7.77)},
    12: {"jetson-agx-orin": (6.92, 15.73, 4.17)},
}
"""Milliseconds of `_NETS` by threads and profile. A chip stands for its board: H616 for H618, A311D
at 2.2 GHz for S922X at 2.4, RK3399 at 1.8 GHz (six threads: Orange Pi 4 LTS), SpacemiT M1, and for
phones Snapdragon 855+ and 8 Gen 2. Of the RK3588 there are several tables for one thread (30, 42
and 61 ms for ResNet-18): the median. ResNet-50 on the TX2 NX with six threads, 306 ms, is left out:
four times that of ResNet-18 would be 150."""


def _ncnn() -> list[PublishedSet]:
    found = []
    for threads, boards in _NCNN_MS.items():
        for column, model in enumerate(_NETS):
            times = {name: row[column] for name, row in boards.items()}
            found.append(
                PublishedSet(
                    source=NCNN,
                    framework="ncnn",
                    model=model,
                    kind="forward",
                    threads=threads,
                    seconds={name: ms / 1e3 for name, ms in times.items() if ms is not None},
                    is_inference=True,
                    half=_HALF,
                    used_for=_used(model, threads),
                )
            )
    return found


def _used(model: str, threads: int) -> frozenset[str]:
    """Return the profiles with a rate that the time of ncnn implies, or that chose its shares."""
    chose = _BOTH if threads == 4 else frozenset()
    if model == "resnet-50":
        return chose | frozenset(_NCNN_MS[threads])
    return chose | (
        frozenset({"jetson-tx2"}) if (model, threads) == ("resnet-18", 6) else frozenset()
    )


def _relative(
    source: str,
    framework: str,
    model: str,
    kind: Literal["train", "forward"],
    threads: int,
    seconds: Mapping[str, float],
) -> PublishedSet:
    return PublishedSet(
        source=source,
        framework=framework,
        model=model,
        kind=kind,
        threads=threads,
        seconds=seconds,
        is_inference=kind == "forward",
        is_relative=True,
    )


def _pis(old: float, four: float, five: float) -> dict[str, float]:
    return {"raspberry-pi-3b-plus": old, "raspberry-pi-4b": four, "raspberry-pi-5": five}


def _phones(low: float, mid: float, high: float) -> dict[str, float]:
    return {"phone-low": low, "phone-mid": mid, "phone-high": high}


SETS: tuple[PublishedSet, ...] = (
    _flower("resnet-18", "train", 10.92, 5.84, used=False),
    _flower("resnet-34", "train", 20.36, 10.99, used=True),
    _flower("resnet-50", "train", 32.63, 16.11, used=True),
    _flower("mobilenet-v2", "train", 15.27, 7.22, used=False),
    _flower("vit-base", "train", None, 23.5, used=True),
    _flower("resnet-18", "forward", 3.93, 2.05, used=True),
    _flower("resnet-34", "forward", 7.19, 4.09, used=True),
    _flower("resnet-50", "forward", 16.51, 8.3, used=True),
    _flower("mobilenet-v2", "forward", 6.72, 3.55, used=True),
    _flower("vit-tiny", "forward", 2.17, 1.1, used=True),
    _flower("vit-small", "forward", 5.83, 3.0, used=False),
    _flower("vit-base", "forward", 19.11, 8.3, used=True),
    *_ncnn(),
    _relative(ALLAN, "TensorFlow", "mobilenet-v2", "forward", 4, _pis(0.6540, 0.4835, 0.1489)),
    _relative(ALLAN, "TensorFlow Lite", "mobilenet-v2", "forward", 4, _pis(0.3796, 0.1126, 0.0235)),
    _relative(FLASH, "DL4J", "leaf-cnn", "train", 1, _phones(1.642, 0.588, 0.179)),
    PublishedSet(
        source=FLASH,
        framework="DL4J",
        model="shakespeare-lstm",
        kind="train",
        threads=1,
        batch=100,
        seconds=_phones(28.621, 13.579, 10.681),
        used_for=frozenset(_phones(0.0, 0.0, 0.0)),
    ),
)

WORK: Mapping[tuple[str, str], StepWork] = {
    ("resnet-18", "train"): StepWork(
        conv_flops=1.065e10, matrix_flops=3.072e6, moved_bytes=1.763e8, fixed_bytes=1.404e8
    ),
    ("resnet-18", "forward"): StepWork(
        conv_flops=3.627e9, matrix_flops=1.024e6, moved_bytes=7.176e7, fixed_bytes=4.684e7
    ),
    ("resnet-34", "train"): StepWork(
        conv_flops=2.174e10, matrix_flops=3.072e6, moved_bytes=2.666e8, fixed_bytes=2.618e8
    ),
    ("resnet-34", "forward"): StepWork(
        conv_flops=7.326e9, matrix_flops=1.024e6, moved_bytes=1.094e8, fixed_bytes=8.733e7
    ),
    ("resnet-50", "train"): StepWork(
        conv_flops=2.429e10, matrix_flops=1.229e7, moved_bytes=7.801e8, fixed_bytes=3.074e8
    ),
    ("resnet-50", "forward"): StepWork(
        conv_flops=8.174e9, matrix_flops=4.096e6, moved_bytes=3.252e8, fixed_bytes=1.027e8
    ),
    ("mobilenet-v2", "train"): StepWork(
        conv_flops=1.651e9,
        depthwise_flops=1.243e8,
        matrix_flops=7.68e6,
        moved_bytes=3.957e8,
        fixed_bytes=4.253e7,
    ),
    ("mobilenet-v2", "forward"): StepWork(
        conv_flops=5.576e8,
        depthwise_flops=4.143e7,
        matrix_flops=2.56e6,
        moved_bytes=1.589e8,
        fixed_bytes=1.429e7,
    ),
    ("vit-tiny", "train"): StepWork(conv_flops=1.156e8, matrix_flops=6.244e9, moved_bytes=4.483e8),
    ("vit-tiny", "forward"): StepWork(conv_flops=5.78e7, matrix_flops=2.081e9, moved_bytes=1.383e8),
    ("vit-small", "train"): StepWork(
        conv_flops=2.312e8, matrix_flops=2.497e10, moved_bytes=8.953e8
    ),
    ("vit-small", "forward"): StepWork(
        conv_flops=1.156e8, matrix_flops=8.324e9, moved_bytes=2.759e8
    ),
    ("vit-base", "train"): StepWork(
        conv_flops=4.624e8, matrix_flops=9.989e10, moved_bytes=1.789e9, fixed_bytes=4.008e8
    ),
    ("vit-base", "forward"): StepWork(
        conv_flops=2.312e8, matrix_flops=3.33e10, moved_bytes=5.511e8, fixed_bytes=1.144e8
    ),
    ("leaf-cnn", "train"): StepWork(
        conv_flops=6.272e7, matrix_flops=3.93e7, moved_bytes=1.952e6, fixed_bytes=7.924e7
    ),
    ("leaf-cnn", "forward"): StepWork(
        conv_flops=2.132e7, matrix_flops=1.31e7, moved_bytes=788800, fixed_bytes=2.641e7
    ),
    ("shakespeare-lstm", "train"): StepWork(
        recurrent_flops=3.792e8, moved_bytes=1.998e7, fixed_bytes=1.518e9
    ),
    ("shakespeare-lstm", "forward"): StepWork(
        recurrent_flops=1.272e8, moved_bytes=8.444e6, fixed_bytes=2.557e8
    ),
}
"""Work of each model per example, by `testbed.host.torch_work.counted` on `benchmarks._vision`; it
takes products of recurrent layers for others, which a graph distinguishes."""
