"""What a large fleet costs, as curves with fitted exponents; and a plan for larger ones.

    fairbed bench scale [--part tables,agents,...] [--write docs/scale.md] [--json]
        [--devices 1000000] [--in-flight 10000] [--per-round 1000] [--repeats 3]
        [--agents 5,20,50,200,500] [--sizes 0.1,1,10,100] [--rounds 10000]
        [--plan-round-s 600] [--plan-share 0.01] [--core-price 0] [--gb-price 0]

tables: decisions of a live coordinator over `--devices` registered devices and a tenth and a
hundredth of them, of which `--in-flight` are at work; processor time and memory. Nothing is trained
or sent. Then the plan, by arithmetic: 10^4, 10^5 and 10^6 devices send a context every second, and
a round of `--plan-round-s` seconds selects a share of them, with a model of 1 MB. Prices are of an
hour of a core and of a GB that leaves the coordinator's site; 0 leaves the column out.

agents: live fleets of `--agents`, 5 of them in each round, and the same fleets at rest.
models: a live fleet of 4 and models of `--sizes` MB.
rounds: a live fleet of 3 over `--rounds` rounds.
replays: replays of 100 to `--devices` devices.
replayed-rounds: replays of 40 devices with up to `--rounds` rounds.

The exponent e of cost ~ size^e is fitted to all columns of a row. `--write` replaces the tables of
the measured parts in the page.
"""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks._pages import page
from benchmarks._scale import live, replays, tables
from benchmarks._scale.curve import Curve

PARTS = ("tables", "agents", "models", "rounds", "replays", "replayed-rounds")


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", type=_texts, default=list(PARTS))
    parser.add_argument("--devices", type=int, default=1_000_000)
    parser.add_argument("--in-flight", type=int, default=10_000)
    parser.add_argument("--per-round", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=3, help="decisions of the tables")
    parser.add_argument("--agents", type=_counts, default=[5, 20, 50, 200, 500])
    parser.add_argument("--sizes", type=_sizes, default=[0.1, 1.0, 10.0, 100.0], metavar="MB")
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--plan-round-s", type=float, default=600.0)
    parser.add_argument("--plan-share", type=float, default=0.01)
    parser.add_argument("--core-price", type=float, default=0.0)
    parser.add_argument("--gb-price", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=page, metavar="PAGE")
    options = parser.parse_args(arguments)
    if unknown := [part for part in options.part if part not in PARTS]:
        parser.error(f"--part: must be some of {', '.join(PARTS)}, got {unknown[0]!r}")
    if options.per_round + options.in_flight > options.devices:
        parser.error("--devices: must be at least --per-round and --in-flight together")
    curves: dict[str, Curve] = {}
    for part in options.part:
        curve, *others = MEASURES[part](options)
        curves[part] = curve
        text = "\n\n".join([curve.table(), *others])
        if not options.json:
            print(f"{part}\n\n{text}\n", flush=True)
        if options.write is not None:
            write(options.write, part, text)
    if options.json:
        print(msgspec.json.encode(curves).decode())
    return 0


def _tables(options: Any) -> tuple[Curve, str]:
    costs = tables.costs_of(options.devices, options.in_flight, options.per_round, options.repeats)
    setting = tables.Setting(
        round_s=options.plan_round_s,
        share=options.plan_share,
        core_price=options.core_price,
        gb_price=options.gb_price,
    )
    return tables.curve_of(costs), tables.plan(costs[-1], setting)


MEASURES: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "tables": _tables,
    "agents": lambda options: (live.over_agents(options.agents),),
    "models": lambda options: (live.over_model_size(options.sizes),),
    "rounds": lambda options: (live.over_rounds(options.rounds),),
    "replays": lambda options: (replays.over_devices(_powers(100, options.devices)),),
    "replayed-rounds": lambda options: (replays.over_rounds(_powers(100, options.rounds)),),
}
"""Of the parsed options: a curve, and other texts."""


def _powers(first: int, last: int) -> list[int]:
    """Return first, 10 first, 100 first, ... up to last."""
    counts = [first]
    while counts[-1] * 10 <= last:
        counts.append(counts[-1] * 10)
    return counts


def _texts(text: str) -> list[str]:
    return text.split(",")


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _sizes(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def write(page: Path, part: str, text: str) -> None:
    """Replace the tables of a part of the page.

    Raises:
        SystemExit: The page has no place for it.
    """
    begin, end = f"<!-- bench scale --part {part} -->", f"<!-- end of {part} -->"
    changed, count = re.subn(
        f"(?<={re.escape(begin)}\n).*?(?={re.escape(end)})",
        lambda _: f"\n{text}\n\n",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(f"{page}: must have one line {begin!r} before {end!r}")
    page.write_text(changed, encoding="utf-8")
