"""Sequences padded to several lengths against one: processor time of a round, memory, and export.

    fairbed bench buckets [--networks gru,transformer] [--counts 2 4 8] [--length 128]
        [--repeats 5] [--json]

The sequences are the sentences of the plays in `examples/shakespeare`, by characters, cut to
`--length`: most are far shorter. Each network trains one epoch on all of them with mini-batches of
16, at one length and with each number of `data.buckets`, in turns in one process. `ratio` is the
processor time of the epoch over that of one length: median, and first and third quartile in
brackets. `tokens` is the share of the tokens, with padding, of one length. `peak` is that of a
fresh process in training, `export` the time to make and check all graphs.
"""

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks._meter import MEGABYTE
from fairbed.coordinator.task.catalogue import build_task
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.peak_memory import Request
from fairbed.device_agent.trainer import train
from fairbed.testbed.host.memory import peaks
from fairbed.testbed.progress import tracked
from fairbed.testbed.replay.cohort.devices import Unpaced
from fairbed.wire.artifact import Artifact, encode_artifact, initial_vector
from fairbed.wire.buckets import best_buckets, buckets_of, sequence_lengths
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.preparation import TextPreparation, tokens_of

TEXTS = Path(__file__).parents[1] / "examples" / "shakespeare"
BATCH, WIDTH = 16, 64
TRAINING = Hyperparameters(epochs=1, batch_size=BATCH, learning_rate=0.01)


class Gru(nn.Module):
    """A GRU that predicts the next character."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.tokens, self.last = nn.Embedding(classes, WIDTH), nn.Linear(WIDTH, classes)
        self.cells = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (B, T, classes)."""
        y: torch.Tensor = self.last(self.cells(self.tokens(x))[0])
        return y


class Causal(nn.Module):
    """Two causal blocks of attention that predict the next character."""

    def __init__(self, length: int, classes: int) -> None:
        super().__init__()
        self.tokens, self.last = nn.Embedding(classes, WIDTH), nn.Linear(WIDTH, classes)
        self.places = nn.Parameter(0.02 * torch.randn(length, WIDTH))
        self.mixing = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.bodies = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, 4 * WIDTH),
                nn.GELU(),
                nn.Linear(4 * WIDTH, WIDTH),
            )
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (B, T, classes)."""
        n, length = x.shape
        h = self.tokens(x) + self.places[:length]
        for mix, body in zip(self.mixing, self.bodies, strict=True):
            parts = mix(h).view(n, length, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
            q, k, v = parts.unbind(0)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + mixed.transpose(1, 2).reshape(n, length, WIDTH)
            h = h + body(h)
        y: torch.Tensor = self.last(h)
        return y


def gru(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the network of this name."""
    return Gru(classes)


def transformer(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the network of this name."""
    return Causal(x_shape[0], classes)


NETWORKS = "gru", "transformer"


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench buckets", description=__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--counts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    x, y, tokens = sentences(options.length)
    rows = [
        row
        for name in tracked(options.networks.split(","), "networks", "buckets")
        for row in measure(name, x, y, tokens, [1, *options.counts], options.repeats)
    ]
    if options.json:
        print(msgspec.json.encode(rows).decode())
        return 0
    lengths = sequence_lengths(x, y, has_labels=True)
    quartiles = np.quantile(lengths, (0.25, 0.5, 0.75)).astype(int).tolist()
    print(f"{len(x)} sentences, quartiles of their lengths {quartiles}, longest {options.length}")
    print(
        f"{'network':<13}{'buckets':<30}{'tokens':>7}{'epoch s':>9}{'ratio':>19}{'peak MB':>9}"
        f"{'task kB':>9}{'export s':>10}"
    )
    for row in rows:
        low, middle, high = row["ratio"]
        print(
            f"{row['network']:<13}{', '.join(map(str, row['buckets'])):<30}{row['tokens']:>7.2f}"
            f"{row['epoch_s']:>9.3f}{f'{middle:.2f} [{low:.2f}, {high:.2f}]':>19}"
            f"{row['peak_bytes'] / MEGABYTE:>9.0f}{row['task_bytes'] / 1000:>9.0f}"
            f"{row['export_s']:>10.1f}"
        )
    return 0


def sentences(length: int) -> tuple[Any, Any, int]:
    """Return tokens and next tokens, shape (n, length) both, and the size of the vocabulary."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(TEXTS.glob("*.txt"))]
    parts = [part.strip() for text in texts for part in re.split(r"(?<=[.!?])\s", text)]
    parts = [part for part in parts if len(part) > 1]
    preparation = TextPreparation(
        unit="characters",
        length=length,
        target="next",
        stride=length,
        vocabulary=tuple(sorted(set("".join(parts)))),
    )
    found = tokens_of(preparation, [part[: length + 1] for part in parts], lambda _: None)
    return found.x, found.y, preparation.x_classes


def measure(
    name: str, x: Any, y: Any, tokens: int, counts: Sequence[int], repeats: int
) -> list[Mapping[str, Any]]:
    """Return the results of one network at each number of buckets, the first of which is 1."""
    of_sequences = sequence_lengths(x, y, has_labels=True)
    tasks, export_s = list[Artifact](), list[float]()
    for count in counts:
        began = time.perf_counter()
        lengths = () if count == 1 else best_buckets(of_sequences, count, x.shape[1])
        tasks.append(
            build_task(
                f"benchmarks.buckets:{name}",
                x.shape[1:],
                tokens,
                engine="onnx",
                x_classes=tokens,
                y_shape=y.shape[1:],
                classes_axis="last",
                lengths=lengths,
            )
        )
        export_s.append(time.perf_counter() - began)
    engines = [open_own_engine(task) for task in tasks]
    times_s = list[list[float]]()
    for repeat in range(repeats + 1):
        times_s.append([])
        for task, engine in zip(tasks, engines, strict=True):
            vector = initial_vector(task.spec, 1)
            began = time.thread_time()
            train(engine, vector, x, y, TRAINING, repeat, Unpaced(), lambda: False)
            times_s[-1].append(time.thread_time() - began)
    times = np.array(times_s[1:])  # the first one allocates
    ratios = times / times[:, :1]
    rows = list[Mapping[str, Any]]()
    for at, task in enumerate(tasks):
        of_examples = buckets_of(task.spec, x, y)
        padded = x.size if of_examples is None else int(of_examples.sum())
        blob = encode_artifact(task)
        request = Request(artifact=blob, hyperparameters=TRAINING)
        rows.append(
            {
                "network": name,
                "buckets": [*task.spec.buckets] or [x.shape[1]],
                "tokens": padded / x.size,
                "epoch_s": float(np.median(times[:, at])),
                "ratio": np.quantile(ratios[:, at], (0.25, 0.5, 0.75)).tolist(),
                "peak_bytes": peaks(request, BATCH).train,
                "task_bytes": len(blob),
                "export_s": export_s[at],
            }
        )
    return rows
