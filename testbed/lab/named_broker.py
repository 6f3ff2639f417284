"""The broker of the lab on this machine, under its name: `broker.url = "lab"`."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from fairbed.testbed.broker.permissions import Role, user_of
from fairbed.testbed.lab.folder import open_lab

if TYPE_CHECKING:
    from fairbed.testbed.experiment.file import BrokerConfig
    from fairbed.testbed.run.run_broker import RunBroker


class LabBroker:
    """Satisfies `testbed.run.run_broker.NamedBroker`; a login alone imports nothing of a run."""

    def open(
        self, config: "BrokerConfig", folder: Path, run_id: str
    ) -> "AbstractAsyncContextManager[RunBroker]":
        """Open it for a run while the context lasts, and write the endpoint of the run.

        Raises:
            BrokerError: It does not answer.
            LabError: There is no lab, or it is down.
        """
        from fairbed.testbed.lab.run_broker import open_lab_broker

        return open_lab_broker(config, folder, run_id)

    def earlier_names(self, name: str) -> list[str]:
        """Return the names that a device had before. Blocks."""
        from fairbed.testbed.lab.emulated_identities import earlier_names

        return earlier_names(name)

    def login(self, identity: tuple[str, Role], folder: Path | None = None) -> str:
        """Return its address with the login of an identity of this machine.

        Raises:
            LabError: There is no lab, or it is down.
        """
        if folder is not None:
            return open_lab(folder).url(user_of(*identity))
        from fairbed.testbed.lab.service import open_running_lab

        return open_running_lab().url(user_of(*identity))
