"""`fairbed`: parse the command line and run a command, which imports its own heavy modules."""

import argparse
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

from fairbed.testbed.api import RUNS
from fairbed.testbed.cli import BAD_USAGE, DONE, EXAMPLES, FAILED, NOT_BEGUN, dispatch
from fairbed.testbed.cli.completion import complete
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.host.termination import (
    STOPPING,
    Terminated,
    raised_by_signals,
    signals_restored,
)
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
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:
        complete(parser)
    own, argv = split_command(sys.argv[1:] if arguments is None else arguments)
    options, extra = parser.parse_known_args(own)
    if extra:
        parser.error(f"unrecognized arguments: {' '.join(extra)}{_hint(options)}")
    options.argv = argv
    if options.command is None:
        parser.print_help()
        return BAD_USAGE
    begins_run = options.command in ("run", "coordinator")
    with signals_restored():
        try:
            # Before the run handles them, a signal ends it as later: gracefully, with status 0.
            with raised_by_signals() if begins_run else nullcontext():
                return dispatch(options)
        except Terminated:
            if not begins_run:
                raise
            print(f"fairbed: {NOT_BEGUN}", file=sys.stderr)
            return DONE
        except UsageError as exc:
            return _fail(options, exc, BAD_USAGE)
        except RunError as exc:
            return _fail(options, exc, FAILED)
        except BrokenPipeError:
            sys.stderr.close()
            return FAILED
        except Exception as exc:
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


class _Parser(argparse.ArgumentParser):
    """Adds to an error what was meant by a word that is no command."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit."""
        word = re.search(r"argument (?:COMMAND|ACTION): invalid choice: '([^']*)'", message)
        super().error(message + (_meant(word[1]) if word else ""))


def _meant(word: str) -> str:
    from fairbed.wire.command_line import MEANINGS, usage

    if word in ("start", "stop"):  # `fairbed stop` is a command, so this is of a lab
        return "; fairbed lab up starts a lab, fairbed lab down stops it"
    action = next((one for one in MEANINGS if one == word), None)
    return f"; it is for a live run: fairbed command RUN {usage(action)}" if action else ""


def _hint(options: argparse.Namespace) -> str:
    """Return how an argument is given that a command does not take by its place."""
    if options.command == "lab":
        return f"; the folder of a lab is an option: fairbed lab {options.action} --lab DIR"
    if options.command in ("replay", "run", "coordinator"):
        return "; an experiment is one file, and a key is set by --set KEY=VALUE"
    return f"; see: fairbed {options.command} --help" if options.command else ""


def _fail(options: argparse.Namespace, exc: Exception, code: int) -> int:
    if hasattr(options, "debug"):
        traceback.print_exception(exc)
    print(f"fairbed: {printable(str(exc))}", file=sys.stderr)  # one line
    return code


def _web_options(parser: argparse.ArgumentParser) -> None:
    """Add what `fairbed watch` knows of browsers, and of viewers that must not steer."""
    rights = parser.add_mutually_exclusive_group()
    rights.add_argument("--read-only", action="store_true", help="send no command to the run")
    rights.add_argument(
        "--steer", action="store_true", help="with --web: pages may pause, resume, exclude, ..."
    )
    parser.add_argument(
        "--web", action="store_true", help="show the TUI in browsers, read-only; Ctrl-C ends it"
    )
    parser.add_argument(
        "--host", help="with --web: address to listen on (default 127.0.0.1: this machine alone)"
    )
    parser.add_argument(
        "--port", type=int, help="with --web: port (default 8885; 0 is any free one)"
    )
    parser.add_argument("--sessions", type=int, help="with --web: pages open at a time (default 4)")
    parser.add_argument(
        "--idle",
        type=float,
        metavar="MINUTES",
        help="with --web: end a page without keys and mouse for so long (default 60)",
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="with --web: allow --host beyond this machine: all travels in plain text",
    )


