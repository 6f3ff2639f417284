"""What a selection has to know before it is made: the losses of candidates, asked for in time."""

from collections.abc import Collection

from coordinator.accounting import answers_of, ask_rows
from coordinator.algorithms.selection.base import Asking
from coordinator.asker import Asker
from coordinator.choice import Answers, Question
from coordinator.config import CoordinatorConfig
from coordinator.decisions import Decisions
from coordinator.journal import Journal
from coordinator.poll import Poll, Reply
from coordinator.registry import Registry
from coordinator.store.records import AskRow
from coordinator.versions import Versions
from wire.messages import Ask


class Inquiry:
    """Asks before each selection, where the selector wants to know, and remembers the answers."""

    def __init__(
        self,
        config: CoordinatorConfig,
        decisions: Decisions,
        registry: Registry,
        versions: Versions,
        asker: Asker,
        journal: Journal,
    ) -> None:
        self._config = config
        self._decisions = decisions
        self._registry = registry
        self._versions = versions
        self._asker = asker
        self._journal = journal
        self._began: float | None = None
        self.rows: list[AskRow] = []
        """What came of the questions of this round."""
        registry.must_answer = isinstance(decisions.selector, Asking)

    async def run(self, round_id: int, attempt: int) -> Answers | None:
        """Return the answers of a round; None where nobody has to be asked."""
        now = self._journal.now()
        self._began, self.rows = None, []
        question = self._decisions.question(
            round_id, self._registry, self._versions.transfer_bits(), now
        )
        if question is None:
            return None
        self._began = now
        names = [self._registry.names()[row] for row in question.rows.tolist()]
        poll = Poll(round_id, attempt, self._config.selection.ask_timeout_s)
        asks = {name: self._ask(name, question, poll) for name in names}
        if asks:
            self._journal.event("asked", " ".join(names), round_id=round_id)
            await self._asker.ask(poll, asks)
        late = [x.device for x in poll.asked.values() if x.reply is Reply.LATE]
        self._registry.drain(late, round_id)
        self.rows = ask_rows(poll, asks)
        return answers_of(question, poll, self._registry.names())

    def dismiss(self, round_id: int, selected: Collection[str]) -> None:
        """Tell those who have answered for nothing that they need not keep the model."""
        self._asker.dismiss(round_id, sorted(self.answered.difference(selected)))

    @property
    def answered(self) -> set[str]:
        """Who has told a loss in this round."""
        return {row.device for row in self.rows if row.outcome == Reply.ANSWERED.value}

    @property
    def bytes_down(self) -> int:
        """What the model took on its way to who was asked."""
        return sum(row.bytes_down for row in self.rows)

    def lasted_s(self, dispatched: float) -> float:
        """Return the seconds from the first question to the dispatch; 0 without a question."""
        return 0.0 if self._began is None else dispatched - self._began

    def _ask(self, name: str, question: Question, poll: Poll) -> Ask:
        device, batch = self._registry[name], self._config.training.batch_size
        return Ask(
            round=poll.round,
            attempt=poll.attempt,
            model=self._versions.manifest,
            examples=batch if question.sample == "batch" else None,
            seed=self._decisions.asking_seed(poll.round, device.row),
            limit_s=poll.limit_s,
            coding=self._versions.coding(device),
        )
