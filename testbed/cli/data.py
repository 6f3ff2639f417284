"""`fairbed data`: list, verify, show and fetch data sets, and the user's own data."""

import argparse
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import get_args

import msgspec

from fairbed.testbed.cli import DONE, FAILED
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.experiment.data import NAMES, DataConfig, Natural, Partition, data_config
from fairbed.testbed.experiment.datasets.catalogue import DatasetStatus, describe_all, verify
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.datasets.features import Feature
from fairbed.testbed.experiment.datasets.loading import folder_of, load
from fairbed.testbed.experiment.division import divided, picture
from fairbed.testbed.experiment.file import ExperimentError, load_experiment
from fairbed.testbed.experiment.published import PUBLISHED, Published
from fairbed.testbed.progress import Bar, progress
from fairbed.wire.artifact import TaskKind
from fairbed.wire.labels import counted
from fairbed.wire.printable import printable

DEVICES, MAX_DEVICES = 10, 1_000_000
"""Devices that `show` divides data without users over, and most devices."""

MAX_FETCH_S = 86_400.0

MAX_FEATURES = 40
"""Most lines for the columns of a table."""


def main(options: argparse.Namespace) -> int:
    """Run one of the actions; return the exit code."""
    if options.action == "show":
        return _show(options)
    if options.action == "fetch":
        return _fetch(options)
    try:
        found = (_list if options.action == "list" else _verify)(options)
    except (ValueError, ExperimentError) as exc:
        raise UsageError(f"data {options.action}: {exc}") from exc
    if options.json:
        print(msgspec.json.encode(found).decode())
    else:
        for status in found:
            _print_status(status, with_classes=options.action == "verify")
            if options.action == "list" and status.published is not None:
                _print_published(status.published)
    is_good = options.action == "list" or all(status.is_available for status in found)
    return DONE if is_good else FAILED


def _list(options: argparse.Namespace) -> list[DatasetStatus]:
    statuses = {status.name: status for status in describe_all(os.environ)}
    requested = options.what or list(statuses)
    own = {what: _config(what, options) for what in requested if what not in statuses}
    return [statuses.get(what) or _verified(*own[what]) for what in requested]


def _verified(config: DataConfig, task: TaskKind | None, bar: Bar | None = None) -> DatasetStatus:
    status = verify(config, os.environ, task)
    if bar is not None:
        bar.advance()
    return status


def _verify(options: argparse.Namespace) -> list[DatasetStatus]:
    if options.what:
        wanted = [_config(what, options) for what in options.what]
    else:
        available = [status for status in describe_all(os.environ) if status.is_available]
        wanted = [(DataConfig(dataset=status.name), None) for status in available]
    with progress(len(wanted), "data sets", "data verify") as bar:
        return [_verified(config, task, bar) for config, task in wanted]


def _show(options: argparse.Namespace) -> int:
    """Print how a data set is divided over devices; return the exit code."""
    from fairbed.testbed.cli.data_figure import check_suffix, write_figure

    if options.out is not None:
        check_suffix(options.out)
    try:
        config, seed, devices, task = _division_of(options)
        dataset = load(config, seed, os.environ, task=task)
        users = 0 if dataset.device_ids is None else int(dataset.device_ids.max()) + 1
        is_natural = config.partition is None or isinstance(config.partition, Natural)
        n = devices or (users if is_natural else 0) or DEVICES
        least = config.min_examples if options.what.endswith(".toml") else 1
        division = divided(dataset, config.partition, n, least, seed)
    except (ValueError, ExperimentError) as exc:  # a DatasetError is a ValueError
        raise UsageError(f"data show: {exc}") from exc
    title = f"{config.name}, {division.partition}, {n:,} devices"
    if options.json:
        found = {
            "name": config.name,
            "partition": division.partition,
            "classes": list(division.classes),
            "counts": division.counts.tolist(),
        }
        print(msgspec.json.encode(found).decode())
    else:
        print(f"{dataset.description} ({dataset.source})")
        print(f"{title}, seed {seed}")
        print("\n".join(picture(division)))
        for note in dataset.notes:
            print(f"note: {note}")
    if options.out is not None:
        write_figure(division, title, options.out)
        if not options.json:
            print(options.out)
    return DONE


