"""`fairbed`: parse the command line and run a command, which imports its own heavy modules."""

import argparse
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

from fairbed.testbed import rooms
from fairbed.testbed.api import RUNS
from fairbed.testbed.cli import BAD_USAGE, DONE, EXAMPLES, FAILED, NOT_BEGUN, dispatch
from fairbed.testbed.cli.completion import complete
from fairbed.testbed.cli.data_options import add_data, add_data_keys
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.host.termination import (
    STOPPING,
    Terminated,
    raised_by_signals,
    signals_restored,
)
from fairbed.testbed.host.threads import BLAS_WAITS
from fairbed.testbed.shape.options import add_options as add_shape_options
from fairbed.testbed.shape.options import split_command
from fairbed.wire.console import name_problem, print_anything, read_names_as_utf_8
from fairbed.wire.errors import innermost
from fairbed.wire.printable import printable


def console() -> int:
    """Run one command as the process `fairbed`; return its exit code."""
    code = main()
    for number in STOPPING:  # only the shutdown of the interpreter follows
        signal.signal(number, signal.SIG_IGN)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0 done, 1 failed, 2 bad usage or configuration."""
    if arguments is None:
        read_names_as_utf_8()
    print_anything()
    if "_ARGCOMPLETE" in os.environ:
        complete(make_parser())
    own, argv = split_command(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parsed(own)
    except UsageError as exc:
        print(f"fairbed: {printable(str(exc))}", file=sys.stderr)
        return BAD_USAGE
    options.argv = argv
    if options.command is None:
        make_parser().print_help()
        return BAD_USAGE
    begins_run = options.command in ("run", "coordinator")
    if begins_run and "numpy" not in sys.modules:
        os.environ.setdefault(*BLAS_WAITS)
    with signals_restored():
        try:
            # Before the run handles them, a signal ends it as later: gracefully, with status 0.
            with raised_by_signals() if begins_run else nullcontext():
                return dispatch(options)
        except Terminated:
            if not begins_run:
                raise
            return _not_begun()
        except UsageError as exc:
            return _fail(options, exc, BAD_USAGE)
        except RunError as exc:
            return _fail(options, exc, FAILED)
        except BrokenPipeError:
            sys.stderr.close()
            return FAILED
        except Exception as exc:
            # Python 3.11 makes a RuntimeError of what is raised while a class is made.
            if begins_run and isinstance(exc.__cause__, Terminated):
                return _not_begun()
            if hasattr(options, "debug"):
                traceback.print_exc()
            if problem := name_problem(innermost(exc)):
                print(f"fairbed: {problem}", file=sys.stderr)
                return BAD_USAGE
            line = f"{type(exc).__name__}: {exc}".splitlines()[0]
            print(f"fairbed: internal error: {line}; --debug prints the traceback", file=sys.stderr)
            return FAILED
        except KeyboardInterrupt:
            print("fairbed: interrupted", file=sys.stderr)
            return 130


def _not_begun() -> int:
    """Report that a signal has ended a run before it began; return the exit status."""
    print(f"fairbed: {NOT_BEGUN}", file=sys.stderr)
    return DONE


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line.

    The parser of the core is tried first: a command that uses no room reads no door.

    Raises:
        UsageError: A command or an option is of a room that this installation lacks.
    """
    try:
        options, extra = make_parser(_CoreParser).parse_known_args(words)
        if not extra and not options.asks_rooms and options.command is not None:
            return options
    except _NotOfCore:
        pass
    named = next((word for word in words if not word.startswith("-")), "")
    if room := rooms.absent("commands", named):
        raise UsageError(rooms.lacking(named, room))
    parser = make_parser()
    options, extra = parser.parse_known_args(words)
    for option in (word.partition("=")[0] for word in extra):
        if room := rooms.absent("options", f"{options.command} {option}"):
            raise UsageError(rooms.lacking(option, room))
    if extra:
        parser.error(f"unrecognized arguments: {' '.join(extra)}{_hint(options)}")
    return options


