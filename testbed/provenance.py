"""Where a run comes from: revisions of the code, versions of packages, hashes of the data.

No function raises: what cannot be read is None, or left out.
"""

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil

from fairbed.coordinator.store import Provenance
from fairbed.device_agent.installed import installed_version
from fairbed.testbed.experiment.datasets.dataset import arrays_sha256
from fairbed.testbed.experiment.shards import FleetData
from fairbed.testbed.host.speed import cpu_model
from fairbed.wire.console import storable

PACKAGES = ("fairbed", "numpy", "onnxruntime", "msgspec", "torch")
"""Packages whose version may change a result."""

GIT_TIMEOUT_S = 5.0
"""Longest wait for git; on a cold SD card it reads the index for a second."""

CHECKOUT = Path(__file__).resolve().parents[1]
"""Folder of this package: the root of a checkout of Fairbed, or a folder in site-packages."""

_GIT = ("git", "-c", "core.fsmonitor=false", "status", "--porcelain=v2", "--branch")
_REDIRECTING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
"""Variables that would make git read another repository, as inside a hook."""


def provenance(
    folder: Path,
    data: FleetData | None,
    origins: Mapping[str, str] | None = None,
    inputs: Mapping[str, str] | None = None,
) -> Provenance:
    """Return the provenance of a run.

    Args:
        folder: Folder of the experiment file.
        data: The divided data; None if the run uses no data.
        origins: What set each key of the experiment; None is unknown.
        inputs: Hashes of what the run read; None is unknown.
    """
    return Provenance(
        git_revision=revision(CHECKOUT) if os.path.exists(CHECKOUT / ".git") else None,
        experiment_revision=revision(folder),
        packages=packages(),
        data_sha256=None if data is None else data_sha256(data),
        partition_sha256=None if data is None else partition_sha256(data),
        inputs={storable(name): found for name, found in (inputs or {}).items()},
        data_notes=() if data is None else tuple(map(storable, data.dataset.notes)),
        machine=machine(),
        origins={key: storable(origin) for key, origin in (origins or {}).items()},
    )


def machine() -> dict[str, str]:
    """Return what this machine is: processor, cores, memory and system."""
    return {
        "processor": cpu_model(),
        "cores": str(os.cpu_count() or 1),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def revision(folder: Path) -> str | None:
    """Return the commit of the git checkout that has `folder`, as `git describe --dirty` would.

    The suffix `-dirty` states that files which git tracks differ from the commit.

    Returns:
        None if the folder is in no checkout, has no commit yet, or git cannot read it.
    """
    try:
        here = folder.resolve()
        if not any(os.path.exists(place / ".git") for place in (here, *here.parents)):
            return None
        environment = {k: v for k, v in os.environ.items() if k not in _REDIRECTING}
        done = subprocess.run(
            [*_GIT, "--untracked-files=no"],
            cwd=here,
            env=environment | {"GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, RuntimeError, subprocess.SubprocessError):  # RuntimeError: a loop of links
        return None
    lines = done.stdout.decode(errors="replace").splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    if not commits or commits[0] == "(initial)":
        return None
    is_dirty = any(not line.startswith("#") for line in lines)
    return commits[0] + ("-dirty" if is_dirty else "")


def packages() -> dict[str, str]:
    """Return the versions of Python and of the installed `PACKAGES`, without importing them."""
    found = {"python": platform.python_version()}
    versions = {name: installed_version(name) for name in PACKAGES}
    return found | {name: number for name, number in versions.items() if number is not None}


def data_sha256(data: FleetData) -> str:
    """Return the hash of all examples, labels and natural users of a data set."""
    return data.dataset.sha256


def partition_sha256(data: FleetData) -> str:
    """Return the hash of the rows that each device trains on and holds out."""
    return arrays_sha256(
        rows for pair in zip(data.train_rows, data.test_rows, strict=True) for rows in pair
    )


def difference(before: Provenance, now: Provenance) -> str | None:
    """Return what differs at the resumption of a run from its start; None if nothing does.

    The revision of the experiment does not count: the run has its own copy of the experiment.
    """
    pairs = [
        ("git revision", before.git_revision, now.git_revision),
        ("data", before.data_sha256, now.data_sha256),
        ("partition", before.partition_sha256, now.partition_sha256),
    ]
    names = sorted({*before.packages, *now.packages})
    pairs += [(name, before.packages.get(name), now.packages.get(name)) for name in names]
    shared = before.inputs.keys() & now.inputs.keys()
    pairs += [(name, before.inputs[name], now.inputs[name]) for name in sorted(shared)]
    found = [
        f"{name} {new or 'none'} (was {old or 'none'})" for name, old, new in pairs if old != new
    ]
    return f"resumed with a different provenance: {', '.join(found)}" if found else None