def _division_of(
    options: argparse.Namespace,
) -> tuple[DataConfig, int, int | None, TaskKind | None]:
    """Return the section, the seed, the number of devices and the task of what is shown.

    Raises:
        ValueError: An option breaks a rule.
    """
    devices, seed, task = options.devices, options.seed or 1, None
    if devices is not None and not 1 <= devices <= MAX_DEVICES:
        raise ValueError(f"--devices must be 1 .. {MAX_DEVICES:,}, got {devices}; correct it")
    if options.what.endswith(".toml"):
        experiment = load_experiment(Path(options.what), seed=options.seed)
        config, task = experiment.data, experiment.model.task
        seed, devices = experiment.seed_for("data"), devices or experiment.shards
    else:
        config, _ = _config(options.what, options)
    if options.partition is not None:
        config = msgspec.structs.replace(config, partition=_partition(options.partition))
        config = msgspec.convert(msgspec.to_builtins(config), DataConfig)  # its rules again
    return config, seed, devices, task


def _partition(text: str) -> Partition:
    """Return the partition of `--partition`: its kind, and its first option after a colon."""
    kind, _, value = text.partition(":")
    kinds = {str(each.__struct_config__.tag): each for each in get_args(Partition)}
    if kind not in kinds:
        raise ValueError(f"--partition must be {', '.join(kinds)}, got {text!r}; correct it")
    keys = kinds[kind].__struct_fields__
    if value and not keys:
        raise ValueError(f"--partition {kind} has no option, got {value!r}; leave it out")
    found = {"kind": kind, **({keys[0]: value} if value else {})}
    try:
        made: Partition = msgspec.convert(found, kinds[kind], strict=False)
    except msgspec.ValidationError as exc:
        raise ValueError(f"--partition {kind}: {exc}; correct it") from exc
    return made


def _fetch(options: argparse.Namespace) -> int:
    """Download data sets; return the exit code."""
    from fairbed.testbed.experiment.datasets.fetching import fetch

    unknown = [name for name in options.what if name not in PUBLISHED]
    if unknown:
        raise UsageError(
            f"data fetch: must be {', '.join(PUBLISHED)}, got {unknown[0]!r}; others are not "
            "fetched"
        )
    if not 0.0 < options.timeout <= MAX_FETCH_S:
        raise UsageError(
            f"--timeout: must be above 0, at most {MAX_FETCH_S:g}, got {options.timeout:g}"
        )
    if options.folder is not None and len(options.what) > 1:
        raise UsageError("--folder: is for one data set, got several; fetch them one by one")
    lines = dict[str, list[str]]()
    for name in options.what:
        lines[name] = []
        try:
            folder = Path(options.folder) if options.folder else folder_of(name, os.environ)
            for line in fetch(name, folder, place=options.place, limit_s=options.timeout):
                lines[name].append(line)
                if not options.json:
                    print(f"{name}: {line}")
        except DatasetError as exc:
            raise RunError(f"data fetch: {exc}") from exc
        published = PUBLISHED[name]
        if not options.json:
            print(f"{name}: {published.source} (class {published.licence_class})")
    if options.json:
        print(msgspec.json.encode(lines).decode())
    return DONE


def _config(what: str, options: argparse.Namespace) -> tuple[DataConfig, TaskKind | None]:
    """Return the section of what was named; an experiment file has its own keys and its task."""
    if what.endswith(".toml"):
        experiment = load_experiment(Path(what))
        return experiment.data, experiment.model.task
    config = data_config(
        what,
        label=options.label,
        device=options.device,
        folder=options.folder,
        features=_named(options.features),
        categories=_named(options.categories),
    )
    return config, None


