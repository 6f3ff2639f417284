"""Emulated against published training times of boards, for models of several classes.

    fairbed bench boards [--models resnet-18,...] [--json]

Each step has 16 images of 224 x 224 pixels and runs on all cores. The published times are those of
jafermarq/federated-embedded-vision 17ecd8b (PyTorch, 20 steps), which Flower's article of
7 December 2023 plots. `one speed` is the time by `core_speed` alone, from the cost of the step on
this machine; `emulated` adds arithmetic and memory traffic. ResNet-34 and ResNet-50 were used to
choose the two shares in `testbed/emulation/step_speed.py`; the other models were not.
"""

import argparse
import time
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import Struct

from fairbed import profiles
from fairbed.profiles import Profile, Quantity
from fairbed.testbed.emulation.step_speed import one_speed_s, step_s
from fairbed.testbed.emulation.work import StepWork
from fairbed.testbed.host.calibration import reference_step
from fairbed.testbed.host.speed import REFERENCE_STEP_S
from fairbed.testbed.progress import tracked

BATCH = 16

PUBLISHED_S = {
    "resnet-18": {"raspberry-pi-4b": 10.92, "raspberry-pi-5": 5.84},
    "resnet-34": {"raspberry-pi-4b": 20.36, "raspberry-pi-5": 10.99},
    "resnet-50": {"raspberry-pi-4b": 32.63, "raspberry-pi-5": 16.11},
    "mobilenet-v2": {"raspberry-pi-4b": 15.27, "raspberry-pi-5": 7.22},
}
"""Seconds of a training step, by model and board."""

CHOSEN_ON = ("resnet-34", "resnet-50")
"""Models with which the constants were chosen."""

FACTOR = 1.5
"""Largest ratio of an emulated to a published time, either way, that is aimed at."""

MEASURED_EXAMPLES, MEASURED_STEPS = 4, 3


class Row(Struct, frozen=True, kw_only=True):
    """A model on a board."""

    model: str
    board: str
    published_s: float
    one_speed_s: float
    emulated_s: float
    ratio: float
    """Emulated / published."""
    ok: bool
    """Whether the ratio is within `FACTOR`."""
    is_held_out: bool
    """Whether the constants were chosen without this model."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench boards",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default=",".join(PUBLISHED_S))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = [
        row
        for model in tracked(options.models.split(","), "models", "boards")
        for row in rows_of(model, *measured(model))
    ]
    print(msgspec.json.encode(rows).decode() if options.json else _table(rows))
    return 0


def measured(model: str) -> tuple[float, StepWork]:
    """Return the cost of a step in seconds of a core of the reference machine, and its work."""
    import torch

    from benchmarks._vision import training_step
    from fairbed.testbed.host.torch_work import counted

    torch.set_num_threads(1)
    work = StepWork.between(
        (1, counted(training_step(model, 1))), (2, counted(training_step(model, 2)))
    )
    step, reference, ratios = training_step(model, MEASURED_EXAMPLES), reference_step(), []
    step()
    for _ in range(MEASURED_STEPS):
        began = time.thread_time()
        step()
        took_s = time.thread_time() - began
        ratios.append(took_s / reference())
    cost_s = float(np.median(ratios)) * REFERENCE_STEP_S * BATCH / MEASURED_EXAMPLES
    return cost_s, work


def rows_of(model: str, reference_s: float, work: StepWork) -> list[Row]:
    """Return the rows of a model, given the cost of its step on the reference machine."""
    rows = []
    for board, published_s in PUBLISHED_S[model].items():
        profile = on_all_cores(profiles.load(board))
        emulated_s = step_s(profile, reference_s, work, BATCH)
        ratio = emulated_s / published_s
        rows.append(
            Row(
                model=model,
                board=board,
                published_s=published_s,
                one_speed_s=one_speed_s(profile, reference_s),
                emulated_s=emulated_s,
                ratio=ratio,
                ok=1.0 / FACTOR <= ratio <= FACTOR,
                is_held_out=model not in CHOSEN_ON,
            )
        )
    return rows


def on_all_cores(profile: Profile) -> Profile:
    """Return a profile whose training steps run on every core."""
    source = "as in the published measurement"
    threads = Quantity(value=profile.cores, tag="measured", source=source)
    return msgspec.structs.replace(profile, threads=threads)


def _table(rows: Sequence[Row]) -> str:
    lines = [
        f"{'model':<14}{'board':<18}{'published':>10}{'one speed':>11}{'emulated':>10}{'ratio':>7}"
    ]
    for row in rows:
        mark = "" if row.ok else f"  beyond a factor of {FACTOR:g}"
        chosen = "" if row.is_held_out else "  (used for the constants)"
        lines.append(
            f"{row.model:<14}{row.board:<18}{row.published_s:>8.2f} s{row.one_speed_s:>9.2f} s"
            f"{row.emulated_s:>8.2f} s{row.ratio:>7.2f}{mark}{chosen}"
        )
    return "\n".join(lines)
