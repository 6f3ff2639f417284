"""`device-agent`: runs one agent on this machine.

Large modules are imported after the arguments are parsed, so that `--help` is fast.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

PASSWORD_VARIABLE = "FAIRBED_BROKER_PASSWORD"
"""Environment variable with the broker's password, which keeps it out of the process list."""

_KEYS = {
    "broker": "broker_url",
    "name": "name",
    "data": "data",
    "tenant": "tenant",
    "cache": "cache_folder",
    "state": "state_folder",
    "local_training": "local_training",
    "available_hours": "available_hours",
    "only_charging": "only_charging",
    "once": "once",
    "log_level": "log_level",
}
"""Flags that override the configuration file, and their keys in that file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent; return the exit code: 0 done, 1 failed, 2 bad usage or configuration."""
    args = make_parser().parse_args(argv)
    from fairbed.device_agent.errors import ConfigError, DataError, one_line

    try:
        _run(args)
    except KeyboardInterrupt:
        return 0
    except Exception as exc:
        if args.debug:
            traceback.print_exc()
        print(f"device-agent: {one_line(exc)}", file=sys.stderr)
        return 2 if isinstance(exc, (ConfigError, DataError)) else 1
    return 0


def _run(args: argparse.Namespace) -> None:
    from dataclasses import replace

    from fairbed.device_agent.config import load_config, with_password

    given = {key: getattr(args, flag) for flag, key in _KEYS.items()}
    overrides = {key: value for key, value in given.items() if value is not None}
    config = load_config(args.config, overrides)
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is not None:
        config = with_password(config, password)
    # numpy's BLAS must not use more threads than the engine; it reads this variable when loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(config.engine_threads))
    from fairbed.device_agent.memory import defer_urllib

    defer_urllib()
    from fairbed.device_agent.power import energy_meter
    from fairbed.device_agent.process import log_to_stderr, run_agent
    from fairbed.device_agent.sensors import real_host

    log_to_stderr(config.log_level)
    host = real_host(config.owner())
    run_agent(config, replace(host, energy=energy_meter(config.power, host.clock)))


class _Version(argparse.Action):
    """Reads the version only for `--version`, as that costs an import."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"device-agent {version('fairbed')}")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `device-agent`."""
    parser = argparse.ArgumentParser(
        prog="device-agent",
        description="Train on this device for a Fairbed coordinator.",
        epilog=f"{PASSWORD_VARIABLE} in the environment holds the broker's password. "
        "Exit codes: 0 done, 1 failed, 2 bad usage or configuration.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and stop")
    parser.add_argument("--broker", metavar="URL", help="mqtt://[user[:password]@]host[:port]")
    parser.add_argument("--name", help="this device's name: 1 to 32 of a-z, 0-9 and hyphen")
    parser.add_argument("--data", metavar="FILE.npz", help="own data, arrays x and y")
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with these keys")
    parser.add_argument("--tenant", help="which coordinator to serve (default: main)")
    parser.add_argument("--cache", metavar="DIR", help="where tasks and shards are kept")
    parser.add_argument("--state", metavar="DIR", help="where the personal model is kept")
    parser.add_argument(
        "--local-training",
        metavar="MODULE:NAME",
        action="append",
        help="a local rule that a coordinator may ask for; its code runs here (may be repeated)",
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
    parser.add_argument("--debug", action="store_true", help="show a traceback on errors")
    return parser


if __name__ == "__main__":
    sys.exit(main())
