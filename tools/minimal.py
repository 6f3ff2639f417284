"""Run both commands of the README in a minimal Debian: python tools/minimal.py [STEP ...].

Each step has a Debian of its own in a temporary folder (`--folder`), which later runs use again,
and a fresh copy of the newest commit. `demo` has Debian's python3 and ca-certificates only, `test`
git, too: no ensurepip, curl, ip, broker, browser or tmux. The root sees /proc, /sys and /dev, and
the network of this machine. What is missing here to build it is a reason to skip, in one line.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.roots import (  # this file is run as a program
    ROOT,
    StepError,
    call,
    keep_root,
    make_folder,
    new_parser,
    require_machine,
    require_programs,
    run_recipe,
)

RECIPE = "test-minimal"
SUITE = "bookworm"
PYTHON = ("python3", "ca-certificates")
STEP_S = 7200.0
"""Longest step: 20 minutes on two quiet cores."""

ENTER = """
set -e
root=$1 binds=$2
shift 2
mount -t proc proc "$root"/proc
for folder in sys dev; do mount --rbind /$folder "$root"/$folder; done
for path in /etc/resolv.conf $binds; do
    if [ -d "$path" ]; then mkdir -p "$root$path"
    else mkdir -p "$root${path%/*}"; [ -e "$root$path" ] || touch "$root$path"; fi
    mount --bind -o ro "$path" "$root$path"
done
exec chroot "$root" /usr/bin/env -i -C /src "$@"
"""
"""Enters a root, in namespaces of its own. Arguments: root, paths to show, then a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; return 1 if one failed."""
    parser = new_parser(RECIPE, __doc__)
    parser.add_argument(
        "--bind",
        type=Path,
        action="append",
        default=[],
        help="a path of this machine that the root sees, such as a package index; repeat it",
    )
    return run_recipe(RECIPE, parser, arguments, prepare, {"demo": demo, "test": test})


def prepare(args: argparse.Namespace) -> argparse.Namespace:
    """Make the folder of the roots.

    Raises:
        Unavailable: This machine cannot build roots.
    """
    require_machine(RECIPE)
    require_programs({"mmdebstrap": "mmdebstrap", "unshare": "util-linux", "git": "git"})
    make_folder(args.folder)
    return args


def demo(args: argparse.Namespace) -> str:
    """Run `./just demo`."""
    root = args.folder / "root-demo"
    keep_root(root, SUITE, PYTHON, "--variant=minbase")
    source = _empty(root / "src")
    with subprocess.Popen(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", str(source)], stdin=archive.stdout, check=True)
    return _enter(root, args.bind, ["./just", "demo", "--headless"])


def test(args: argparse.Namespace) -> str:
    """Run `./just test`."""
    root = args.folder / "root-test"
    keep_root(root, SUITE, (*PYTHON, "git"), "--variant=minbase")
    source = _empty(root / "src")
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(source)], check=True)
    return _enter(root, args.bind, ["./just", "test"])


def _empty(folder: Path) -> Path:
    """Return a folder, emptied."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _enter(root: Path, binds: Sequence[Path], command: Sequence[str]) -> str:
    """Run a command in the copy of the checkout; return what passed.

    Raises:
        StepError: It failed.
    """
    environ = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LANG": "C.UTF-8"}
    environ |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    variables = [f"{key}={value}" for key, value in environ.items()]
    enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "enter"]
    paths = " ".join(str(path.absolute()) for path in binds)
    status = call([*enter, str(root), paths, *variables, *command], timeout_s=STEP_S)
    if status:
        raise StepError(f"{' '.join(command)}: status {status}")
    return f"passed: {' '.join(command)}"


if __name__ == "__main__":
    sys.exit(main())
