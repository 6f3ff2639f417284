"""`fairbed enroll` for a live run with a broker of its own: the command of an agent or a viewer."""

import argparse
import shlex
import sys

import anyio

from fairbed.coordinator.store import RunNotFoundError, StoreError
from fairbed.coordinator.store.runs import LATEST
from fairbed.testbed.cli import DONE
from fairbed.testbed.cli.runs import live_endpoint
from fairbed.testbed.errors import BrokerError, RunError, UsageError
from fairbed.testbed.host.loopback import default_address
from fairbed.testbed.run.broker import enrol_in_run
from fairbed.wire.messages import is_device_name
from fairbed.wire.transport.address import PASSWORD_VARIABLE, parse_url, without_password


def main(options: argparse.Namespace) -> int:
    """Print the command of an agent, or of a viewer, for a live run with a broker of its own."""
    if len(options.names) != 1:
        raise UsageError(
            "enroll: needs one NAME for a live run; or make a lab, which enrols any number of "
            "devices once: fairbed lab init"
        )
    (name,) = options.names
    if not is_device_name(name):
        raise UsageError(f"name: must be 1 to 32 of a-z, 0-9 and hyphen, got {name!r}")
    try:
        info, endpoint = live_endpoint(options.runs, options.run or LATEST)
    except RunNotFoundError as exc:
        raise UsageError(
            f"{exc}; or make a lab for devices that serve every run: fairbed lab init"
        ) from exc
    except StoreError as exc:
        raise RunError(str(exc)) from exc
    if endpoint.room is not None:
        raise UsageError(
            f"--run: must have a broker of its own, got a run of the {endpoint.room} "
            f"{endpoint.room_folder}; leave --run out: fairbed enroll {name}"
        )
    try:
        url = anyio.run(enrol_in_run, info.folder, endpoint, name, options.role)
    except (BrokerError, OSError) as exc:
        raise RunError(f"enroll: {exc}") from exc
    for any_address in ("0.0.0.0", "[::]"):
        url = url.replace(f"@{any_address}:", f"@{default_address()}:")
    password = parse_url(url).password
    secret = "" if password is None else f"{PASSWORD_VARIABLE}={shlex.quote(password)} "
    shown = without_password(url)
    if options.role == "device":
        tenant = "" if endpoint.tenant == "main" else f" --tenant {endpoint.tenant}"
        command = f"device-agent --broker {shlex.quote(shown)} --name {name}{tenant}"
    else:
        path = "" if endpoint.tenant == "main" else f"/{endpoint.tenant}"
        command = f"fairbed watch {shlex.quote(shown + path)}"
    print(secret + command)  # in the environment, because others can read arguments
    if options.role == "device" and endpoint.host in ("127.0.0.1", "::1", "localhost"):
        print(
            "only devices on this machine can join: the broker listens on loopback; for real "
            "devices make a lab: fairbed lab init",
            file=sys.stderr,
        )
    return DONE
