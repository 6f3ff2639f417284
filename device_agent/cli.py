"""`device-agent`: runs one agent on this machine, enrols it at a lab, or looks for problems.

Large modules are imported after the arguments are parsed, so that `--help` is fast.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from fairbed.wire.console import name_problem, print_anything, read_names_as_utf_8

PASSWORD_VARIABLE = "FAIRBED_BROKER_PASSWORD"
"""Environment variable with the broker's password, which keeps it out of the process list."""

_KEYS = {
    "broker": "broker_url",
    "name": "name",
    "data": "data",
    "tenant": "tenant",
    "cache": "cache_folder",
    "base": "base",
    "state": "state_folder",
    "local_training": "local_training",
    "allow_models": "allow_models",
    "available_hours": "available_hours",
    "only_charging": "only_charging",
    "once": "once",
    "log_level": "log_level",
}
"""Flags that override the configuration file, and their keys in that file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, `run` if none is named; return the exit code.

    0 done, 1 failed, 2 bad usage or configuration, 3 refused for good.
    """
    if argv is None:
        read_names_as_utf_8()
    print_anything()
    words = list(sys.argv[1:] if argv is None else argv)
    command = words.pop(0) if words and words[0] in COMMANDS else RUN
    args = make_parser(command).parse_args(words)
    from fairbed.device_agent.errors import AgentRefused, ConfigError, DataError, one_line
    from fairbed.wire.errors import innermost

    try:
        return COMMANDS[command](args)
    except KeyboardInterrupt:
        return 0
    except Exception as exc:
        if args.debug:
            traceback.print_exc()
        cause = innermost(exc)
        problem = name_problem(cause)
        print(f"device-agent: {problem or one_line(cause)}", file=sys.stderr)
        if isinstance(cause, AgentRefused):
            return 3
        return 2 if problem or isinstance(cause, (ConfigError, DataError)) else 1


def _run(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from fairbed.device_agent.config import allowed_clients, load_config, with_password
    from fairbed.device_agent.errors import Renamed

    given = {key: getattr(args, flag) for flag, key in _KEYS.items()}
    overrides = {key: value for key, value in given.items() if value is not None}
    if args.allow_client is not None:
        overrides["clients"] = allowed_clients(args.allow_client)
    config = load_config(args.config, overrides)
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is not None:
        config = with_password(config, password)
    # numpy's BLAS must not use more threads than the engine; it reads this variable when loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(config.engine_threads))
    from fairbed.device_agent.memory import defer_urllib

    defer_urllib()
    from fairbed.device_agent.log import log_to_stderr
    from fairbed.device_agent.power import energy_meter
    from fairbed.device_agent.process import run_agent
    from fairbed.device_agent.sensors import real_host
    from fairbed.wire.transport.address import redact

    log_to_stderr(config.log_level)
    if args.broker is not None and redact(args.broker) != args.broker:
        print(
            "device-agent: --broker has a password, which other users of this machine can read; "
            f"put it into {PASSWORD_VARIABLE} or into the file of --config",
            file=sys.stderr,
        )
    host = real_host(config.owner())
    host = replace(host, energy=energy_meter(config.power, host.clock))
    is_from_file = args.broker is None and args.name is None
    try:
        run_agent(config, host, config_path=args.config if is_from_file else None)
    except Renamed:
        os.execv(sys.executable, sys.orig_argv)  # the same process, with the new name
    return 0


def _join(args: argparse.Namespace) -> int:
    from fairbed.device_agent.enrolment import Places, join, lab_at, read_token

    def write(line: str) -> None:
        print(f"device-agent: {line}", flush=True)

    join(
        lab_at(args.lab, args.ca),
        lambda: read_token(os.environ, sys.stdin.readline),
        write,
        name=args.name,
        places=None if args.folder is None else Places(args.folder, None, None),
        unit=not args.no_service,
        is_new=args.new,
    )
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from fairbed.device_agent.doctor import examine, report

    return report(examine(args.config, data=args.data), as_json=args.json, write=sys.stdout.write)


RUN = "run"
COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    RUN: _run,
    "join": _join,
    "doctor": _doctor,
}


