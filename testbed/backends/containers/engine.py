"""How containers are run on this machine, found out by running one.

podman takes the root of this machine as a container's, with an overlay that keeps what the
container writes: nothing is pulled or built, and the agent is the one that is installed here. With
an image, built from our `Containerfile`, it is the one in the image.

crun refuses machines with control groups of both versions, runc takes them; so the runtime that
podman would choose is tried first, then runc.
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
"""For podman to do one thing, on a machine that starts a whole fleet."""

RUNTIMES: tuple[tuple[str, ...], ...] = ((), ("--runtime", "runc"))

LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
"""Said by name: podman would raise the defaults, which takes CAP_SYS_RESOURCE."""

PACKAGES = Path(__file__).parents[4]
"""Folder that holds our packages."""


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """Runs containers; found by `find_engine`."""

    command: tuple[str, ...]
    """podman with the options that make it work here."""
    image: str | None = None
    """What containers are made of; None is this machine's own root."""

    async def __call__(self, *arguments: str) -> str:
        """Run podman; return what it prints.

        Raises:
            BackendError: It fails.
        """
        return await _run([*self.command, *arguments])

    @property
    def source(self) -> list[str]:
        """Arguments for the root file system of a container; the last before its command."""
        return ["--pull=never", self.image] if self.image else ["--rootfs", "/:O"]

    @property
    def python(self) -> str:
        """The interpreter inside."""
        return "python" if self.image else sys.executable

    @property
    def mounts(self) -> list[str]:
        """Arguments that give a container what its interpreter needs of this machine."""
        if self.image:
            return []
        folders = dict.fromkeys([sys.prefix, sys.base_prefix, str(PACKAGES)])
        volumes = [f"--volume={folder}:{folder}:ro" for folder in folders]
        return [*volumes, f"--env=PYTHONPATH={PACKAGES}"]


async def find_engine(image: str | None = None) -> ContainerEngine:
    """Return what runs containers here, by running one.

    Args:
        image: What containers are made of; None is this machine's own root.

    Raises:
        BackendUnavailable: Nothing does.
    """
    podman = shutil.which("podman")
    if podman is None:
        raise BackendUnavailable(
            "podman must be on the PATH; sudo apt-get install -y podman runc, or use "
            'emulation.backend = "namespace"'
        )
    problems = []
    for runtime in RUNTIMES:
        engine = ContainerEngine((podman, *runtime), image)
        try:
            await engine("run", "--rm", "--network=none", *LIMITS, *engine.source, "true")
            return engine
        except BackendError as exc:
            problems.append(str(exc))
    raise BackendUnavailable(problems[-1])


async def _run(command: Sequence[str]) -> str:
    try:
        with anyio.fail_after(RUN_TIMEOUT_S):
            done = await anyio.run_process(command, stderr=subprocess.PIPE, check=False)
    except (OSError, TimeoutError) as exc:
        reason = f"took over {RUN_TIMEOUT_S:g} s" if isinstance(exc, TimeoutError) else str(exc)
        raise BackendError(f"podman: cannot be run, {reason}; try again") from exc
    if done.returncode != 0:
        output = " ".join(done.stderr.decode(errors="replace").split())
        raise BackendError(f"podman: must run {' '.join(command[1:3])}, got: {output}")
    return done.stdout.decode()
