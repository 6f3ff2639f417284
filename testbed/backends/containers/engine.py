"""Runs containers with podman; finds the options that work on this machine by a trial.

Without an image, the root file system of this machine is the root of a container, under an overlay
that receives its writes: nothing is pulled or built, and the agent is the installed one. With an
image, built from the `Containerfile`, the agent is the one of the image.

crun does not work where control groups of both versions are mounted, but runc does. So podman's
default runtime is tried first, then runc.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from fairbed.testbed.errors import BackendError, BackendUnavailable

RUN_TIMEOUT_S = 60.0
"""Longest run time of podman, on a machine that is busy with the start of a fleet; seconds."""

RUNTIMES: tuple[tuple[str, ...], ...] = ((), ("--runtime", "runc"))

LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
"""Explicit limits, because podman's defaults raise the limits, which needs CAP_SYS_RESOURCE."""

PACKAGES = Path(__file__).parents[4]
"""Folder that contains the `fairbed` package."""


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """Runs containers; see `find_engine`."""

    command: tuple[str, ...]
    """podman with the options that work on this machine."""
    image: str | None = None
    """Container image; None is this machine's root file system."""

    async def __call__(self, *arguments: str) -> str:
        """Run podman; return its stdout.

        Raises:
            BackendError: podman fails.
        """
        return await _run([*self.command, *arguments])

    @property
    def source(self) -> list[str]:
        """Arguments for the root file system of a container; they must precede its command."""
        return ["--pull=never", self.image] if self.image else ["--rootfs", "/:O"]

    @property
    def python(self) -> str:
        """The Python interpreter inside a container."""
        return "python" if self.image else sys.executable

    @property
    def mounts(self) -> list[str]:
        """Arguments that mount what the interpreter inside needs of this machine."""
        if self.image:
            return []
        folders = dict.fromkeys([sys.prefix, sys.base_prefix, str(PACKAGES)])
        volumes = [f"--volume={folder}:{folder}:ro" for folder in folders]
        return [*volumes, f"--env=PYTHONPATH={PACKAGES}"]


async def find_engine(image: str | None = None) -> ContainerEngine:
    """Return an engine that works on this machine, by a trial.

    Args:
        image: Container image; None is this machine's root file system.

    Raises:
        BackendUnavailable: No engine works.
    """
    podman = shutil.which("podman")
    if podman is None:
        raise BackendUnavailable(
            "podman must be on the PATH; sudo apt-get install -y podman runc, or use "
            'emulation.backend = "namespace"'
        )
    problems: dict[str, str] = {}
    for runtime in RUNTIMES:
        engine = ContainerEngine((podman, *runtime), image)
        try:
            await engine("run", "--rm", "--network=none", *LIMITS, *engine.source, "true")
            return engine
        except BackendError as exc:
            if not (runtime and f'"{runtime[-1]}" not found' in str(exc)):  # not installed
                problems.setdefault(str(exc), f"with {runtime[-1]}: " if runtime else "")
    raise BackendUnavailable("; ".join(f"{by}{problem}" for problem, by in problems.items()))


def _verb(command: Sequence[str]) -> str:
    """Return what podman was to do: its first argument that is no global option."""
    options = [option for runtime in RUNTIMES for option in runtime]
    return next((word for word in command[1:] if word not in options), "")


async def _run(command: Sequence[str]) -> str:
    try:
        with anyio.fail_after(RUN_TIMEOUT_S):
            done = await anyio.run_process(command, stderr=subprocess.PIPE, check=False)
    except (OSError, TimeoutError) as exc:
        reason = f"took over {RUN_TIMEOUT_S:g} s" if isinstance(exc, TimeoutError) else str(exc)
        raise BackendError(f"podman: cannot be run, {reason}; try again") from exc
    if done.returncode != 0:
        output = " ".join(done.stderr.decode(errors="replace").split())
        raise BackendError(f"podman: {_verb(command)} failed: {output}")
    return done.stdout.decode()