class _Version(argparse.Action):
    """Reads the version only for `--version`, as that costs an import."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"fairbed {version('fairbed')}")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `fairbed`."""
    common = _Parser(add_help=False)
    common.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print tracebacks and debug logs",
    )
    parser = _Parser(
        prog="fairbed",
        description="Edge-device federated-learning testbed with a terminal control room.",
        parents=[common],
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and stop")
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
    run.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="emulate devices on the hosts of a Ray cluster: HOST:PORT of its head, or local",
    )
    run.add_argument(
        "--plain",
        action="store_true",
        help="with --cluster: allow the run's own broker beyond this machine, in plain text",
    )

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
    _cluster(replay, "train devices")

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
            _web_options(sub)
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

    _lab(command("lab", "make, run, stop or show a lab: a broker that stays, for your own devices"))
    _enroll(command("enroll", "print the line to paste on a device: it joins the lab, for good"))
    _devices(command("devices", "list, rename or revoke the devices of the lab"))

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

    data = command("data", "list data sets, or verify their files")
    data.add_argument("action", choices=("list", "verify"), help="what to do")
    data.add_argument(
        "what",
        metavar="NAME",
        nargs="*",
        help="data sets (default: all), your own data as in `[data] source`, or experiment files",
    )
    _data_keys(data)
    data.add_argument(
        "--features",
        metavar="NAMES",
        help="columns of a table that are features, as in `[data] features`, with commas",
    )
    data.add_argument(
        "--categories",
        metavar="NAMES",
        help="columns of a table that are one-hot encoded, as in `[data] categories`, with commas",
    )
    data.add_argument("--json", action="store_true", help="one JSON array on stdout")

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
    return parser


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


LAB_OPTION = "folder of the lab (default: FAIRBED_LAB, else the first that was made)"


def _lab(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        sub = actions.add_parser(name, help=text, description=text)
        if name != "init":
            sub.add_argument("--lab", type=Path, metavar="DIR", help=LAB_OPTION)
        return sub

    init = action("init", "make a lab: certificates, identities, configuration of the broker")
    init.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="new folder (default: ~/.local/share/fairbed/lab)",
    )
    init.add_argument("--name", default="lab", help="name of the lab (default lab)")
    init.add_argument(
        "--broker",
        choices=("mosquitto", "nats"),
        help="broker to run (default: the first of them that is installed)",
    )
    init.add_argument(
        "--port", type=int, default=8883, metavar="N", help="port of the broker (default 8883)"
    )
    init.add_argument(
        "--enrol-port",
        type=int,
        default=8884,
        metavar="N",
        help="port of the enrolment server (default 8884)",
    )
    init.add_argument(
        "--address",
        action="append",
        metavar="HOST",
        help="name or address of this machine that devices use; repeatable, the first is printed "
        "by enrolment (default: the address on the default route)",
    )
    up = action("up", "run the lab until Ctrl-C, or as a service")
    up.add_argument(
        "--service",
        action="store_true",
        help="write a systemd unit, start it now and with this machine",
    )
    down = action("down", "stop the lab")
    down.add_argument("--service", action="store_true", help="also remove the systemd unit")
    status = action("status", "show whether the lab is up, its addresses, devices and certificates")
    status.add_argument("--json", action="store_true", help="one JSON object on stdout")
    wheels = action("wheelhouse", "download the packages of agents, for devices without Internet")
    wheels.add_argument(
        "--python",
        action="extend",
        nargs="+",
        metavar="VERSION",
        help="Python versions of the devices (default: 3.10 3.11 3.12 3.13)",
    )
    wheels.add_argument(
        "--platform",
        action="extend",
        nargs="+",
        metavar="MACHINE",
        help="processors of the devices (default: aarch64 x86_64)",
    )
    wheels.add_argument(
        "--source",
        type=Path,
        metavar="DIR",
        help="wheel of Fairbed, or checkout to build it from (default: the one that runs)",
    )
    config = action("config", "print the access rules of the lab for another broker")
    config.add_argument("broker", choices=("emqx", "generic"), help="kind of broker")


