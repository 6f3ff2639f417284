"""`fairbed init`, `new`, `examples`, `config`, `schema`: write and explain experiment files."""

import argparse
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import msgspec

from fairbed.coordinator.task.recipes import MODEL_NAMES, default_recipe
from fairbed.profiles.errors import ProfileError
from fairbed.profiles.load import population_names
from fairbed.testbed.cli import DONE, EXAMPLES
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.experiment.data import (
    NAMES,
    TABLES,
    TABULAR_NAMES,
    TOKEN_NAMES,
    DataConfig,
    data_config,
)
from fairbed.testbed.experiment.datasets.catalogue import ANY_SEED
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.datasets.loading import load
from fairbed.testbed.experiment.file import ExperimentError, parse_experiment, read_document
from fairbed.testbed.experiment.fleet import check_fleet
from fairbed.testbed.experiment.reference import reference_page, schema_text
from fairbed.testbed.experiment.resolved import resolved_lines, resolved_values
from fairbed.testbed.experiment.scaffold import doctor_command, name_problem, scaffold
from fairbed.testbed.experiment.template import SCHEMA_FILE, Answers, experiment_text
from fairbed.wire.text import toml_of

_BASE = re.compile(r'^experiment = "\.\./(.*?)"', re.MULTILINE)

_FOLDER = re.compile(r'^(?:source|client_folder|app) = "([\w-]+)"', re.MULTILINE)
_SCHEMA = "#:schema "
"""Start of the line by which an editor finds the schema."""

DEFAULT_FLEET = "raspberry-pi-zero-2w,raspberry-pi-4b,phone-mid"


def main(options: argparse.Namespace) -> int:
    """Run one of the commands; return the exit code."""
    try:
        return _COMMANDS[options.command](options)
    except ExperimentError as exc:
        raise UsageError(str(exc)) from exc
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise RunError(f"{exc.filename}: {exc.strerror}") from exc


def _config(options: argparse.Namespace) -> int:
    document = read_document(options.experiment)
    of = document, str(options.experiment), options.set, options.seed
    try:
        text = (
            msgspec.json.encode(resolved_values(*of)).decode()
            if options.json
            else "\n".join(resolved_lines(*of))
        )
    except ValueError as exc:
        raise UsageError(f"--set: {exc}") from exc
    print(text)
    return DONE


def _schema(options: argparse.Namespace) -> int:
    print(reference_page() if options.markdown else schema_text(), end="")
    return DONE


def _examples(options: argparse.Namespace) -> int:
    apps = {path.parent.name: path for path in sorted(EXAMPLES.glob("*/pyproject.toml"))}
    files = {
        path.relative_to(EXAMPLES).as_posix(): path
        for path in sorted(EXAMPLES.rglob("*"))
        if path.suffix in (".toml", ".py", ".ipynb")
        and path.relative_to(EXAMPLES).parts[0] not in apps
    }
    if options.name is None:
        texts = {name: _first_comment(path) for name, path in files.items()}
        for name, path in apps.items():
            texts[name] = toml_of(path.read_text(encoding="utf-8"))["project"]["description"]
        texts = dict(sorted(texts.items()))
        if options.json:
            print(msgspec.json.encode(texts).decode())
            return DONE
        width = max(map(len, texts))
        for name, text in texts.items():
            print(f"{name:<{width}}  {text}")
        print("\ncopy one into this folder: fairbed examples NAME")
        return DONE
    if options.name in apps:
        _check_absent(options.name)
        _copy_folder(options.name)
        return DONE
    possible = (f"{options.name}{suffix}" for suffix in ("", ".toml", ".ipynb"))
    found = next((name for name in possible if name in files), None)
    if found is None:
        known = ", ".join(sorted({*files, *apps}))
        raise UsageError(f"examples: no example {options.name!r}; there are: {known}")
    text = files[found].read_text(encoding="utf-8")
    base = _BASE.search(text)  # of a grid: the experiment that its arms change
    names = [found] if base is None else [found, base[1]]
    for name in names:
        _check_absent(Path(name).name)
    for name in names:
        _copy(files[name], Path(Path(name).name))
    data = _FOLDER.search(text)
    if data is not None and (EXAMPLES / data[1]).is_dir() and not Path(data[1]).exists():
        _copy_folder(data[1])
    return DONE


def _check_absent(name: str) -> None:
    """Check that nothing is overwritten.

    Raises:
        UsageError: This folder has a file or folder of this name.
    """
    if Path(name).exists():
        raise UsageError(f"{name}: exists already; remove it, or copy the example elsewhere")


def _copy_folder(name: str) -> None:
    shutil.copytree(EXAMPLES / name, name, ignore=shutil.ignore_patterns("__pycache__"))
    print(f"wrote {name}")


def _copy(source: Path, target: Path) -> None:
    """Copy an example; the files that it names are beside the copy."""
    text = _BASE.sub(r'experiment = "\1"', source.read_text(encoding="utf-8"))
    if text.startswith(_SCHEMA):
        text = f"{_SCHEMA}./{SCHEMA_FILE}\n{text.partition(chr(10))[2]}"
        _write_schema(target.parent)
    target.write_text(text, encoding="utf-8")
    print(f"wrote {target}")


