"""How often the context check suspects an honest device, and how often it finds a false claim.

    fairbed bench context-check [--fleets 40] [--rounds 80] [--kinds constant,mixed,traces,people]
                                [--seed 0] [--json]

Each fleet is drawn: one to four groups of shipped profiles with links, a model, training, policy,
cohort size, noise of times, codec and deadline. It is replayed without training, with the check at
its factor of 5. Kinds of fleets:

    constant  the links of the profiles
    mixed     any shipped link, with 60 % of the groups
    traces    links that vary: cellular, satellite, slow broadband, and traces of such links;
              those of FAIRBED_DATA are left out without it
    people    a population of phones, partly available, beside a group of boards
    liars     as mixed; 30 % of the devices claim 10 times their cores and rates, from the start
    late      the same after three honest exchanges

A row has the exchanges, those that were judged, those with a phase of 1 ms or more, and verdicts on
honest devices. Of liars with three false exchanges or more it has their number, the share that was
found, and the median number of false exchanges until then.
"""

import argparse
import os
import random
import statistics
from collections import Counter
from typing import Any

import msgspec

from fairbed.coordinator.algorithms.estimation.context_check import SHORTEST_S
from fairbed.coordinator.report.text_table import TextColumn, table_lines
from fairbed.profiles.load import link_names, names, population_names
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.datasets.loading import FOLDER_VARIABLE
from fairbed.testbed.experiment.file import parse_experiment
from fairbed.testbed.progress import tracked
from fairbed.testbed.replay.engine.engine import ReplayEngine
from fairbed.testbed.replay.setup import setup_of

KINDS = ("constant", "mixed", "traces", "people", "liars", "late")
LYING = {"liars": 0, "late": 3}
"""Honest exchanges of a liar before the first lie."""

FACTOR, SPEED, SHARE = 5.0, 10.0, 0.3
"""Of the check; of the lie; and of the liars in each group."""

VARYING = ("3g", "5g-", "fixed-", "lte-city", "lte-driving", "starlink-", "trace-")
"""Beginnings of the names of links that vary."""

OF_DATA, HAS_DATA = "trace-", bool(os.environ.get(FOLDER_VARIABLE))
"""Beginning of the names of links whose traces are not shipped, and whether they are here."""

PHASE_NAMES = ("download_s", "load_s", "train_s", "upload_s")


class Row(msgspec.Struct, kw_only=True):
    """The fleets of one kind."""

    kind: str
    fleets: int = 0
    exchanges: int = 0
    judged: int = 0
    long: int = 0
    """Exchanges with a phase of `SHORTEST_S` or more."""
    suspected: int = 0
    """Verdicts on honest devices."""
    liars: int = 0
    """Liars with `CONTRADICTIONS` false exchanges or more."""
    found: int = 0
    delays: list[int] = []
    """False exchanges of each liar that was found, until the verdict."""


