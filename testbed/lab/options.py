"""The arguments of the commands of a lab."""

import argparse
from pathlib import Path

LAB_OPTION = "folder of the lab (default: FAIRBED_LAB, else the first that was made)"


def add_lab(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `fairbed lab`."""
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


def add_enroll(parser: argparse.ArgumentParser) -> None:
    """Add to `fairbed enroll` what a lab needs."""
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
    parser.add_argument("--json", action="store_true", help="one JSON array on stdout")


def add_devices(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `fairbed devices`."""
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
