"""The broker of the lab on this machine during a run."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from fairbed.coordinator.ports import Audit, EarlierNames, TaskKeyOf
from fairbed.coordinator.server.service import Coordinator
from fairbed.testbed.broker.permissions import COORDINATOR, user_of
from fairbed.testbed.errors import LabError
from fairbed.testbed.experiment.file import BrokerConfig
from fairbed.testbed.lab.audit import Audit as AuditLog
from fairbed.testbed.lab.emulated_identities import (
    earlier_names,
    emulated_identities,
    enrolled_task_key,
    not_enrolled,
    watch_identities,
)
from fairbed.testbed.lab.folder import Lab
from fairbed.testbed.lab.service import open_running_lab, pid_of_broker
from fairbed.testbed.run.run_broker import RunBroker, check_broker
from fairbed.testbed.run_folder import Endpoint, write_endpoint
from fairbed.wire.messages import OperatorAnswer, OperatorCommand
from fairbed.wire.topics import Topics
from fairbed.wire.transport.address import redact, redirected, with_client


@asynccontextmanager
async def open_lab_broker(
    config: BrokerConfig, folder: Path, run_id: str
) -> AsyncIterator[RunBroker]:
    """Open the broker of the lab for a run; see `NamedBroker.open`."""
    lab = open_running_lab()
    url = with_client(lab.url(user_of(*COORDINATOR)), config.client)
    await check_broker(url, Topics(config.tenant))
    endpoint = Endpoint(
        url=url, tenant=config.tenant, run_id=run_id, room="lab", room_folder=str(lab.folder)
    )
    write_endpoint(folder, msgspec.structs.replace(endpoint, url=redact(url)))
    yield RunAtLab(endpoint, lab=lab)


@dataclass(slots=True, kw_only=True)
class RunAtLab(RunBroker):
    """The broker of a lab during a run."""

    lab: Lab

    @property
    def pid(self) -> int | None:
        """Process of the broker; None while it is down."""
        return pid_of_broker(self.lab)

    def flood_advice(self, device: str) -> str:
        """Return how a device is taken out of the lab."""
        return f"take it out with: fairbed devices revoke {device}"

    def logins(self, names: Sequence[str]) -> AbstractAsyncContextManager[Mapping[str, str] | None]:
        """Return the passwords of emulated devices, which the lab accepts while it lasts."""
        where = self.endpoint
        return emulated_identities(
            self.lab.folder, where.url, names, tenant=where.tenant, run_id=where.run_id
        )

    def url_at(self, address: str) -> str:
        """Return the address with TLS, for other hosts."""
        port = self.lab.settings.port
        url = f"mqtts://127.0.0.1:{port}?cafile={quote(str(self.lab.ca))}"
        return redirected(url, address, port)

    @property
    def earlier_names(self) -> EarlierNames:
        """What returns the names that a device had before; blocks."""
        return earlier_names

    @property
    def task_key_of(self) -> TaskKeyOf:
        """What returns the task key of an enrolled device; blocks."""
        return partial(enrolled_task_key, self.lab.folder, self.endpoint.tenant)

    def audit(self, run_id: str, on_problem: Callable[[str], None]) -> Audit:
        """Return what notes operator commands in the audit log of the lab."""
        log = AuditLog(self.lab.audit)

        def note(command: OperatorCommand, operator: str, answer: OperatorAnswer) -> None:
            verdict = "" if answer.is_accepted else f" (refused: {answer.text})"
            try:
                log.write(
                    "command",
                    at_s=time.time(),
                    name=command.device or "",
                    role="device" if command.device else "",
                    by=f"operator_{operator}",
                    detail=f"{command.line} {run_id}{verdict}",
                )
            except LabError as exc:  # a full disk must not end the run
                on_problem(str(exc))

        return note

    async def watch(
        self,
        coordinator: Coordinator,
        physical: Sequence[str],
        waiting: Callable[[str], None],
        group: TaskGroup,
    ) -> None:
        """Follow the identities of the lab, and report physical devices without one."""
        folder, tenant = self.lab.folder, self.endpoint.tenant
        group.start_soon(
            watch_identities, folder, tenant, coordinator.refuse_all_but, name="run.identities"
        )
        find = partial(not_enrolled, folder, physical, tenant, time.time())
        for name in await anyio.to_thread.run_sync(find):
            line = f"{name} is not enrolled in the lab; run: fairbed enroll {name}"
            coordinator.note("not-enrolled", line, "warning", name)
            waiting(line)
