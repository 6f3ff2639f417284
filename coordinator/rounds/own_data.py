"""Tests of the global model by devices with data of their own, in the gap after a round.

The coordinator cannot evaluate the model on data that it does not have, so these devices do it
themselves, on test examples that they hold out. Where each device keeps values of the model, all
devices do so, with their own values and the held-out examples of their shards. Nothing of it is
measured: the round is closed and its rows are written, the next one begins after the last reply or
the limit, and no deadline, observation or link estimate includes the test. A device downloads the
model for its test and again if it is selected next, so that its exchange is the same with and
without a test.

Devices that are available and at no work are asked. A device whose reply is late, lost or not valid
has no score for this round. At the limit its test is cancelled; it is available again once it
reports the phase idle, and the next round waits for that, at most `IDLE_WAIT_S`. A device that is
late or lost `LATE_TESTS` times in a row is not asked again, so that it cannot delay every round. It
has one more chance when its agent restarts.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from math import inf

import msgspec

from fairbed.coordinator.fleet.membership import Fleet
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.policy.decisions import MAX_LOSS
from fairbed.coordinator.ports import Score
from fairbed.coordinator.rounds.loss_query import LossQueryExecutor
from fairbed.coordinator.rounds.model_versions import ModelVersions
from fairbed.coordinator.state.loss_query import LossQuery, QueryOutcome, pulled_manifest
from fairbed.coordinator.state.registry import Device
from fairbed.coordinator.store.event_log import EventLog
from fairbed.wire.evaluation import ONE_CLASS, Predicted, quality_in
from fairbed.wire.messages import EvaluateReply, EvaluateRequest

IDLE_WAIT_S = 3.0
"""Longest wait for devices to end work that was cancelled: a batch and a round trip."""


NO_TEST_EXAMPLE = (
    "its data must have 2 examples or more, of which some are held out, or arrays x_test and y_test"
)

LATE_TESTS = 3
"""Late or lost tests in a row after which an agent process is not asked again."""

LATE_PROCESSES = 2
"""Agent processes of a device that were left out so, after which it is not asked again in this run:
a device can claim a restart at any time."""


class OwnDataTests:
    """Asks devices with own data to test each version of the model that is evaluated.

    Args:
        config: Configuration of the run.
        fleet: The devices.
        versions: The model.
        executor: Sends the requests; it executes loss queries at other times.
        event_log: Clock and log.
        task: What the model predicts.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        fleet: Fleet,
        versions: ModelVersions,
        executor: LossQueryExecutor,
        event_log: EventLog,
        task: Predicted = ONE_CLASS,
    ) -> None:
        self._config, self._task = config, task
        self._fleet = fleet
        self._registry = fleet.registry
        self._versions = versions
        self._executor = executor
        self._event_log = event_log
        self._left_out: set[tuple[str, int]] = set()
        """Name and boot of devices that are not asked any more."""
        self._late: Counter[str] = Counter()
        """Late or lost tests in a row."""
        self._late_processes: Counter[str] = Counter()

    def open_devices(self) -> list[str]:
        """Return the devices whose test is expected."""
        return self._executor.open_devices()

    async def run(
        self, round_id: int, attempt: int, *, limit_s: float, is_last: bool
    ) -> dict[str, Score]:
        """Return the score of each device that replied in time, by name.

        In asynchronous rounds devices work between rounds, too, so they are tested after the last.

        Args:
            round_id: The round that was closed last.
            attempt: Its attempt.
            limit_s: Longest wait for the replies, seconds.
            is_last: No round follows.
        """
        config = self._config
        if config.held_out is None or (config.round.is_buffered and not is_last):
            return {}
        if not any(device.can_test for device in self._registry):
            return {}
        await self._fleet.wait_settled()
        await self._wait_idle([device.name for device in self._registry if device.can_test])
        query = LossQuery(round_id, attempt, limit_s)
        requests = {x.name: self._request(x, query) for x in self._registry if self._is_testable(x)}
        if not requests:
            return {}
        boots = {name: self._registry[name].boot for name in requests}
        await self._executor.execute(query, requests)
        late = [x.device for x in query.devices.values() if x.outcome is QueryOutcome.LATE]
        self._registry.drain(late, round_id)
        await self._wait_idle(late)
        self._count_late(query, boots)
        replies = {
            x.device: x.reply
            for x in query.devices.values()
            if x.outcome is QueryOutcome.ANSWERED and x.reply is not None
        }
        for name in (name for name, reply in replies.items() if not reply.n):
            self._leave_out(name, boots[name], f"it has no accuracy: {NO_TEST_EXAMPLE}", round_id)
        return {
            name: self._score(self._registry[name], reply, requests[name])
            for name, reply in replies.items()
            if reply.n
        }

    def _is_testable(self, device: Device) -> bool:
        is_free = device.is_available(self._event_log.now())
        is_left_out = (device.name, device.boot) in self._left_out
        is_left_out |= self._late_processes[device.name] >= LATE_PROCESSES
        return device.can_test and is_free and not is_left_out

    def _request(self, device: Device, query: LossQuery) -> EvaluateRequest:
        return EvaluateRequest(
            round=query.round,
            attempt=query.attempt,
            model=self._versions.manifest,
            seed=0,
            limit_s=query.limit_s,
            coding=self._versions.coding(device),
            split="test",
            local_values=self._config.local_values(
                self._event_log.store.run_id, device.aggregated_round
            ),
        )

    def _score(self, device: Device, reply: EvaluateReply, request: EvaluateRequest) -> Score:
        if not device.has_own_data:  # its examples are those of the coordinator
            return score_of(reply, request, task=self._task)
        if reply.n > device.n_registered:
            text = f"reports {reply.n} test examples; they count as {device.n_registered}"
            self._event_log.warn("clamped", text, device=device.name, round_id=request.round)
        return score_of(reply, request, device.n_registered, self._task)

    def _count_late(self, query: LossQuery, boots: Mapping[str, int]) -> None:
        """Leave out devices that were late or lost too often in a row.

        Args:
            query: The tests.
            boots: Agent process of each device when its test began.
        """
        for name, tested in query.devices.items():
            if tested.outcome not in (QueryOutcome.LATE, QueryOutcome.LOST):
                self._late.pop(name, None)
                continue
            self._late[name] += 1
            if self._late[name] >= LATE_TESTS:
                self._late_processes[name] += 1
                is_final = self._late_processes[name] >= LATE_PROCESSES
                text = (
                    f"its test was late or lost {self._late[name]} times in a row, so it is not "
                    f"asked again; raise evaluation.timeout_s, got {query.limit_s:g}"
                    f"{'' if is_final else ', or restart its agent'}"
                )
                self._leave_out(name, boots[name], text, query.round)

    def _leave_out(self, name: str, boot: int, why: str, round_id: int) -> None:
        self._left_out.add((name, boot))
        self._event_log.event("not evaluated", why, level="warning", device=name, round_id=round_id)

    async def _wait_idle(self, names: Collection[str]) -> None:
        """Wait until devices have ended cancelled work, at most `IDLE_WAIT_S`."""
        devices = [self._registry[name] for name in names]
        ends = self._event_log.now() + IDLE_WAIT_S
        while any(device.is_on and device.is_draining for device in devices):
            left = ends - self._event_log.now()
            if left <= 0.0:
                return
            await self._fleet.wait_change(left)


def score_of(
    reply: EvaluateReply,
    request: EvaluateRequest,
    most: float = inf,
    task: Predicted = ONE_CLASS,
) -> Score:
    """Return the score in a valid reply, whose values no device can make too large.

    Args:
        reply: Of at least one test example.
        request: The message that it replies to.
        most: Largest number of examples that counts: above it n is smaller, and correct / n is
            about the same.
        task: What the model predicts.
    """
    n = int(min(reply.n, most))
    pulled = pulled_manifest(reply, request)
    counts = {name: getattr(reply, name) for name in ("correct", "positions", "exact")}
    counted = {name: x if x is None else x * n // reply.n for name, x in counts.items()}
    share = n / reply.n
    sums = {name: tuple(x * share for x in each) for name, each in reply.sums.items()}
    quality = quality_in(task, msgspec.structs.replace(reply, n=n, sums=sums, **counted))
    return Score(
        n=n,
        quality=quality,
        loss_sum=min(reply.loss, MAX_LOSS) * (quality.positions or n),
        bytes_down=None if pulled is None else pulled.size_bytes,
        metrics=reply.metrics,
        has_own_loss=task.has_own_loss,
    )