def _enroll(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="device names: 1 to 32 of a-z, 0-9 and hyphen (default: the host name of the device)",
    )
    parser.add_argument("--all", type=Path, metavar="FILE", help="names in a file, one a line")
    parser.add_argument("--qr", action="store_true", help="also print the line as a QR code")
    parser.add_argument(
        "--minutes", type=float, default=15, metavar="N", help="life of the token (default 15)"
    )
    parser.add_argument(
        "--expires", type=float, metavar="DAYS", help="life of the identity (default: no end)"
    )
    parser.add_argument(
        "--replace", action="store_true", help="take the name from the device that has it"
    )
    parser.add_argument(
        "--role",
        choices=("device", "viewer", "operator"),
        default="device",
        help="what the identity may do (default device)",
    )
    parser.add_argument("--tenant", default="main", help="tenant of the device (default main)")
    parser.add_argument(
        "--address",
        metavar="HOST",
        help="name or address of the lab host that the device uses (default: the first of the lab)",
    )
    parser.add_argument(
        "--upgrade",
        action="store_true",
        help="print the line, without a token, that upgrades or repairs any enrolled device",
    )
    parser.add_argument("--lab", type=Path, metavar="DIR", help=LAB_OPTION)
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="print the command of an agent, or of `fairbed watch`, for this live run with a "
        "broker of its own (default without a lab: latest)",
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    parser.add_argument("--json", action="store_true", help="one JSON array on stdout")


def _devices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lab", type=Path, metavar="DIR", help=LAB_OPTION)
    parser.add_argument("--json", action="store_true", help="one JSON array on stdout")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        sub = actions.add_parser(name, help=text, description=text)
        # Without a default of its own, so that an option before the action stays.
        sub.add_argument(
            "--lab", type=Path, metavar="DIR", help=LAB_OPTION, default=argparse.SUPPRESS
        )
        return sub

    listing = action("list", "list devices and persons: state, last contact, versions (default)")
    listing.add_argument(
        "--json", action="store_true", help="one JSON array on stdout", default=argparse.SUPPRESS
    )
    rename = action("rename", "rename a device; its agent learns the name by itself")
    rename.add_argument("old", metavar="OLD", help="present name")
    rename.add_argument("new", metavar="NEW", help="new name: 1 to 32 of a-z, 0-9 and hyphen")
    revoke = action("revoke", "disconnect a device or person at once, and refuse it from now on")
    revoke.add_argument("name", metavar="NAME", help="name of the device or person")
    revoke.add_argument(
        "--role",
        choices=("device", "viewer", "operator"),
        default="device",
        help="role of the identity (default device)",
    )


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
    _cluster(parser, "replay the cells")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key in every arm: rounds=50; repeatable",
    )
    parser.add_argument("--no-figures", action="store_true", help="draw no figures")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _cluster(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help=f"{what} on the hosts of a Ray cluster: HOST:PORT of its head, or local",
    )


def _data_keys(parser: argparse.ArgumentParser) -> None:
    """Add the keys of `[data]` that the user's own data may need."""
    parser.add_argument("--label", metavar="COLUMN", help="labels of a .csv or .parquet file")
    parser.add_argument("--device", metavar="COLUMN", help="users of a .csv or .parquet file")
    parser.add_argument("--folder", metavar="DIR", help="folder of the data")


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
    _data_keys(init)
    init.add_argument("--model", help="softmax, mlp, cnn, or package.module:Name")
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
    parser.add_argument(
        "--metrics",
        metavar="[HOST]:PORT",
        help="serve metrics for Prometheus, as at :9464; on this machine alone without a host",
    )
    parser.add_argument(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="write curves for TensorBoard into a folder of DIR",
    )


if __name__ == "__main__":
    sys.exit(console())
