"""Emulated against published times of boards and phones, for models of several classes.

    fairbed bench boards [--quick] [--json]

Three tables: the rule by which the rates of boards without a published one are estimated, with its
error when each board is left out; every published time, with the emulated one; and every pair of
boards of one source, framework, number of threads and model, whose published times differ by over
25 %: which of them is emulated in the wrong order.

The emulated time of a training step is the larger of `one speed`, from the cost of the step on this
machine, and of arithmetic and memory traffic. `--quick` leaves out the former, which takes a minute
to measure and is the smaller for all these models. A time by which a rate or a constant was chosen
is marked, and is left out of the median. A relative set is compared by its geometric mean.
"""

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import combinations

import msgspec
import numpy as np
from msgspec import Struct

from benchmarks._board_rates import Rule, rules
from benchmarks._published_steps import SETS, WORK, PublishedSet
from fairbed import profiles
from fairbed.profiles import Profile, Quantity
from fairbed.testbed.emulation.step_speed import (
    INFERENCE,
    TRAINING,
    one_speed_s,
    several_speeds_s,
)
from fairbed.testbed.host.calibration import reference_step
from fairbed.testbed.host.speed import REFERENCE_STEP_S
from fairbed.testbed.progress import tracked

TRAIN_FACTOR, FORWARD_FACTOR, MEDIAN_FACTOR = 2.5, 3.0, 1.5
"""Largest factors between an emulated and a published time, either way."""

DIFFERENT = 1.25
"""Ratio of two published times above which their order must be right."""

MEASURED_EXAMPLES, MEASURED_STEPS = 4, 3


class Row(Struct, frozen=True, kw_only=True):
    """A model on a board."""

    source: str
    framework: str
    threads: int
    kind: str
    model: str
    board: str
    published_s: float
    one_speed_s: float | None
    """By `core_speed` alone; None for a forward pass, or if it was not measured."""
    emulated_s: float
    ratio: float
    """Emulated / published; in a relative set, by the geometric mean of both."""
    ok: bool
    """Whether the ratio is within the factor of its kind."""
    is_held_out: bool
    """Whether no rate and no constant was chosen with this time."""

    @property
    def factor(self) -> float:
        """The ratio or its inverse, the larger."""
        return max(self.ratio, 1.0 / self.ratio)


class Pair(Struct, frozen=True, kw_only=True):
    """Two boards whose published times differ."""

    source: str
    framework: str
    threads: int
    kind: str
    model: str
    slower: str
    faster: str
    published: float
    """Time of the slower / time of the faster."""
    emulated: float

    @property
    def is_reversed(self) -> bool:
        """Whether the emulated order is the other."""
        return self.emulated <= 1.0