class _Parser(argparse.ArgumentParser):
    """Adds to an error what was meant by a word that is no command."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit."""
        word = re.search(r"argument (?:COMMAND|ACTION): invalid choice: '([^']*)'", message)
        super().error(message + (_meant(word[1]) if word else ""))


class _NotOfCore(Exception):
    """The core cannot parse a command line; a room may."""


class _CoreParser(_Parser):
    """Parses what is of the core; all else, `--help` included, is not."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "add_help": False})

    def error(self, message: str) -> NoReturn:
        """Leave the line to the parser with rooms."""
        raise _NotOfCore(message)


def _meant(word: str) -> str:
    from fairbed.wire.command_line import MEANINGS, usage

    for room in rooms.rooms():
        for command in room.commands.values():
            if word in command.meanings:
                return f"; {command.meanings[word]}"
    action = next((one for one in MEANINGS if one == word), None)
    return f"; it is for a live run: fairbed command RUN {usage(action)}" if action else ""


def _hint(options: argparse.Namespace) -> str:
    """Return how an argument is given that a command does not take by its place."""
    if options.hint:
        return f"; {options.hint.format_map(vars(options))}"
    if options.command in ("replay", "run", "coordinator"):
        return "; an experiment is one file, and a key is set by --set KEY=VALUE"
    return f"; see: fairbed {options.command} --help" if options.command else ""


def _fail(options: argparse.Namespace, exc: Exception, code: int) -> int:
    if hasattr(options, "debug"):
        traceback.print_exception(exc)
    print(f"fairbed: {printable(str(exc))}", file=sys.stderr)  # one line
    return code


class _Version(argparse.Action):
    """Reads the version only for `--version`, as that costs an import."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"fairbed {version('fairbed')}")
        parser.exit()


