"""A host of a cluster, its software, and how that differs from the software of this machine.

Results are equal to the bit only where the code, its numerical libraries and the processors are.
"""

import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Host:
    """One node of the cluster."""

    name: str
    """Unique in the cluster: its host name, with a number where nodes share a machine."""
    node_id: str
    """The id that Ray gives it."""
    address: str
    """Address at which the other hosts reach it."""
    cores: float
    """Cores that it offers to Ray."""
    memory_bytes: int
    """Memory that it offers to Ray for processes."""
    is_here: bool
    """Whether this process runs on it."""


Facts: TypeAlias = Mapping[str, str]
"""What a host reports: versions of `PACKAGES` that it has, `python`, `code`, `processor`, ..."""

PACKAGES = ("ray", "fairbed", "numpy", "onnxruntime", "msgspec", "scipy", "scikit-learn", "torch")
"""Packages that must be equal on all hosts."""

OPTIONAL = frozenset({"torch"})
"""Packages that a host may lack; an experiment that needs one fails there with one line."""

_OF_RAY = re.compile(r"Ray:\s*(\S+)\s+Python:\s*(\S+)")
"""A pair of versions in the error of Ray about versions that differ."""


def facts_here() -> dict[str, str]:
    """Return the facts of this machine."""
    return reporter()()


def reporter() -> Callable[[], dict[str, str]]:
    """Return the function that reports the facts of the machine that calls it.

    It refers to no module of Fairbed: cloudpickle sends it by value, so that a host with another
    version of Fairbed, or none, can call it.
    """
    packages = PACKAGES
    find, lookup, missing, digest_of = find_spec, version, PackageNotFoundError, sha256
    machine, system = platform, os

    def code_hash(folder: str) -> str:
        """Return the hash of all files of a package but compiled ones."""
        digest = digest_of()
        for place, folders, files in system.walk(folder, followlinks=True):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(files):
                path = system.path.join(place, name)
                digest.update(system.path.relpath(path, folder).encode() + b"\0")
                with open(path, "rb") as file:
                    digest.update(digest_of(file.read()).digest())
        return digest.hexdigest()[:12]

    def processor() -> str:
        try:
            with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
                for line in file:
                    if line.startswith("model name"):
                        return line.partition(":")[2].strip()
        except OSError:  # not Linux
            pass
        return machine.processor() or machine.machine()

    def report() -> dict[str, str]:
        found = {"python": machine.python_version(), "processor": processor()}
        for name in packages:
            try:
                found[name] = str(lookup(name))
            except missing:
                continue
        spec = find("fairbed")
        if spec is not None and spec.submodule_search_locations:
            found["code"] = code_hash(next(iter(spec.submodule_search_locations)))
        return found

    return report


def difference(host: str, theirs: Facts, ours: Facts) -> str | None:
    """Return one line about the first fact in which a host differs; None if nothing matters."""
    for name in ("python", *PACKAGES):
        has, needs = theirs.get(name), ours.get(name)
        if has != needs and not (name in OPTIONAL and (has is None or needs is None)):
            return _line(host, name, has, needs)
    if theirs.get("code") != ours.get("code"):
        return (
            f"host {host}: the files of Fairbed must be those of this machine, got other ones in "
            f"version {theirs.get('fairbed')} ({theirs.get('code')} there, {ours.get('code')} "
            "here); install the same build there"
        )
    return None


def _line(host: str, name: str, has: str | None, needs: str | None) -> str:
    title = {"python": "Python", "ray": "Ray", "fairbed": "Fairbed"}.get(name, name)
    advice = f"install {title} {needs} there" if needs else f"install {title} {has} here"
    return (
        f"host {host}: {title} must be {needs or 'absent'} as on this machine, got "
        f"{has or 'none'}; {advice}"
    )


def difference_in(error: str, host: str) -> str | None:
    """Return one line from an error of Ray about the versions of a cluster and this machine.

    None if the error is about something else.
    """
    pairs = _OF_RAY.findall(error)
    if "Version mismatch" not in error or len(pairs) < 2:
        return None
    theirs, ours = (dict(zip(("ray", "python"), pair, strict=True)) for pair in pairs[:2])
    for name in ("python", "ray"):
        if theirs[name] != ours[name]:
            return _line(host, name, theirs[name], ours[name])
    return None


def processors_line(processors: Mapping[str, str]) -> str | None:
    """Return a warning if hosts have different processors, by host; None if they are equal."""
    if len(set(processors.values())) < 2:
        return None
    named = "; ".join(f"{host}: {name}" for host, name in processors.items())
    return (
        f"hosts have different processors ({named}): trained models may differ in their last bits "
        "between them"
    )