class Findings(Struct, frozen=True, kw_only=True):
    """All results."""

    rules: dict[str, Rule]
    rows: list[Row]
    pairs: list[Pair]
    median_factor: float
    """Over the rows that chose nothing."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench boards",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="measure nothing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    references: dict[str, float] = {}
    if not options.quick:
        trained = list(dict.fromkeys(s.model for s in SETS if s.kind == "train"))
        references = {model: measured(model) for model in tracked(trained, "models", "boards")}
    found = findings(references)
    print(msgspec.json.encode(found).decode() if options.json else _text(found))
    return 0


def measured(model: str) -> float:
    """Return the cost of a training example, in seconds of a core of the reference machine."""
    import torch

    from benchmarks._vision import training_step

    torch.set_num_threads(1)
    step, reference, ratios = training_step(model, MEASURED_EXAMPLES), reference_step(), []
    step()
    for _ in range(MEASURED_STEPS):
        began = time.thread_time()
        step()
        took_s = time.thread_time() - began
        ratios.append(took_s / reference())
    return float(np.median(ratios)) * REFERENCE_STEP_S / MEASURED_EXAMPLES


def findings(references: Mapping[str, float]) -> Findings:
    """Return all results.

    Args:
        references: Cost of a training example on the reference machine, seconds, by model.
    """
    rows = [row for published in SETS for row in rows_of(published, references)]
    held_out = [row.factor for row in rows if row.is_held_out]
    return Findings(
        rules=rules(), rows=rows, pairs=pairs_of(rows), median_factor=statistics.median(held_out)
    )


def rows_of(published: PublishedSet, references: Mapping[str, float]) -> list[Row]:
    """Return the rows of one set of published times."""
    times = {
        board: emulated_s(published, board, references.get(published.model))
        for board in published.seconds
    }
    ratios = {board: times[board][1] / s for board, s in published.seconds.items()}
    base = statistics.geometric_mean(ratios.values()) if published.is_relative else 1.0
    limit = TRAIN_FACTOR if published.kind == "train" else FORWARD_FACTOR
    return [
        Row(
            source=published.source,
            framework=published.framework,
            threads=published.threads,
            kind=published.kind,
            model=published.model,
            board=board,
            published_s=seconds,
            one_speed_s=times[board][0],
            emulated_s=times[board][1],
            ratio=ratios[board] / base,
            ok=1.0 / limit <= ratios[board] / base <= limit,
            is_held_out=board not in published.used_for,
        )
        for board, seconds in published.seconds.items()
    ]


def emulated_s(
    published: PublishedSet, board: str, reference_s: float | None
) -> tuple[float | None, float]:
    """Return the times by one speed and by several, seconds; the latter is the emulated one."""
    profile = on_threads(profiles.load(board), published.threads)
    work = WORK[published.model, published.kind]
    shares = INFERENCE if published.is_inference else TRAINING
    several = several_speeds_s(profile, work, published.batch, shares)
    assert several is not None
    if board in published.half:
        several /= 2.0
    if reference_s is None or published.kind != "train":
        return None, several
    one = one_speed_s(profile, reference_s * published.batch)
    return one, max(one, several)


def pairs_of(rows: Sequence[Row]) -> list[Pair]:
    """Return all pairs of comparable rows whose published times differ by over 25 %."""
    found = []
    for one, other in combinations(rows, 2):
        if _comparable(one) != _comparable(other):
            continue
        slower, faster = sorted((one, other), key=lambda row: -row.published_s)
        published = slower.published_s / faster.published_s
        if published <= DIFFERENT:
            continue
        found.append(
            Pair(
                source=one.source,
                framework=one.framework,
                threads=one.threads,
                kind=one.kind,
                model=one.model,
                slower=slower.board,
                faster=faster.board,
                published=published,
                emulated=slower.emulated_s / faster.emulated_s,
            )
        )
    return found


def _comparable(row: Row) -> tuple[object, ...]:
    return row.source, row.framework, row.threads, row.kind, row.model


def on_threads(profile: Profile, count: int) -> Profile:
    """Return a profile whose steps run on so many threads, with nothing else on its cores."""
    source = "as in the published measurement"
    threads = Quantity(value=min(count, profile.cores), tag="measured", source=source)
    free = msgspec.structs.replace(profile.busy, value=0.0)
    return msgspec.structs.replace(profile, threads=threads, busy=free)


def _text(found: Findings) -> str:
    lines = [f"{'estimated number':<22}{'share':>8}{'factor':>8}{'boards':>8}  worst"]
    for key, rule in found.rules.items():
        name, ratio = rule.worst
        lines.append(
            f"{key:<22}{rule.share:>8.3f}{rule.factor:>8.2f}{rule.n:>8}  {name} {ratio:.2f}"
        )
    lines += [
        "",
        f"{'framework':<16}{'threads':>8} {'kind':<8}{'model':<17}{'board':<21}{'published':>11}"
        f"{'one speed':>11}{'emulated':>10}{'ratio':>7}",
    ]
    for row in found.rows:
        one = "" if row.one_speed_s is None else f"{row.one_speed_s:.3f} s"
        marks = [] if row.is_held_out else ["chose a constant or rate"]
        marks += [] if row.ok else ["BEYOND THE FACTOR"]
        lines.append(
            f"{row.framework:<16}{row.threads:>8} {row.kind:<8}{row.model:<17}{row.board:<21}"
            f"{row.published_s:>9.3f} s{one:>11}{row.emulated_s:>8.3f} s{row.ratio:>7.2f}"
            f"{'  ' if marks else ''}{', '.join(marks)}"
        )
    far = [row for row in found.rows if not row.ok]
    wrong = [pair for pair in found.pairs if pair.is_reversed]
    lines += ["", f"{len(found.pairs)} pairs differ by over 25 %, {len(wrong)} are reversed:"]
    lines += [
        f"  {p.framework}, {p.threads} threads, {p.model} {p.kind}: {p.slower} / {p.faster} "
        f"published {p.published:.2f}, emulated {p.emulated:.2f}"
        for p in wrong
    ]
    held_out = sum(row.is_held_out for row in found.rows)
    lines.append(
        f"{len(far)} of {len(found.rows)} times are beyond a factor of {TRAIN_FACTOR:g} (training) "
        f"or {FORWARD_FACTOR:g} (forward); median factor {found.median_factor:.2f} over the "
        f"{held_out} that chose nothing"
    )
    return "\n".join(lines)