def make_parser(kind: type[_Parser] = _Parser) -> argparse.ArgumentParser:
    """Return the parser of `fairbed`: with what rooms add, or of the core alone."""
    common = kind(add_help=False)
    common.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print tracebacks and debug logs",
    )
    parser = kind(
        prog="fairbed",
        description="Edge-device federated-learning testbed with a terminal control room.",
        parents=[common],
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and stop")
    parser.set_defaults(has_rooms=False, asks_rooms=False, module=None, takes=(), hosts=None)
    parser.set_defaults(hint="")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[common])

    demo = command("demo", "run the quickstart: twelve emulated devices, half a minute")
    demo.set_defaults(experiment=EXAMPLES / "quickstart.toml")
    _run_options(demo)
    demo.add_argument("--headless", action="store_true", help="progress lines instead of the TUI")
    demo.add_argument("--attached", action="store_true", help=argparse.SUPPRESS)

    _authoring(command)

    run = command("run", "run an experiment: broker, coordinator and emulated devices")
    _experiment(run)
    run.add_argument("--headless", action="store_true", help="progress lines instead of the TUI")
    run.add_argument("--attached", action="store_true", help=argparse.SUPPRESS)

    replay = command("replay", "replay an experiment on a virtual clock, without processes")
    _experiment(replay)
    replay.add_argument(
        "--no-training", action="store_true", help="times and selection only, no model"
    )
    replay.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="devices trained in parallel (default: one per core)",
    )

    _core(command("core", "test whether groups of devices would gain by leaving finished runs"))

    report = command("report", "write one HTML page about a run, or about several side by side")
    report.add_argument(
        "run",
        nargs="*",
        default=["latest"],
        metavar="RUN",
        help="run id, its first characters, a folder, or latest (the default)",
    )
    report.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    report.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page (default: RUN.html here, report.html for several runs)",
    )
    report.add_argument(
        "--figures", type=Path, metavar="DIR", help="also write the figures there, as SVG and PDF"
    )
    report.add_argument("--no-figures", action="store_true", help="leave the figures out")
    report.add_argument("--open", action="store_true", help="open the page in a browser")

    _plot(command("plot", "draw one figure of a run, or of several in comparison"))

    _compare(
        command("compare", "run a grid of experiments, or compare runs: table, figures, LaTeX")
    )

    coordinator = command("coordinator", "run a coordinator; devices join by themselves")
    _experiment(coordinator)
    coordinator.add_argument(
        "--headless", action="store_true", help="progress lines instead of the TUI"
    )
    coordinator.add_argument("--attached", action="store_true", help=argparse.SUPPRESS)
    coordinator.add_argument(
        "--listen",
        metavar="HOST[:PORT]",
        default="127.0.0.1",
        help="address of the embedded broker (default 127.0.0.1); another one than of this "
        "machine needs --plain",
    )
    coordinator.add_argument(
        "--plain",
        action="store_true",
        help="allow --listen beyond this machine: passwords and models travel in plain text",
    )

    for name, text in (
        ("watch", "open the TUI on a live or finished run"),
        ("show", "print the summary of a run"),
        ("stop", "stop a live run"),
        ("rm", "delete a finished run"),
    ):
        sub = command(name, text)
        which = "run id, its first characters, a folder, or latest"
        if name == "watch":
            which = "run id, its first characters, a folder, an address or its file, or latest"
        if name == "rm":  # a deletion has no default
            sub.add_argument("run", help=which)
        else:
            sub.add_argument("run", nargs="?", default="latest", help=f"{which} (the default)")
        sub.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
        if name == "watch":
            sub.add_argument(
                "--headless",
                action="store_true",
                help="lines instead of the TUI, as without a terminal and on a dumb one",
            )
            sub.add_argument(
                "--keys",
                action="store_true",
                help="print the keys of the TUI as a file to edit, and end",
            )
            sub.add_argument("--page", action="store_true", help=argparse.SUPPRESS)
            sub.add_argument("--read-only", action="store_true", help="send no command to the run")
        if name in ("watch", "show"):
            sub.add_argument(
                "--reveal",
                action="store_true",
                help="show malicious devices while the run is live, not only after it",
            )
        if name == "show":
            sub.add_argument("--json", action="store_true", help="one JSON object on stdout")
            sub.add_argument(
                "--estimators",
                action="store_true",
                help="print how well each estimator would have predicted the run's exchanges",
            )
            sub.add_argument(
                "--estimator",
                action="append",
                default=[],
                metavar="NAME",
                help="compare this plug-in, too: package.module:Name or an installed one; "
                "repeatable",
            )
            sub.add_argument(
                "--option",
                action="append",
                default=[],
                metavar="KEY=VALUE",
                help="option of the plug-in, as in [selection.estimator_options]; repeatable",
            )
            sub.add_argument(
                "--why",
                type=int,
                metavar="ROUND",
                help="print why each device was selected in this round, or not",
            )
            sub.add_argument("--device", metavar="NAME", help="with --why: this device alone")
    _export(command("export", "write the tables of a run to files: CSV, Parquet or SQLite"))
    _export_model(command("export-model", "write the trained model of a run, usable elsewhere"))

    steer = command("command", "change a live run or one of its emulated devices")
    steer.add_argument(
        "run", help="run id, its first characters, a folder, an address or its file, or latest"
    )
    steer.add_argument(
        "words",
        nargs="+",
        metavar="COMMAND",
        help="set KEY VALUE (V, beta, per_round, deadline_s, min_devices), pause, resume, "
        "stop-after-round, stop, kick DEVICE, exclude DEVICE, include DEVICE, note TEXT, "
        "throttle DEVICE cpu|link SHARE, profile DEVICE NAME, link DEVICE NAME, or fault DEVICE "
        "NAME SECONDS",
    )
    steer.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    steer.add_argument("--yes", action="store_true", help="do not ask before a loss of work")
    steer.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="longest wait for the answer (default 10)",
    )
    steer.add_argument("--json", action="store_true", help="one JSON object on stdout")

    runs = command("runs", "list the runs")
    runs.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    runs.add_argument("--json", action="store_true", help="one JSON array on stdout")

    logs = command("logs", "print the log of a device")
    logs.add_argument("name", help="device name")
    logs.add_argument(
        "run",
        nargs="?",
        default="latest",
        help="run id, its first characters, a folder, or latest (the default)",
    )
    logs.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")

    _enroll(
        command(
            "enroll", "print the line to paste on a device: it joins a lab for good, or a live run"
        )
    )

    _profiles(
        command("profiles", "list, show, check, plot or import device profiles, links and logs")
    )

    _record(command("record", "write the profile of a device from measurements"))

    twin = command("twin", "compare the devices of a run with their profiles, phase by phase")
    twin.add_argument("run", help="run id, its first characters, a folder, or latest")
    twin.add_argument(
        "device", nargs="*", help="names of devices (default: all that are not emulated)"
    )
    twin.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    twin.add_argument(
        "--profiles",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder with the profile NAME.toml of each device (default: this one)",
    )
    twin.add_argument("--json", action="store_true", help="one JSON array on stdout")

    add_data(command("data", "list, verify, show or fetch data sets"))

    add_shape_options(command("shape", "run any command on an emulated device"))

    doctor = command("doctor", "test what this machine can do")
    doctor.add_argument(
        "experiment", nargs="?", type=Path, help="also test what this experiment needs"
    )
    doctor.add_argument("--json", action="store_true", help="one JSON array on stdout")
    doctor.add_argument(
        "--calibrate",
        action="store_true",
        help="measure the speed of this machine again, and what tasks cost on it",
    )
    part = doctor.add_mutually_exclusive_group()
    part.add_argument(
        "--selector",
        metavar="NAME",
        help="test this instead: package.module:Name, an installed plug-in or a built-in policy",
    )
    part.add_argument(
        "--aggregator",
        metavar="NAME",
        help="test this instead: a weight rule, a pseudo-gradient or a server step",
    )
    part.add_argument("--estimator", metavar="NAME", help="test this instead: an estimator")
    part.add_argument("--local-training", metavar="NAME", help="test this instead: a local rule")
    part.add_argument(
        "--model",
        metavar="NAME",
        help="export this instead, package.module:Name, for the data of the experiment or of "
        "--x-shape: its size, error, operations, and the time of a step here and on boards",
    )
    doctor.add_argument(
        "--x-shape", metavar="SIZES", help="with --model: shape of an example, such as 3x96x96"
    )
    doctor.add_argument(
        "--y-shape",
        metavar="SIZES",
        help="with --x-shape: shape of the targets of an example, such as 80 (default: one target)",
    )
    doctor.add_argument("--classes", type=int, metavar="N", help="with --x-shape: classes")
    doctor.add_argument(
        "--task",
        choices=("classification", "binary", "regression", "multi-label"),
        help="with --x-shape: what the model predicts (default: classification)",
    )
    doctor.add_argument(
        "--tokens", type=int, metavar="N", help="with --x-shape: x are whole numbers below N"
    )
    doctor.add_argument(
        "--batch",
        type=int,
        metavar="N",
        help="with --model: examples of a step (default: those of the experiment, or 16)",
    )
    doctor.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the tested part, as in [selection.options]; repeatable",
    )

    bench = command("bench", "list the benchmarks, or run one")
    bench.add_argument("--json", action="store_true", help="one JSON object on stdout")
    bench.add_argument("name", nargs="?", help="benchmark; without it, all are listed")
    bench.add_argument("arguments", nargs=argparse.REMAINDER, help="passed to the benchmark")
    if kind is not _CoreParser:
        _add_rooms(commands.choices, command)
        parser.set_defaults(has_rooms=True)
    return parser


