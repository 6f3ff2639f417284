"""Command-line options of `fairbed shape`. Every command loads it, so it is small."""

import argparse
from collections.abc import Sequence
from pathlib import Path

COMMAND = "shape"

USAGE = "fairbed shape [PROFILE] [options] -- COMMAND [ARGUMENT ...]"

DESCRIPTION = """\
Run any command on an emulated device: its processor, memory and network are those of PROFILE, or
of the options, which override the profile. Terminal, input and output, folder, user, signals and
exit status are the command's own; processes that it leaves running are killed.

  fairbed shape raspberry-pi-4b -- python3 train.py
  fairbed shape --cpu 0.25 --down 10mbit --up 5mbit --delay 20ms -- \\
      sh -c 'curl -O http://$FAIRBED_HUB:8000/model.bin'

Inside, FAIRBED_HUB is the address of this machine across the emulated link. The command reaches
servers that listen on 0.0.0.0 here, and nothing else: no Internet, no DNS. Without a profile or
link options, or with --link host, the command uses this machine's own network.
"""

EPILOG = """\
Exit status: that of the command, or 128+n if signal n killed it; 127 command not found, 126 it
cannot be run, 125 the emulation failed while it ran, 2 bad usage or this machine cannot emulate the
device (the command was not run). Needs Linux and root; `--backend process` slows the processor
without root. A processor quota holds on average: after a pause, some 1 to 10 ms of work run at full
speed. Details: docs/shape.md
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.usage, parser.description, parser.epilog = USAGE, DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("profile", nargs="?", metavar="PROFILE", help="a device: fairbed profiles list")
    add("--cpu", metavar="CORES", help="total speed in cores of this machine: 0.25; none: no limit")
    add(
        "--threads",
        type=int,
        metavar="N",
        help="threads of the command that are busy at the same time (default: engine_threads of "
        "the profile); the command gets N cores of the profile",
    )
    add("--host-core-speed", metavar="X", default="1.0", help=_HOST_CORE_SPEED)
    add("--memory", metavar="SIZE", help="memory limit, without swap: 512M; none: no limit")
    add("--link", metavar="NAME", help="another link of the library, or host: this machine's own")
    add("--down", metavar="RATE", help="TCP payload rate towards the command: 10mbit")
    add("--up", metavar="RATE", help="TCP payload rate away from the command: 5mbit")
    add("--delay", metavar="TIME", help="one-way delay: 20ms; a round trip takes twice that")
    add("--jitter", metavar="TIME", help="standard deviation of the delay: 5ms")
    add("--loss", metavar="SHARE", help="share of packets lost in each direction: 1%%")
    add(
        "--queue",
        metavar="DEPTH",
        help="depth of the queue of each direction, as time at the fastest rate, 300ms, or in "
        "bytes, 64k (default: that of the link, or 100ms)",
    )
    add(
        "--queue-discipline",
        choices=("drop-tail", "fq_codel"),
        help="kind of these queues; fq_codel needs it in the kernel",
    )
    add(
        "--trace",
        metavar="FILE",
        help="rates over time, repeated: a CSV file (t_s,down_mbps,up_mbps), a mahimahi trace, "
        "or data:SET/TRACE",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of loss, jitter and drawn values")
    add(
        "--user",
        metavar="USER",
        help="run the command as this user (default: the current user, so root after sudo)",
    )
    add("--backend", choices=("auto", "namespace", "process"), default="auto", help=_BACKEND)
    add("-v", "--verbose", action="store_true", help="print a report on stderr")
    add("--json", type=Path, metavar="FILE", help="write the report to a file")


_HOST_CORE_SPEED = (
    "speed of one core of this machine, in cores of the profiles' reference machine (default 1.0); "
    "auto measures it once, in about a second"
)

_BACKEND = "auto uses namespace, or reports why it cannot; process slows the processor only"


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the command line of `fairbed shape` at its first `--`.

    Returns:
        Arguments of `fairbed`, and those of the command; for other subcommands the second is empty.
    """
    own = list(arguments)
    first = next((word for word in own if not word.startswith("-")), None)
    if first != COMMAND or {"-h", "--help"} & set(own[: own.index("--") if "--" in own else None]):
        return own, []
    if "--" not in own:  # the subcommand reports the missing command
        return own[: own.index(COMMAND) + 1], []
    cut = own.index("--")
    return own[:cut], own[cut + 1 :]