class _Version(argparse.Action):
    """Reads the version only for `--version`, as that costs an import."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"device-agent {version('fairbed')}")
        parser.exit()


def make_parser(command: str = RUN) -> argparse.ArgumentParser:
    """Return the parser of a command of `device-agent`."""
    parser = {RUN: _run_parser, "join": _join_parser, "doctor": _doctor_parser}[command]()
    parser.add_argument("--debug", action="store_true", help="show a traceback on errors")
    return parser


def _join_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="device-agent join",
        description="Enrol this device at a lab, and start its agent.",
        epilog="The token is read from FAIRBED_TOKEN in the environment, else from the input.",
    )
    parser.add_argument(
        "--lab", metavar="URL", required=True, help="https://host[:port] of the lab"
    )
    parser.add_argument(
        "--ca", metavar="FILE", type=Path, required=True, help="certificate of the lab's CA"
    )
    parser.add_argument(
        "--name", help="name of this device (default: that of the token, else its host name)"
    )
    parser.add_argument(
        "--folder",
        metavar="DIR",
        type=Path,
        help="where configuration and certificate are written (default: ~/.config/fairbed, for "
        "the system's service /var/lib/fairbed)",
    )
    parser.add_argument(
        "--no-service", action="store_true", help="write no systemd unit, and start nothing"
    )
    parser.add_argument(
        "--new", action="store_true", help="redeem the token even if this device has an identity"
    )
    return parser


def _doctor_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="device-agent doctor",
        description="Look for what keeps this device from taking part.",
        epilog="Exit codes: 0 no problem, 1 at least one problem, 2 bad usage.",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="configuration of the agent (default: the one that join wrote)",
    )
    parser.add_argument(
        "--data",
        metavar="FILE.npz",
        type=Path,
        help="own data to compare with the task of the last run (default: that of the "
        "configuration)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON array on stdout")
    return parser


def _run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="device-agent",
        description="Train on this device for a Fairbed coordinator.",
        epilog="device-agent join enrols this device at a lab, device-agent doctor looks for "
        f"problems; both have --help. {PASSWORD_VARIABLE} in the environment holds the broker's "
        "password. Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 3 refused for good.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and stop")
    parser.add_argument("--broker", metavar="URL", help="mqtt://[user[:password]@]host[:port]")
    parser.add_argument("--name", help="this device's name: 1 to 32 of a-z, 0-9 and hyphen")
    parser.add_argument(
        "--data", metavar="FILE.npz", help="own data: arrays x and y, or a folder of pictures"
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with these keys")
    parser.add_argument("--tenant", help="which coordinator to serve (default: main)")
    parser.add_argument("--cache", metavar="DIR", help="where tasks and shards are kept")
    parser.add_argument(
        "--base", metavar="FILE", help="frozen part of a model, put here by hand: not downloaded"
    )
    parser.add_argument("--state", metavar="DIR", help="where the personal model is kept")
    parser.add_argument(
        "--local-training",
        metavar="MODULE:NAME",
        action="append",
        help="a local rule that a coordinator may ask for; its code runs here (may be repeated)",
    )
    parser.add_argument(
        "--allow-models",
        metavar="MODULE",
        action="append",
        help="a Python module with torch models that a coordinator may ask for; its code runs here "
        "(may be repeated)",
    )
    parser.add_argument(
        "--allow-client",
        metavar="NAME=FOLDER[,PYTHON]",
        action="append",
        help="a client that a coordinator may ask for: training code in a folder, and the "
        "interpreter that runs it; its code runs here (may be repeated)",
    )
    parser.add_argument(
        "--available-hours",
        metavar="HH:MM-HH:MM",
        action="append",
        help="take part at these hours of the day only, local time (may be repeated)",
    )
    parser.add_argument(
        "--only-charging",
        action="store_true",
        default=None,
        help="take part only while a charger is plugged in",
    )
    parser.add_argument(
        "--once", action="store_true", default=None, help="stop when the run is over"
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="least level that is logged",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