COLUMNS: tuple[TextColumn[Row], ...] = (
    TextColumn("kind", lambda row: row.kind, "<"),
    TextColumn("fleets", lambda row: f"{row.fleets}"),
    TextColumn("exchanges", lambda row: f"{row.exchanges:,}"),
    TextColumn("of 1 ms", lambda row: f"{row.long:,}"),
    TextColumn("judged", lambda row: f"{row.judged:,}"),
    TextColumn("suspected", lambda row: f"{row.suspected}"),
    TextColumn("liars", lambda row: f"{row.liars}"),
    TextColumn("found", lambda row: f"{row.found}"),
    TextColumn(
        "median delay", lambda row: f"{statistics.median(row.delays):g}" if row.delays else "-"
    ),
)


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the table; return the exit code.

    Raises:
        UsageError: An option is out of range.
    """
    parser = argparse.ArgumentParser(
        prog="fairbed bench context-check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--fleets", type=int, default=40, help="of each kind (default 40)")
    add("--rounds", type=int, default=80, help="of each fleet (default 80)")
    add("--kinds", default=",".join(KINDS), help=f"of fleets (default {','.join(KINDS)})")
    add("--seed", type=int, default=0, help="of the first fleet (default 0)")
    add("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args(arguments)
    kinds = options.kinds.split(",")
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or options.fleets < 1 or options.rounds < 1:
        got = f"--kinds {unknown[0]}" if unknown else f"{options.fleets} and {options.rounds}"
        raise UsageError(
            f"bench context-check: kinds must be among {', '.join(KINDS)}, fleets and rounds at "
            f"least 1, got {got}; see --help"
        )
    rows = []
    for kind in kinds:
        row = Row(kind=kind)
        seeds = list(range(options.seed, options.seed + options.fleets))
        for seed in tracked(seeds, "fleets", kind):
            count(row, draw(kind, seed, options.rounds))
        rows.append(row)
    if options.json:
        print(msgspec.json.encode(rows).decode())
    else:
        print("\n".join(table_lines(COLUMNS, rows, None)))
    return 0


def draw(kind: str, seed: int, rounds: int) -> dict[str, Any]:
    """Return a random experiment of a kind, the same for the same seed."""
    rng = random.Random(f"{kind} {seed}")
    groups = [_group(rng, kind, number) for number in range(rng.randint(1, 4))]
    devices = sum(group["count"] for group in groups)
    per_round = min(devices, rng.randint(2, 10))
    raw: dict[str, Any] = {
        "name": f"{kind}-{seed}",
        "seed": seed,
        "rounds": rounds,
        "data": {"dataset": "digits"},
        "model": {"name": rng.choice(("softmax", "mlp", "cnn"))},
        "training": {"epochs": rng.choice((1, 3, 5)), "batch_size": rng.choice((5, 20, 100))},
        "selection": {
            "policy": rng.choice(("uniform", "rbcs-f", "fedcs")),
            "estimator": rng.choice(("ridge", "phases")),
            "per_round": per_round,
            "beta": min(0.1, 0.5 * per_round / devices),
            "context_check": FACTOR,
        },
        "replay": {"training": False, "noise": rng.choice((0.0, 0.1, 0.3))},
        "emulation": {"start_time": f"{rng.randrange(24):02d}:00"},
        "fleet": groups,
    }
    if rng.random() < 0.5:
        scale = 10.0 ** rng.uniform(-1.0, 1.5)
        costs = {"step_s": 0.02, "example_s": 0.004, "evaluation_step_s": 0.01, "load_s": 1.0}
        costs["evaluation_example_s"] = 0.002
        raw["replay"]["task_costs"] = {name: scale * value for name, value in costs.items()}
    if rng.random() < 0.3:
        spread = {"device": 0.5, "exchange": 0.3}
        raw["noise"] = {part: spread for part in ("download", "compute", "upload")}
    if rng.random() < 0.3:
        raw["round"] = rng.choice(({"mode": "async", "buffer": 2}, {"deadline_s": 2.0}))
    if rng.random() < 0.2:
        packed = {"up": "top-k", "top_k": 0.1, "down": "delta"}
        raw["exchange"] = rng.choice((packed, {"up": "int8", "down": "int8"}))
    return raw


def _group(rng: random.Random, kind: str, number: int) -> dict[str, Any]:
    """Return a random group of devices."""
    group: dict[str, Any] = {"name": f"g{number}", "count": rng.randint(2, 8)}
    if kind == "people" and number == 0:
        group |= {"population": rng.choice(population_names()), "count": rng.randint(5, 30)}
    else:
        group["profile"] = rng.choice(names())
        links = [name for name in link_names() if HAS_DATA or not name.startswith(OF_DATA)]
        if kind == "traces":
            links = [name for name in links if name.startswith(VARYING)]
        if kind == "traces" or (kind != "constant" and rng.random() < 0.6):
            group["link"] = rng.choice(links)
    if rng.random() < 0.5:
        group["always_available"] = True
    if kind in LYING:
        group["malicious"] = {
            "kind": "lying-context",
            "share": SHARE,
            "speed": SPEED,
            "honest_exchanges": LYING[kind],
        }
    return group


def count(row: Row, raw: dict[str, Any]) -> None:
    """Replay a fleet and add what the check found to a row."""
    setup = setup_of(parse_experiment(raw, raw["name"]))
    engine = ReplayEngine(setup.decisions, setup.world, attacks=setup.attacks)
    liars = {one for one, attack in setup.attacks.items() if attack.kind == "lying-context"}
    trained, delay = Counter[int](), dict[int, int]()
    honest = LYING.get(row.kind, 0)
    for replayed in engine.replay(setup.experiment.rounds):
        judged, unjudged = setup.decisions.contexts_judged or (0, 0)
        row.judged += judged
        row.exchanges += judged + unjudged
        for x in replayed.over:
            trained[x.row] += x.has_trained
            row.long += x.has_trained and any(getattr(x, p) >= SHORTEST_S for p in PHASE_NAMES)
        for change in replayed.context_changes:
            if change.is_distrusted and change.row in liars:
                delay.setdefault(change.row, trained[change.row] - honest)
            elif change.is_distrusted:
                row.suspected += 1
    lying = [one for one in liars if trained[one] - honest >= 3]
    row.fleets += 1
    row.liars += len(lying)
    row.found += sum(one in delay for one in lying)
    row.delays += [delay[one] for one in lying if one in delay]