def _named(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _print_status(status: DatasetStatus, *, with_classes: bool) -> None:
    if status.is_available:
        has_n = status.n is not None and status.origin != "own"  # there it describes itself so
        examples = f"{status.n} examples, " if has_n else ""
        hashed = f", sha256 {status.sha256[:12]}" if status.sha256 else ""
        print(f"ok       {status.name:<15} {examples}{status.description} ({status.where}{hashed})")
        for line in _shape_lines(status) if with_classes else ():
            print(f"         {printable(line)}")
        if status.classes and with_classes:
            print(f"         {_classes_text(status)}")
        if status.features and with_classes:
            print("\n".join(f"         {line}" for line in _feature_lines(status.features)))
        for note in status.notes if with_classes else ():
            print(f"         note: {printable(note)}")
        if status.guess:
            print(f"         note: {status.guess}")
    else:
        word = "missing" if status.name in NAMES else "failed"
        problem = status.problem.removeprefix(f"{status.name}: ")
        print(f"{word:<8} {status.name:<15} {printable(problem)}; {status.what_to_do}")


def _print_published(published: Published) -> None:
    """Print the lines of `list` about users, licence and limits."""
    users = f"{published.users} users: {published.users_are}; " if published.users else ""
    print(f"         {users}class {published.licence_class}: {published.source}")
    if published.limit:
        print(f"         limit: {published.limit}")


def _classes_text(status: DatasetStatus) -> str:
    """Return the number of examples or positions of each class, or of examples of each label."""
    found = counted(status.classes, " (--json)")
    if status.positions is None:
        return f"classes: {found}"
    if (perplexity := status.positions.perplexity) is None:
        return f"examples with each label: {found}"
    return f"classes by position: {found}; predicting these shares: perplexity {perplexity:.3f}"


def _shape_lines(status: DatasetStatus) -> Iterator[str]:
    """Yield the lines about tokens of x, and about positions of y."""
    if (tokens := status.tokens) is not None:
        unknown = tokens.unknown_ratio
        more = "" if unknown is None else f"; {unknown:.1%} of the others unknown (token 1)"
        yield (
            f"tokens: {tokens.occurring:,} of {tokens.vocabulary:,} occur; {tokens.shortest:,} .. "
            f"{tokens.longest:,} per example, median {tokens.median:,g}; "
            f"{tokens.padding_ratio:.1%} padding (token 0){more}"
        )
        if tokens.units:
            yield f"vocabulary: {tokens.units}"
    if (positions := status.positions) is not None:
        yield (
            f"targets: shape {positions.shape} per example; {positions.labelled_ratio:.1%} of the "
            f"positions have one, {positions.fewest:,} .. {positions.most:,} per example"
        )


def _feature_lines(features: Sequence[Feature]) -> list[str]:
    """Return a table of the features; of many, columns in a row that are alike are one line."""
    is_listed = len(features) <= MAX_FEATURES
    groups: list[list[Feature]] = (
        [[feature] for feature in features]
        if is_listed
        else [list(same) for _, same in groupby(features, lambda f: (f.kind, f.missing, f.use))]
    )
    rows, start = [("feature", "type", "values", "missing", "x", "used as")], 0
    for same in groups:
        first, width = same[0], sum(feature.width for feature in same)
        name = first.name if len(same) == 1 else f"{first.name} .. {same[-1].name} ({len(same):,})"
        place = f"{start} .. {start + width - 1}" if width > 1 else str(start) if width else ""
        missing = f"{first.missing:,}" if first.kind else ""
        rows.append((name, first.kind, _values(same), missing, place, first.use))
        start += width
    more = len(rows) - 1 - MAX_FEATURES
    rows = rows[: MAX_FEATURES + 1]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [*lines, f"{more:,} more lines (--json)"] if more > 0 else lines


def _values(same: Sequence[Feature]) -> str:
    """Return the range of the values of columns."""
    if len(same) == 1 and same[0].texts:
        return same[0].texts
    lows = [feature.low for feature in same if feature.low is not None]
    highs = [feature.high for feature in same if feature.high is not None]
    return f"{min(lows):.6g} .. {max(highs):.6g}" if lows else ""