def _add_rooms(
    parsers: Mapping[str, argparse.ArgumentParser],
    command: Callable[[str, str], argparse.ArgumentParser],
) -> None:
    """Add the commands of all rooms, and their options of commands of the core."""
    for room in rooms.rooms():
        for name, add in room.options.items():
            parser = parsers[name]
            n_own = len(parser._actions)
            rooms.load(add)(parser)
            added = (*(parser.get_default("room_actions") or ()), *parser._actions[n_own:])
            parser.set_defaults(room_actions=added)
        for name, take in room.takes.items():
            parser = parsers[name]
            parser.set_defaults(takes=(*(parser.get_default("takes") or ()), take))
        for name, added_command in room.commands.items():
            parser = command(name, added_command.help)
            rooms.load(added_command.options)(parser)
            parser.set_defaults(module=added_command.module, hint=added_command.hint)


def _plot(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [RUN ...] FIGURE [--out FILE] [--runs RUNS] [--list [--json]]"
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RUN ... FIGURE",
        help="runs (id, its first characters, a folder, or latest, the default), then the figure",
    )
    parser.add_argument("--list", action="store_true", help="list the figures")
    parser.add_argument(
        "--json", action="store_true", help="with --list: one JSON object on stdout"
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file that ends in .svg, .pdf or .png (default: NAME.svg here)",
    )


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="?",
        default="latest",
        help="run id, its first characters, a folder, or latest (the default); it may be live",
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    parser.add_argument(
        "--format",
        choices=("csv", "parquet", "sqlite"),
        default="csv",
        help="csv (the default): a file per table; parquet: likewise; sqlite: one database",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="new folder (default: RUN-FORMAT in this one)"
    )
    parser.add_argument(
        "--table",
        action="append",
        metavar="NAME",
        help="only this table; repeatable (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _export_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="?",
        default="latest",
        help="run id, its first characters, a folder, or latest (the default); it may be live",
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    parser.add_argument(
        "--to",
        choices=("onnx", "safetensors", "torch"),
        default="safetensors",
        help="safetensors (the default) or torch: the values by name; onnx: the network, too",
    )
    parser.add_argument(
        "--round", type=int, metavar="N", help="the model after this round (default: the newest)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="new folder (default: RUN-model in this one)"
    )
    parser.add_argument(
        "--licence", default="", metavar="TEXT", help="licence of the model, for its page"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _profiles(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=text, description=text)

    listing = action("list", "print a table of all or some profiles")
    listing.add_argument(
        "what", metavar="NAME", nargs="*", help="names or .toml files (default: all)"
    )
    listing.add_argument(
        "--sort",
        choices=("name", "speed", "cores", "memory", "down", "up", "delay"),
        default="name",
        help="largest first (default: by name)",
    )
    listing.add_argument("--json", action="store_true", help="one JSON object on stdout")
    show = action("show", "print every number with its tag and source")
    show.add_argument("what", metavar="NAME", nargs="+", help="names or .toml files")
    show.add_argument("--json", action="store_true", help="one JSON array on stdout")
    check = action("check", "print every problem of profiles, one line each")
    check.add_argument(
        "what", metavar="NAME", nargs="*", help="files or names (default: the whole library)"
    )
    check.add_argument("--json", action="store_true", help="one JSON object on stdout")
    plot = action("plot", "plot a link, a trace or the clock of a hot processor over time")
    plot.add_argument(
        "what", metavar="NAME", help="a profile, a link, a trace file, or data:SET/TRACE"
    )
    plot.add_argument("number", nargs="*", help="keys such as down_bps (default: all that vary)")
    plot.add_argument("--start", default="0s", metavar="TIME", help="first time (default 0s)")
    plot.add_argument(
        "--length", metavar="TIME", help="duration (default: one period, at most 10min)"
    )
    plot.add_argument("--seed", type=int, default=0, help="seed of random numbers (default 0)")
    plot.add_argument(
        "--size", default="100x18", metavar="WxH", help="size in characters (default 100x18)"
    )
    importing = action("import", "make a link from a mahimahi trace or a CSV file")
    importing.add_argument("down", type=Path, help="mahimahi trace, or CSV file with a header")
    importing.add_argument("up", type=Path, nargs="?", help="uplink, if it has its own file")
    importing.add_argument("--name", help="name of the link (default: from the file)")
    importing.add_argument(
        "--to", type=Path, default=Path(), metavar="DIR", help="folder (default: this one)"
    )
    importing.add_argument(
        "--step", metavar="TIME", help="average the rates over TIME (mahimahi: default 1s)"
    )
    importing.add_argument(
        "--columns",
        metavar="NAMES",
        help="columns and units of another format: t=Time:ms,down=dl_kbps,up=UL:kbit "
        "(numbers: t, down, up, rate, delay, jitter, loss, clock, load, available)",
    )
    importing.add_argument(
        "--gaps",
        choices=("cut", "hold", "zero"),
        help="gaps between rows: leave them out, hold the last values, or a rate of 0 (default "
        "cut)",
    )
    importing.add_argument(
        "--gap",
        metavar="TIME",
        help="longest time between rows that is not a gap (default: 10 times the median)",
    )
    importing.add_argument(
        "--as-is",
        action="store_true",
        help="import rates, times and losses whose magnitude is that of a wrong unit",
    )
    importing.add_argument(
        "--split",
        nargs="?",
        const="time",
        metavar="HOW",
        help="one link per drive (NAME-1, ...), cut where the time falls (time, the default), by a "
        "column, or by both: COLUMN,time",
    )
    importing.add_argument(
        "--up-rate", metavar="RATE", help="rate of the uplink, if no file has it: 5mbit"
    )
    importing.add_argument(
        "--down-rate", metavar="RATE", help="rate of the downlink, if no file has it: 20mbit"
    )
    importing.add_argument(
        "--profile",
        metavar="NAME",
        help="make a device of this profile, with the clock, load and availability of the file",
    )
    importing.add_argument(
        "--nominal",
        metavar="MHZ",
        help="tegrastats: clock that counts as 1 (default: the highest in the log)",
    )
    importing.add_argument(
        "--interval", metavar="TIME", help="tegrastats without times: time between lines (1s)"
    )
    importing.add_argument("--delay", metavar="TIME", help="one-way delay: 30ms (default 0)")
    importing.add_argument(
        "--queue",
        metavar="DEPTH",
        help="depth of the queue of each direction: 300ms of the fastest rate, or 64k "
        "(default 100ms)",
    )
    importing.add_argument(
        "--queue-discipline",
        choices=("drop-tail", "fq_codel"),
        help="kind of these queues (default drop-tail)",
    )
    importing.add_argument("--title", help="one line about the link")
    importing.add_argument("--source", help="origin of the trace")
    importing.add_argument("--licence", help="licence of the trace")
    importing.add_argument("--force", action="store_true", help="replace existing files")
    fit = action("fit", "fit a link to recorded drives: its states, rates and their persistence")
    fit.add_argument("files", type=Path, nargs="+", metavar="FILE", help="traces or tables of them")
    fit.add_argument("--name", required=True, help="name of the link")
    fit.add_argument(
        "--down",
        metavar="DRIVES",
        help="drives of the downlink: 'att-down-*' (default all)",
    )
    fit.add_argument(
        "--up", metavar="DRIVES", help="drives of the uplink (default: those with a column of it)"
    )
    fit.add_argument(
        "--split",
        nargs="?",
        const="time",
        metavar="HOW",
        help="drives of a table: where the time falls (time, the default), by a column, or by "
        "both: COLUMN,time",
    )
    fit.add_argument("--columns", metavar="NAMES", help="columns and units, as for import")
    fit.add_argument("--step", metavar="TIME", help="average the rates over TIME (default 1s)")
    fit.add_argument("--gaps", choices=("cut", "hold", "zero"), help="as for import")
    fit.add_argument("--gap", metavar="TIME", help="as for import")
    fit.add_argument("--up-rate", metavar="RATE", help="rate of the uplink, if no drive has it")
    fit.add_argument("--delay", metavar="TIME", help="one-way delay: 30ms (default 0)")
    fit.add_argument("--title", help="one line about the link")
    fit.add_argument("--source", help="origin of the drives")
    fit.add_argument("--licence", help="licence of the drives")
    fit.add_argument(
        "--to", type=Path, default=Path(), metavar="DIR", help="folder (default: this one)"
    )
    fit.add_argument("--as-is", action="store_true", help="as for import")
    fit.add_argument("--force", action="store_true", help="replace an existing file")
    log = action("import-log", "make exchange times for replays from a log of exchanges")
    log.add_argument("log", type=Path, help="CSV file with a header, one row per exchange")
    log.add_argument("--name", help="name of the exchange times (default: from the file)")
    log.add_argument(
        "--to", type=Path, default=Path(), metavar="DIR", help="folder (default: this one)"
    )
    log.add_argument(
        "--columns",
        metavar="NAMES",
        help="columns and units: device=client,round=rnd,total=took_ms (also start, end, and the "
        "phases download, decode, load, evaluate, train, personal, encode, upload), or "
        "wide=A|B|C:s for one row per round with the total of each device",
    )
    log.add_argument(
        "--as-is",
        action="store_true",
        help="import durations whose magnitude is that of a wrong unit",
    )
    log.add_argument("--title", help="one line about the log")
    log.add_argument("--source", help="origin of the log")
    log.add_argument("--licence", help="licence of the log")
    log.add_argument("--force", action="store_true", help="replace existing files")


def _enroll(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="device names: 1 to 32 of a-z, 0-9 and hyphen (default: the host name of the device)",
    )
    parser.add_argument(
        "--role",
        choices=("device", "viewer", "operator"),
        default="device",
        help="what the identity may do (default device)",
    )
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="print the command of an agent, or of `fairbed watch`, for this live run with a "
        "broker of its own (default: latest)",
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    parser.set_defaults(asks_rooms=True)


def _record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", help="name of the profile; with --run, the device in that run"
    )
    parser.add_argument(
        "--for",
        dest="watch",
        default="60s",
        metavar="TIME",
        help="duration of the observation (default 60s)",
    )
    parser.add_argument(
        "--load",
        default="60s",
        metavar="TIME",
        help="duration of full load, to measure heat (default 60s)",
    )
    parser.add_argument(
        "--probe",
        metavar="PEER",
        help="measure the link to a broker, mqtt://..., or to HOST:PORT of --serve",
    )
    parser.add_argument(
        "--serve",
        metavar="[HOST:]PORT",
        help="only answer the probes of other devices, until Ctrl-C",
    )
    parser.add_argument(
        "--interface", help="network interface to observe (default: that of the default route)"
    )
    parser.add_argument(
        "--run", help="record from this run: its id, its first characters, or latest"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="with --run: every device without a profile, and the experiment that replays the run",
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    parser.add_argument(
        "--like", metavar="PROFILE", help="profile for numbers that cannot be measured"
    )
    parser.add_argument(
        "--as", dest="as_name", metavar="NAME", help="name of the new profile (default: name)"
    )
    parser.add_argument("--out", type=Path, default=Path(), help="folder (default: this one)")
    parser.add_argument("--force", action="store_true", help="replace a profile of this name")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _core(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="+",
        metavar="RUN",
        help="run id, its first characters, a folder, or latest; several of the same data, "
        "partition and model are alternatives to each other",
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    parser.add_argument(
        "--M",
        type=float,
        help="utilities are M - loss, nats (default: aggregation.M of the runs)",
    )
    parser.add_argument(
        "--weights",
        default="equal",
        metavar="W",
        help="equal, n (training examples), or NAME=W,... (others 1); default equal",
    )
    parser.add_argument(
        "--split",
        choices=("train", "test"),
        default="train",
        help="examples on which losses are measured (default train)",
    )
    parser.add_argument(
        "--coalitions",
        metavar="KINDS",
        help="models to train: all, local, pairs, leave-one-out, random:N, with commas, or none "
        "(default: all for up to 6 devices, else local,leave-one-out)",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="passes of a coalition over its examples (default: those of a device in the run)",
    )
    parser.add_argument(
        "--radius",
        type=float,
        metavar="R",
        help="distance of parameters for the local guarantee of Theorem 3 (default: 1 %% of the "
        "model's norm; for a convex model none)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of random coalitions and mini-batches (default 0)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="models trained in parallel (default: one per core)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "grid",
        nargs="*",
        metavar="GRID",
        help="grid file, examples/grids/ has some; or two runs and more that exist: run ids, their "
        "first characters, folders, or latest",
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    parser.add_argument(
        "--live-replay",
        type=Path,
        metavar="EXP",
        help="instead of a grid: compare live runs of this experiment with their replays",
    )
    parser.add_argument(
        "--repeats", type=int, metavar="N", help="live runs, each with a replay (default 2)"
    )
    parser.add_argument(
        "--out", type=Path, help="folder, new or of this grid (default comparisons/<name>)"
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="seeds 0 to N - 1 instead of the grid's"
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="replays in parallel (default: one per core)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key in every arm: rounds=50; repeatable",
    )
    parser.add_argument("--no-figures", action="store_true", help="draw no figures")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _authoring(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    init = command("init", "write a commented experiment file")
    init.add_argument(
        "file",
        type=Path,
        nargs="?",
        default=Path("experiment.toml"),
        help="(default experiment.toml)",
    )
    init.add_argument(
        "--dataset",
        metavar="WHAT",
        help="name of a data set, or your own data: .npz, .csv or .parquet file, folder of "
        "pictures, package.module:function",
    )
    add_data_keys(init)
    init.add_argument(
        "--model", help="softmax, mlp, cnn, a model of a study, or package.module:Name"
    )
    init.add_argument("--devices", metavar="NAMES", help="profiles or populations, with commas")
    init.add_argument("--count", type=int, metavar="N", help="number of devices")

    new = command("new", "write a plug-in with a test and an experiment that uses it")
    kinds = ("selector", "aggregator", "estimator", "local-rule")
    new.add_argument("kind", choices=kinds, help="what to write")
    new.add_argument("name", help="name of its module: a-z, 0-9 and _")
    new.add_argument(
        "folder", type=Path, nargs="?", default=Path(), help="folder (default: this one)"
    )
    new.add_argument(
        "--part",
        choices=("weights", "pseudo-gradient", "server-step"),
        help="part of an aggregator (default weights)",
    )

    examples = command("examples", "list the examples, or copy one into this folder")
    examples.add_argument("name", nargs="?", help="example; without it, all are listed")
    examples.add_argument("--json", action="store_true", help="list them as one JSON object")

    config = command("config", "print all keys of an experiment, with value and origin")
    config.add_argument("experiment", type=Path, help="experiment file")
    config.add_argument("--seed", type=int, help="override the experiment's seed")
    config.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key: selection.V=50; repeatable",
    )
    config.add_argument("--json", action="store_true", help="one JSON object on stdout")

    schema = command("schema", "print the JSON Schema of experiment files, for editors")
    schema.add_argument(
        "--markdown", action="store_true", help="print docs/configuration.md instead"
    )

    completion = command("completion", "print the shell code that completes fairbed's arguments")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="your shell")


def _experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "experiment", type=Path, help="experiment file, or the folder of a run to resume"
    )
    _run_options(parser)


def _run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="folder of the run (default runs/<id>)")
    parser.add_argument("--seed", type=int, help="override the experiment's seed")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key: selection.V=50; repeatable",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object, the summary, on stdout"
    )


if __name__ == "__main__":
    sys.exit(console())