def _first_comment(path: Path) -> str:
    """Return the first sentence of a file; the title of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "".join(json.loads(text)["cells"][0]["source"])
    for line in text.splitlines():
        words = line.lstrip("# ").strip('"')
        if words and not line.startswith("#:"):
            return re.split(r"(?<=[.:]) ", words)[0]
    return ""


def _init(options: argparse.Namespace) -> int:
    target: Path = options.file
    if target.exists():
        raise UsageError(f"{target}: exists already; choose another name: fairbed init FILE")
    answers = _answers(options)
    name = re.sub(r"[^a-zA-Z0-9._-]+", "-", target.stem).strip("-._") or "experiment"
    text = experiment_text(name[:64], target.name, answers)
    try:
        check_fleet(parse_experiment(toml_of(text), "init"), os.environ)
    except ProfileError as exc:
        raise UsageError(f"init: {exc}") from exc
    target.write_text(text, encoding="utf-8")
    _write_schema(target.parent)
    line = shlex.quote(str(target))
    print(f"wrote {target} and {SCHEMA_FILE}\nnext: fairbed replay {line}, fairbed run {line}")
    return DONE


def _new(options: argparse.Namespace) -> int:
    kind, name, folder = options.kind, options.name, options.folder
    if kind == "aggregator":
        kind = options.part or "weights"
    elif options.part is not None:
        raise UsageError(
            f"--part: only an aggregator has parts, got {options.part!r} for {kind}; remove it"
        )
    if problem := name_problem(name):
        raise UsageError(f"new: the name of the module {problem}, got {name!r}")
    files = {folder / file: text for file, text in scaffold(kind, name).items()}
    if found := next((path for path in files if os.path.lexists(path)), None):
        raise UsageError(f"{found}: exists already; choose another name or folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    change = "" if folder == Path() else f"cd {shlex.quote(str(folder))}; "
    print(
        f"wrote {', '.join(map(str, files))}\nnext: {change}{doctor_command(kind, name)}; "
        f"fairbed replay {name}.toml; fairbed run {name}.toml; pytest test_{name}.py"
    )
    return DONE


def _write_schema(folder: Path) -> None:
    (folder / SCHEMA_FILE).write_text(schema_text(), encoding="utf-8")


def _answers(options: argparse.Namespace) -> Answers:
    """Return the values of the options; on a terminal, ask for those that are missing."""
    what = options.dataset or _ask(
        f"Data set ({', '.join(NAMES)}), file, folder of pictures, or package.module:function",
        "digits",
    )
    label = options.label
    if label is None and what.endswith(TABLES):
        label = _ask("Column of the labels", "") or None
    try:
        data = data_config(what, label=label, device=options.device, folder=options.folder)
    except ValueError as exc:
        rule = str(exc).partition("; set label = ")
        advice = "; give --label COLUMN" if rule[1] else ""
        raise UsageError(f"init: {rule[0]}{advice}") from exc
    model = options.model or _ask(
        f"Model ({', '.join(MODEL_NAMES)}, or package.module:Name)", _suitable_model(data)
    )
    profiles = options.devices or _ask(
        "Device profiles or populations, with commas (fairbed profiles list)", DEFAULT_FLEET
    )
    count = _ask("Number of devices", "12") if options.count is None else str(options.count)
    if not (count.isdigit() and int(count) > 0):
        raise UsageError(f"init: the number of devices must be a whole number above 0, got {count}")
    names = [name.strip() for name in profiles.split(",") if name.strip()]
    populations = population_names()
    fleet = [("population" if name in populations else "profile", name) for name in names]
    return Answers(data=data, model=model, fleet=fleet, devices=int(count))


def _suitable_model(config: DataConfig) -> str:
    """Return a model that accepts the examples: a cnn for images, softmax or an mlp for others."""
    if config.dataset in TABULAR_NAMES:
        return "softmax"
    if config.dataset in TOKEN_NAMES:
        return "char-lstm" if config.dataset == "shakespeare" else "text-lstm"
    if not config.is_own:
        return "cnn"
    try:
        data = load(config, ANY_SEED, os.environ)
        if data.x_classes or data.y_shape:
            what = "takes tokens" if data.x_classes else "has targets of this shape"
            raise UsageError(
                f"init: no model that ships {what}, got {data.description}; give --model "
                "char-lstm, text-lstm or word-lstm, or a module of your own: --model "
                "package.module:Name"
            )
        default_recipe("cnn", data.x_shape, data.classes)
    except DatasetError as exc:
        raise UsageError(f"init: {exc}") from exc
    except ValueError:
        return "mlp"
    return "cnn"


def _ask(question: str, default: str) -> str:
    """Return the user's answer; the default without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return default
    return input(f"{question} [{default}]: ").strip() or default


_COMMANDS = {
    "config": _config,
    "schema": _schema,
    "examples": _examples,
    "init": _init,
    "new": _new,
}
