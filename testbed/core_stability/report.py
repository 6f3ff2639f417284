"""The report of `fairbed core`: verdicts on finished runs, and the numbers behind them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct
from threadpoolctl import ThreadpoolController

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.core_stability import (
    dominating,
    fit_softmax,
    gain,
    largest_blocked_m,
    proportionality,
    pseudo_core_factor,
    smallest_valid_m,
    strongest_coalition,
)
from fairbed.coordinator.algorithms.fairness import summarise_utilities
from fairbed.coordinator.report.quantities import MISSING, seconds
from fairbed.testbed.core_stability.coalitions import (
    Alternatives,
    GameModels,
    coalitions_of,
    default_kinds,
    named,
    run_epochs,
)
from fairbed.testbed.core_stability.finished_runs import FinishedRun, Game
from fairbed.testbed.errors import UsageError
from fairbed.wire.artifact import TaskSpec
from fairbed.wire.shard import strata

SPLITS = {"train": "training", "test": "held-out"}
"""Values of `--split` in words."""

CONVEX_MODELS = ("softmax",)
"""Models whose loss is convex in the parameters: one fit finds the best model of any weights."""

MAX_FIT_VALUES = 50_000_000
"""Largest product of examples and features for the certificate: a minute, and a gigabyte."""

GAP_RADIUS = 10.0
"""The certificate holds within this many distances between the fit and the model."""

RADIUS_RATIO = 0.01
"""Radius of the local guarantee of a network without `--radius`, relative to |theta|."""

IN_CORE = 1e-3
"""A certificate of at most 1 + this is called in the core: no run ends exactly at the optimum."""

LARGE_M = 10.0
"""An M above this many times the smallest valid one is noted."""

MAX_LISTED = 20
"""Most devices in the table."""

MORE_TRAINING = "which more training may end"
"""What helps a model that is not Pareto-optimal."""

MAX_LOG10 = 300.0
"""Products above 10^300 are shown by their exponent."""


class StrongestCoalition(Struct, frozen=True, kw_only=True):
    """The coalition with the most to gain, over all tested models."""

    devices: list[str]
    model: str
    """The model that it would take."""
    ratios: dict[str, float]
    """u_i(theta') / u_i(theta) of its members."""
    needed: float
    """W / W_S: n / |S| without weights."""
    margin: float
    """Least ratio / needed: the core margin."""
    is_blocking: bool


class Certificate(Struct, frozen=True, kw_only=True):
    """Upper bound over all models, for a convex loss."""

    factor: float
    """max over theta' of sum_i w_i u_i(theta') / u_i(theta) / W; at least 1, 1 is the core."""
    gap: float
    """The largest error of the factor, for models within `radius` of the fitted one."""
    radius: float
    """L2 distance of parameters."""


class LocalGuarantee(Struct, frozen=True, kw_only=True):
    """Theorem 3: (k, r)-pseudo core stability, with an estimated smoothness."""

    radius: float
    """r, L2 distance of parameters."""
    gradient_norm: float
    """|sum_i w_i grad F_i / u_i|."""
    smoothness: float
    """B, the largest that was found within r: a lower bound."""
    factor: float
    """k."""


class AgainstRun(Struct, frozen=True, kw_only=True):
    """Another run as the alternative."""

    ratio_sum: float
    """sum_i w_i u_i(other) / u_i(this), times n / W: below n no coalition blocks with it."""
    margin: float
    """Core margin with it alone."""


class RunVerdict(Struct, frozen=True, kw_only=True):
    """One finished run."""

    run: str
    folder: str
    rule: str
    round: int
    utilities: dict[str, float]
    """u_i = M - F_i by device, nats."""
    average: float
    """U(Average)."""
    product: float | None
    """U(Multi); null where it is too large for a number."""
    log_product: float
    least: float
    strongest: StrongestCoalition | None
    """Null without an alternative."""
    smaller: StrongestCoalition | None
    """The same without the coalition of all devices, which blocks if more training helps all."""
    smallest_valid_M: float
    blocked_up_to_M: float | None
    """Largest M at which a coalition blocks; null: at none, or `is_dominated`: at all."""
    is_dominated: bool
    """A tested model is better for a device and worse for none: not Pareto-optimal."""
    dominated_by: str | None
    proportionality: float
    """Least u_i / (w_i / W best_i) over devices; proportional if at least 1."""
    proportionality_device: str
    certificate: Certificate | None
    """Null for a model with a loss that is not convex."""
    local: LocalGuarantee | None
    against: dict[str, AgainstRun]
    """By the name of the other run."""


class CoreReport(Struct, frozen=True, kw_only=True):
    """Core stability of finished runs of one game."""

    M: float
    M_from: str
    """Where M comes from."""
    smallest_valid_M: float
    """Above every loss of every run; utilities of alternatives may be negative."""
    smallest_valid_M_tested: float
    """Above every loss of every tested model, as the paper defines M."""
    split: str
    """Examples on which utilities are measured: train or test."""
    examples: dict[str, int]
    """Their number by device."""
    weights: dict[str, float]
    """w_i by device."""
    coalitions: list[str]
    """Kinds of coalitions."""
    models: int
    """Number of trained models."""
    epochs: int
    """Passes of each coalition over its examples."""
    example_passes: int
    """Examples of all mini-batches: the cost."""
    train_s: float
    seed: int
    best: dict[str, float]
    """Largest utility of each device under any tested model."""
    fedavg: dict[str, float] | None
    """Utilities under FedAvg of all devices, trained here; null if a run is one, or none was
    trained, or it diverged."""
    runs: list[RunVerdict]
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOptions:
    """What to test."""

    M: float | None = None
    weights: str = "equal"
    split: str = "train"
    coalitions: tuple[str, ...] | None = None
    """None: all for up to 6 devices, else local and leave-one-out."""
    epochs: int | None = None
    """None: as many as a device made in the run."""
    radius: float | None = None
    """None: 1 % of |theta| for a network, and no local guarantee for a convex model."""
    seed: int = 0
    threads: int = 1


def core_report(
    runs: Sequence[FinishedRun],
    game: Game,
    options: CoreOptions,
    announce: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> CoreReport:
    """Return the core stability of finished runs.

    Args:
        runs: The runs.
        game: Their game.
        options: What to test.
        announce: Called with the cost before models are trained.
        progress: Called with the number of trained models, and of all.

    Raises:
        UsageError: An option or a run breaks a rule.
        EngineError: The engine cannot run the model.
        ExperimentError: The engine of the experiment cannot train it.
    """
    game, rows, notes = _split(game, options.split)
    notes += [
        f"malicious in {run.name}: {named(sorted(run.malicious), game.names)}; utilities and "
        "models of coalitions are those of their true examples"
        for run in runs
        if run.malicious
    ]
    w, n = _weights(options.weights, game), len(game.names)
    rng = np.random.default_rng([options.seed, 0])
    kinds = options.coalitions or default_kinds(n)
    coalitions = coalitions_of(kinds, n, rng)
    models = GameModels(game, rows, coalitions, options.threads)
    try:
        losses = np.array([_losses(models, run) for run in runs])
        M, M_from = _upper_bound(options.M, runs, losses, game.names)
        epochs = options.epochs or run_epochs(game.experiment)
        fedavg = bool(coalitions) and all(
            run.experiment.aggregation.rule != "fedavg" for run in runs
        )
        if coalitions:
            announce(_cost(models, game, coalitions, epochs, kinds))
        trained = models.train(epochs, options.seed, fedavg=fedavg, progress=progress)
        trained, diverged = trained.finite(), len(trained.titles) - len(trained.finite().titles)
        tested = _Tested(
            titles=tuple(f"run {run.name}" for run in runs) + trained.titles,
            losses=np.vstack([losses, trained.losses]),
        )
        certify = _certifier(game, rows, w, notes)
        verdicts = [
            _verdict(
                at, runs, game.names, M, w, tested, certify, _local(models, run, w, options, game)
            )
            for at, run in enumerate(runs)
        ]
    finally:
        models.close()
    if diverged:
        notes.append(f"{diverged} trained models diverged and are left out")
    best = M - tested.losses.min(axis=0)
    notes += _notes(losses, tested, trained, M, w)
    if not coalitions and not any(v.rule == "fedavg" for v in verdicts):
        notes.append("no model of FedAvg under the same M: no run is one, and none was trained")
    return CoreReport(
        M=M,
        M_from=M_from,
        smallest_valid_M=smallest_valid_m(losses),
        smallest_valid_M_tested=smallest_valid_m(tested.losses),
        split=options.split,
        examples=dict(zip(game.names, map(len, rows), strict=True)),
        weights=_by_name(game.names, w),
        coalitions=list(kinds),
        models=len(trained.titles),
        epochs=trained.epochs,
        example_passes=trained.example_passes,
        train_s=trained.train_s,
        seed=options.seed,
        best=_by_name(game.names, best),
        fedavg=None
        if trained.fedavg is None
        else _by_name(game.names, M - trained.losses[trained.fedavg]),
        runs=verdicts,
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class _Tested:
    """All tested models: first the runs, then those that were trained."""

    titles: tuple[str, ...]
    losses: Floats
    """Shape (A, n)."""

    def without(self, at: int) -> "_Tested":
        """Return the models without one, which is judged."""
        titles = (*self.titles[:at], *self.titles[at + 1 :])
        return _Tested(titles, np.delete(self.losses, at, axis=0))


def _split(game: Game, split: str) -> tuple[Game, tuple[Ints, ...], list[str]]:
    """Return the game of the devices with examples in a split, their rows there, and notes."""
    rows = game.train_rows if split == "train" else game.test_rows
    kept = [at for at, of_device in enumerate(rows) if len(of_device)]
    if len(kept) < 2:
        raise UsageError(
            f"--split {split}: at least 2 devices must have such examples, got {len(kept)} of "
            f"{len(game.names)}; raise data.test_fraction, or use --split train"
        )
    notes = []
    if len(kept) < len(rows):
        left = ", ".join(game.names[at] for at in range(len(rows)) if at not in kept)
        notes.append(f"without {SPLITS[split]} examples, and therefore left out: {left}")
        game = Game(
            names=tuple(game.names[at] for at in kept),
            dataset=game.dataset,
            train_rows=tuple(game.train_rows[at] for at in kept),
            test_rows=tuple(game.test_rows[at] for at in kept),
            artifact=game.artifact,
            experiment=game.experiment,
        )
    rows = tuple(rows[at] for at in kept)
    seen = np.unique(game.dataset.y[np.concatenate(rows)])
    absent = sorted(set(range(game.dataset.classes)) - set(seen.tolist()))
    if absent:
        what = "class" if len(absent) == 1 else "classes"
        notes.append(
            f"no device has {SPLITS[split]} examples of {what} {', '.join(map(str, absent))}: the "
            "utilities are without them"
        )
    return game, rows, notes


def _weights(text: str, game: Game) -> Floats:
    """Return w_i, shape (n,), from `equal`, `n` or `NAME=W,...`."""
    if text in ("equal", "n"):
        sizes = [len(rows) if text == "n" else 1 for rows in game.train_rows]
        return np.array(sizes, dtype=np.float64)
    found = dict.fromkeys(game.names, 1.0)
    for part in text.split(","):
        name, _, number = part.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if name not in found:
            raise UsageError(
                f"--weights: must be equal, n, or NAME=W with commas, got {part!r}; the devices "
                f"are {', '.join(game.names[:MAX_LISTED])}"
            )
        if not 0.0 < value < math.inf:
            raise UsageError(
                f"--weights: the weight of {name} must be a number > 0, got {number!r}; write "
                f"{name}=2"
            )
        found[name] = value
    return np.array(list(found.values()))


def _losses(models: GameModels, run: FinishedRun) -> Floats:
    losses = models.losses(run.vector)
    if not np.isfinite(losses).all():
        raise UsageError(
            f"{run.folder}: the loss of its model must be finite on every device, got one that is "
            "not; the model has diverged, lower training.learning_rate"
        )
    return losses


def _upper_bound(
    M: float | None, runs: Sequence[FinishedRun], losses: Floats, names: Sequence[str]
) -> tuple[float, str]:
    """Return M and where it comes from; see `CoreReport`."""
    at, device = (int(i) for i in np.unravel_index(losses.argmax(), losses.shape))
    smallest = smallest_valid_m(losses)
    if M is not None:
        where, source = f"--M {M:g}", "--M"
    else:
        ruled = [run for run in runs if run.experiment.aggregation.rule == "corefed"] or runs[:1]
        found = {run.experiment.aggregation.M for run in ruled}
        if len(found) > 1:
            raise UsageError(
                f"--M: must be given, as aggregation.M is {', '.join(f'{m:g}' for m in found)} in "
                "these runs: utilities compare only under the same M"
            )
        M, source = found.pop(), f"aggregation.M of {ruled[0].name}"
        where = f"{ruled[0].folder}: aggregation.M"
    if not losses.max() < M:
        raise UsageError(
            f"{where}: M must be above every loss of the runs, got M = {M:g} and a loss of "
            f"{losses.max():.4g} on {names[device]} in {runs[at].name}; the smallest valid one is "
            f"--M {_up(smallest)}"
        )
    return M, source


def _up(value: float) -> str:
    """Return a number rounded up to four digits after the point."""
    return f"{math.ceil(value * 1e4) / 1e4:.4f}"


def _cost(
    models: GameModels,
    game: Game,
    coalitions: Sequence[tuple[int, ...]],
    epochs: int,
    kinds: Sequence[str],
) -> str:
    sizes = [len(rows) for rows in game.train_rows]
    passes = epochs * sum(sizes[device] for members in coalitions for device in members)
    return (
        f"training {len(coalitions)} models of coalitions ({', '.join(kinds)}), {epochs} epochs "
        f"each: {passes:,} examples in all; --epochs and --coalitions change that"
    )


def _is_convex(spec: TaskSpec) -> bool:
    """Return whether `fit_softmax` finds the best model of a task."""
    return spec.model in CONVEX_MODELS and spec.kind == "classification"


def _certifier(
    game: Game, rows: Sequence[Ints], w: Floats, notes: list[str]
) -> Callable[[FinishedRun, Floats, float], Certificate] | None:
    """Return the function that certifies a run by one convex fit; None if it cannot."""
    if not _is_convex(game.artifact.spec):
        return None
    picked = np.concatenate(rows)
    x = game.dataset.x[picked].reshape(len(picked), -1)
    if x.size > MAX_FIT_VALUES:
        notes.append(
            f"no certificate: {x.size:,} values of examples are more than {MAX_FIT_VALUES:,}"
        )
        return None
    inputs = x.astype(np.float64)
    if x.dtype == np.uint8:  # pixels, as in `wire.shard`
        inputs /= 255.0
    y, sizes = strata(game.dataset.y[picked]), np.array([len(of_device) for of_device in rows])
    device = np.repeat(np.arange(len(rows)), sizes)

    def losses(theta: Floats) -> Floats:
        z = inputs @ theta[:, :-1].T + theta[:, -1]
        z -= z.max(axis=1, keepdims=True)
        each = np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y]
        found: Floats = np.bincount(device, each, len(rows)) / sizes
        return found

    def certify(run: FinishedRun, own: Floats, M: float) -> Certificate:
        u, total = M - own, float(w.sum())
        views = game.artifact.spec.layout.views(run.vector)
        weight, bias = (views[t.name] for t in game.artifact.spec.layout.tensors)
        theta = np.column_stack([weight, bias]).astype(np.float64)
        with ThreadpoolController().limit(limits=1, user_api="blas"):  # other programs run, too
            fit = fit_softmax(inputs, y, (w / (u * sizes))[device], game.dataset.classes)
        radius = GAP_RADIUS * float(np.linalg.norm(fit.theta - theta))
        return Certificate(
            factor=max(1.0, gain(u, M - losses(fit.theta), w)),
            gap=fit.gap(radius) / total,
            radius=radius,
        )

    return certify


def _local(
    models: GameModels, run: FinishedRun, w: Floats, options: CoreOptions, game: Game
) -> Callable[[Floats], LocalGuarantee] | None:
    """Return the function that computes Theorem 3 from utilities; None where it does not apply."""
    spec = game.artifact.spec
    if spec.layout.n_values > spec.layout.n_params:
        return None
    if options.radius is None and _is_convex(spec):
        return None
    radius = options.radius or RADIUS_RATIO * float(np.linalg.norm(run.vector))

    def guarantee(u: Floats) -> LocalGuarantee:
        gradient = (w / u) @ models.gradients(run.vector)
        norm = float(np.linalg.norm(gradient))
        smoothness = models.smoothness(run.vector, radius, options.seed)
        return LocalGuarantee(
            radius=radius,
            gradient_norm=norm,
            smoothness=smoothness,
            factor=pseudo_core_factor(u, norm, smoothness, radius, w),
        )

    return guarantee


def _verdict(
    at: int,
    runs: Sequence[FinishedRun],
    names: Sequence[str],
    M: float,
    w: Floats,
    tested: _Tested,
    certify: Callable[[FinishedRun, Floats, float], Certificate] | None,
    local: Callable[[Floats], LocalGuarantee] | None,
) -> RunVerdict:
    run, own, others = runs[at], tested.losses[at], tested.without(at)
    u, found = M - own, summarise_utilities(own, M)
    by = dominating(-own, -others.losses)
    limit = largest_blocked_m(own, others.losses, w)
    shares = proportionality(u, M - tested.losses.min(axis=0), w)
    total = len(names)
    return RunVerdict(
        run=run.name,
        folder=str(run.folder),
        rule=run.experiment.aggregation.rule,
        round=run.round,
        utilities=_by_name(names, u),
        average=found.average,
        product=found.product if math.isfinite(found.product) else None,
        log_product=found.log_product,
        least=found.least,
        strongest=_strongest(u, M, names, w, others, is_proper=False),
        smaller=_strongest(u, M, names, w, others, is_proper=True),
        smallest_valid_M=smallest_valid_m(own),
        blocked_up_to_M=None if limit is None or math.isinf(limit) else limit,
        is_dominated=by is not None,
        dominated_by=None if by is None else others.titles[by],
        proportionality=float(shares.min()),
        proportionality_device=names[int(shares.argmin())],
        certificate=None if certify is None else certify(run, own, M),
        local=None if local is None else local(u),
        against={
            other.name: AgainstRun(
                ratio_sum=total * gain(u, M - tested.losses[j], w),
                margin=strongest_coalition(u, M - tested.losses[j : j + 1], w).margin,
            )
            for j, other in enumerate(runs)
            if j != at
        },
    )


def _strongest(
    u: Floats, M: float, names: Sequence[str], w: Floats, others: _Tested, *, is_proper: bool
) -> StrongestCoalition | None:
    if not others.titles:
        return None
    found = strongest_coalition(u, M - others.losses, w, is_proper=is_proper)
    ratios = (M - others.losses[found.alternative]) / u
    members = found.members.tolist()
    return StrongestCoalition(
        devices=[names[i] for i in members],
        model=others.titles[found.alternative],
        ratios={names[i]: float(ratios[i]) for i in members},
        needed=float(w.sum() / w[found.members].sum()),
        margin=found.margin,
        is_blocking=found.is_blocking,
    )


def _notes(
    runs_losses: Floats, tested: _Tested, trained: Alternatives, M: float, w: Floats
) -> list[str]:
    """Return what limits the verdicts, one line each."""
    notes = []
    smallest, first = smallest_valid_m(runs_losses), len(runs_losses)
    limits = [  # of the models of single devices, which are unfair to all others
        largest_blocked_m(trained.losses[at], tested.without(first + at).losses, w) or 0.0
        for at, members in enumerate(trained.members)
        if len(members) == 1
    ]
    if limits and max(limits) < M:
        notes.append(
            f"M = {M:g} separates nothing: not even the model of a single device is blocked above "
            f"{max(limits):.4g}; take a smaller --M"
        )
    elif smallest * LARGE_M < M:
        notes.append(
            f"M = {M:g} is {M / smallest:.0f} times the smallest valid one: ratios of utilities "
            "are near 1, so that most models look stable; try a smaller --M"
        )
    return notes


def _by_name(names: Sequence[str], values: Floats) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))


