"""The files that the cells of a grid read, and whether another host has the same ones.

A process of its own sets the experiments up and notes each file that it opens, because an audit
hook cannot be removed again: `python -m fairbed.testbed.compare.needed_files`, with the experiments
as JSON on its standard input.
"""

import hashlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

import fairbed
from fairbed.testbed.compare.worker import CELL_ERRORS
from fairbed.testbed.errors import ClusterError
from fairbed.testbed.experiment.datasets.loading import FOLDER_VARIABLE
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.replay.setup import setup_of

BLOCK_BYTES = 1 << 20

_OF_THE_SYSTEM = ("/dev/", "/etc/", "/proc/", "/sys/", "/usr/share/zoneinfo/")

_PYTHON = ("stdlib", "platstdlib", "purelib", "platlib")
"""Folders of Python and of installed packages, as `sysconfig` names them."""


class NeededFile(Struct, frozen=True, kw_only=True):
    """A file that a cell reads."""

    path: str
    """Absolute, or below the folder of data sets."""
    is_data: bool
    """Whether it is below the folder of data sets, `FAIRBED_DATA`, which each host sets."""
    sha256: str

    def here(self) -> str:
        """Return the path on this machine."""
        return os.path.join(_data_folder() or "", self.path) if self.is_data else self.path


def needed_files(experiments: Iterable[Experiment]) -> list[NeededFile]:
    """Return the files that experiments read, without those of Fairbed and of Python.

    An experiment that cannot be set up adds those that it opened until then.

    Raises:
        ClusterError: The process that finds them failed.
    """
    distinct = {_inputs(experiment): experiment for experiment in experiments}
    done = subprocess.run(
        guarded([sys.executable, "-m", __spec__.name]),
        input=msgspec.json.encode(list(distinct.values())),
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(
            "--cluster: the files that the grid reads must be known, but the process that finds "
            f"them ended with exit status {done.returncode}; its output is above"
        )
    return msgspec.json.decode(done.stdout, type=list[NeededFile])


def first_missing(files: Sequence[NeededFile]) -> str | None:
    """Return the problem of the first file that this machine lacks; None if it has all."""
    for file in files:
        path = file.here()
        try:
            found = _sha256(path)
        except OSError:
            return f"{path} must be the file of this machine, got none; copy it there"
        if found != file.sha256:
            return f"{path} must be the file of this machine, got another content; copy it there"
    return None


def _inputs(experiment: Experiment) -> bytes:
    """Return all settings that name a file or a plug-in."""
    selection, rule = experiment.selection, experiment.aggregation
    plugins = (selection.policy, selection.estimator, rule.rule, rule.pseudo_gradient, rule.server)
    of_world = (experiment.data, experiment.model, experiment.fleet, experiment.cell)
    return msgspec.json.encode((plugins, of_world, experiment.replay, experiment.training.rule))


def _data_folder() -> str | None:
    root = os.environ.get(FOLDER_VARIABLE)
    return None if not root else os.path.realpath(os.path.expanduser(root))


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def main() -> None:
    """Print the files that experiments open, as JSON."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a plug-in prints must not mix with the answer
    opened = set[str]()

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            mode = arguments[1]
            if not isinstance(mode, str) or not set(mode) & set("wax+"):
                opened.add(os.fsdecode(os.path.abspath(arguments[0])))
        elif event == "sqlite3.connect" and isinstance(arguments[0], str):
            opened.add(os.path.abspath(unquote(urlsplit(arguments[0]).path)))

    sys.addaudithook(note)
    for experiment in msgspec.json.decode(sys.stdin.buffer.read(), type=list[Experiment]):
        data = experiment.data
        if data.is_table and data.source is not None:  # read by a library of C++
            path = Path(data.folder or "").expanduser() / Path(data.source).expanduser()
            opened.add(os.path.abspath(path))
        try:
            setup_of(experiment)
        except CELL_ERRORS:  # the cell reports it
            continue
    modules = list(sys.modules.values())
    opened |= {file for module in modules if (file := getattr(module, "__file__", None))}
    answer.write(msgspec.json.encode(_described(opened)))
    answer.close()


def _described(paths: Iterable[str]) -> list[NeededFile]:
    """Return existing files of the user, sorted."""
    package = Path(next(iter(fairbed.__path__)))
    places: list[str | Path] = [sysconfig.get_path(name) for name in _PYTHON]
    if sys.prefix != sys.base_prefix:
        places.append(sys.prefix)
    own = [os.path.realpath(place) + os.sep for place in [*places, package, *package.iterdir()]]
    found, data = dict[str, NeededFile](), _data_folder()
    for path in sorted(map(os.path.realpath, paths)):
        if path.startswith((*_OF_THE_SYSTEM, *own)) or not os.path.isfile(path):
            continue
        is_data = data is not None and path.startswith(data + os.sep)
        name = os.path.relpath(path, data) if is_data else path
        found[path] = NeededFile(path=name, is_data=is_data, sha256=_sha256(path))
    return list(found.values())


if __name__ == "__main__":
    main()