def core_table(report: CoreReport) -> str:
    """Return the report as text: what was tested, utilities by device, a verdict per run."""
    parts = [_head(report), _utilities(report)]
    parts += [_run(report, verdict) for verdict in report.runs]
    if report.notes:
        parts.append([f"note       {note}" for note in report.notes])
    return "\n\n".join("\n".join(part) for part in parts)


def _head(r: CoreReport) -> list[str]:
    tested = f"{len(r.runs)} run{'s' if len(r.runs) > 1 else ''}"
    if r.models:
        tested += (
            f" and {r.models} trained models ({', '.join(r.coalitions)}; {r.epochs} epochs each, "
            f"{seconds(r.train_s)} s, seed {r.seed})"
        )
    lines = [
        f"utility    u = M - loss on the {SPLITS[r.split]} examples of each device",
        f"M          {r.M:g}, from {r.M_from}; the smallest valid M is {_up(r.smallest_valid_M)}",
        f"tested     {tested}",
    ]
    if _has_weights(r):
        lines.append("weights    a coalition S needs W / W_S, with the weights in the table")
    return lines


def _has_weights(r: CoreReport) -> bool:
    return len(set(r.weights.values())) > 1


def _utilities(r: CoreReport) -> list[str]:
    """Return the utilities by device, one column per run, as lines of a table."""
    columns = {verdict.run: verdict.utilities for verdict in r.runs}
    if r.fedavg is not None:
        columns["FedAvg here"] = r.fedavg
    names, has_weights = list(r.examples), _has_weights(r)
    rows = [["device", "examples", *(["weight"] if has_weights else []), *columns, "best"]]
    for name in names[:MAX_LISTED]:
        given = [f"{r.weights[name]:g}"] if has_weights else []
        u = [f"{of_run[name]:.3f}" for of_run in (*columns.values(), r.best)]
        rows.append([name, str(r.examples[name]), *given, *u])
    blank = [""] * (2 if has_weights else 1)
    if len(names) > MAX_LISTED:
        rows.append([f"and {len(names) - MAX_LISTED} more", *blank, *[""] * (len(columns) + 1)])
    of_runs = [np.array(list(of_run.values())) for of_run in columns.values()]
    rows.append(["U(Average)", *blank, *(f"{of_run.mean():.3f}" for of_run in of_runs), ""])
    rows.append(["U(Multi)", *blank, *map(_product, of_runs), ""])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{'<' if i == 0 else '>'}{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _product(u: Floats) -> str:
    """Return U(Multi); unknown if a utility is not positive, or the product is too large."""
    if u.min() <= 0.0:
        return MISSING
    log10 = float(np.log10(u).sum())
    return f"{10.0**log10:.4g}" if log10 < MAX_LOG10 else f"1e{log10:.0f}"


def _run(r: CoreReport, v: RunVerdict) -> list[str]:
    names, c, k = list(r.examples), v.certificate, v.local
    n = len(names)
    pairs = [("verdict", _verdict_text(v, names))]
    if v.strongest is not None and v.smaller is not None:
        pairs.append(("margin", _margin_text(v.strongest, names)))
        if len(v.strongest.devices) == n:
            pairs.append(("smaller", _margin_text(v.smaller, names)))
        better = f"no: the {v.dominated_by} is better for some devices and worse for none"
        pairs.append(("Pareto", better if v.is_dominated else "yes, among the tested models"))
        pairs.append(("M", _m_text(v)))
    holds = "yes" if v.proportionality >= 1.0 else "no"
    share = "w_i / W" if _has_weights(r) else f"1/{n}"
    pairs.append(
        (
            "proportion",
            f"{holds}: each device has at least {v.proportionality:.3f} times {share} of its best "
            f"utility (least: {v.proportionality_device})",
        )
    )
    needs = "W / W_S" if _has_weights(r) else "n/|S|"
    if c is not None:
        pairs.append(
            (
                "certificate",
                f"no model at all gives each member of a coalition S over {c.factor:.6f} {needs} "
                f"times its utility (error at most {c.gap:.0e})",
            )
        )
    if k is not None:
        pairs.append(
            (
                "local",
                f"no model within r = {k.radius:.3g} gives each member of a coalition S over "
                f"{k.factor:.4f} {needs} times its utility, if the losses are "
                f"{k.smoothness:.3g}-smooth there (estimated)",
            )
        )
    pairs += [
        (
            "against",
            f"{name}: sum of u({name}) / u is {other.ratio_sum:.4f}, n = {n}; "
            f"margin {other.margin:.4f}",
        )
        for name, other in v.against.items()
    ]
    return [f"{v.run} ({v.rule}, round {v.round})", *(f"  {key:<13}{text}" for key, text in pairs)]


def _verdict_text(v: RunVerdict, names: Sequence[str]) -> str:
    c = v.certificate
    if v.smaller is not None and v.smaller.is_blocking:
        devices = v.smaller.devices
        text = f"blocked by {len(devices)} of {len(names)} devices: {named(devices, names)}"
        return f"{text}. Nor is it Pareto-optimal, {MORE_TRAINING}" if v.is_dominated else text
    if v.is_dominated:
        return f"blocked only by all devices together: it is not Pareto-optimal, {MORE_TRAINING}"
    if c is not None and c.factor + c.gap <= 1.0 + IN_CORE:
        return f"in the core up to a factor of {c.factor + c.gap:.6f}, by the certificate"
    if v.strongest is None:
        return "unknown, no other model was tested"
    return "no coalition blocks it with a tested model; that is evidence, not a proof"


def _margin_text(s: StrongestCoalition, names: Sequence[str]) -> str:
    least, most = min(s.ratios.values()), max(s.ratios.values())
    span = f"{least:.4f}" if len(s.ratios) == 1 else f"{least:.4f} to {most:.4f}"
    return (
        f"{s.margin:.4f}: {named(s.devices, names)} would have {span} times the utility with the "
        f"{s.model}; {s.needed:.4f} blocks"
    )


def _m_text(v: RunVerdict) -> str:
    if v.is_dominated:
        return "blocked at every M, as it is not Pareto-optimal"
    if v.blocked_up_to_M is None:
        return "not blocked at any valid M"
    return f"blocked for M from {_up(v.smallest_valid_M)} to {v.blocked_up_to_M:.4f}, not above"
