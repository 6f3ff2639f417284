"""One device on its way through one exchange that may outlive the round it was asked in."""

from dataclasses import dataclass

from fairbed.coordinator.policy.choice import Choice
from fairbed.coordinator.records.rows import Before, finite
from fairbed.testbed.replay.phases import PHASES
from fairbed.testbed.replay.world import Exchanges, Scene
from fairbed.wire.messages import Manifest, Offer, Phases


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a device does in one exchange, and what was known when it was asked; seconds.

    Plain numbers: a replay that is cut off finds them in its checkpoint.
    """

    row: int
    round: int
    """The round that it was asked in."""
    started_s: float
    """When it was asked, on the virtual clock."""
    signal_s: float
    download_s: float
    decode_s: float = 0.0
    """A checkpoint of before it was played has none."""
    load_s: float
    evaluate_s: float
    train_s: float
    encode_s: float
    upload_s: float
    """Of an update that is granted as soon as it is offered."""
    is_seen: bool
    """The coordinator sees when the upload begins."""
    was_cold: bool
    bytes_down: int
    bytes_up: int
    chunk_bytes: int
    codec_down: str
    codec_up: str
    gone_s: float
    """How long after it was asked the coordinator gives it up because it is away; `inf` is
    never."""
    steps: int
    n_k: int
    known: Before
    context: tuple[float, ...]
    """What was known when it was chosen: 1/mu, cold, seconds down, seconds up."""

    @property
    def pulled_s(self) -> float:
        """How long after it was asked it has the model."""
        return self.signal_s / 2.0 + self.download_s

    @property
    def loaded_s(self) -> float:
        """How long after it was asked session and data are in its memory."""
        return self.pulled_s + self.decode_s + self.load_s

    @property
    def computed_s(self) -> float:
        """How long after it was asked its processor is idle again."""
        return self.loaded_s + self.evaluate_s + self.train_s + self.encode_s

    @property
    def pulled_at(self) -> float:
        """When it has the model."""
        return self.started_s + self.pulled_s

    @property
    def offered_at(self) -> float:
        """When it offers its update; `inf` is never."""
        loaded_s = self.signal_s + self.download_s + self.decode_s + self.load_s
        ready_s = loaded_s + self.evaluate_s + self.train_s + self.encode_s
        return self.started_s + ready_s

    @property
    def gone_at(self) -> float:
        """When it is given up because it is away; `inf` is never."""
        return self.started_s + self.gone_s

    def offer(self, *, takes_room: bool) -> Offer:
        """Return what it says when it has trained.

        Args:
            takes_room: Its update needs memory at the coordinator, and so may have to wait.
        """
        size = self.bytes_up if takes_room else 0
        return Offer(
            round=self.round,
            manifest=Manifest(
                id=bytes(16), kind="update", size_bytes=size, chunk_bytes=self.chunk_bytes
            ),
            phases=Phases(
                download_s=self.download_s,
                load_s=self.load_s,
                evaluate_s=self.evaluate_s,
                train_s=self.train_s,
                train_cpu_s=0.0,
                encode_s=self.encode_s,
                decode_s=self.decode_s,
            ),
            n_k=self.n_k,
            steps=self.steps,
            was_cold=self.was_cold,
        )


_COUNTS = ("bytes_down", "bytes_up", "chunk_bytes", "steps")


def errands_of(exchanges: Exchanges, choice: Choice, scene: Scene, now: float) -> list[Errand]:
    """Return what each of a cohort that is asked `now` is going to do.

    Args:
        exchanges: Of the cohort, columns of shape (K,).
        choice: Of the round.
        scene: What was known of the fleet.
        now: Seconds on the virtual clock.
    """
    columns = {name: getattr(exchanges, name).tolist() for name in (*PHASES, *_COUNTS)}
    gone_s = exchanges.until_gone_s.tolist()
    return [
        Errand(
            row=row,
            round=choice.round,
            started_s=now,
            **{name: column[at] for name, column in columns.items()},
            is_seen=exchanges.upload is not None,
            was_cold=bool(exchanges.was_cold[at]),
            codec_down=exchanges.codec_down[at],
            codec_up=exchanges.codec_up,
            gone_s=gone_s[at],
            n_k=int(scene.examples[row]),
            known=known_before(choice, scene, row),
            context=tuple(choice.context[row].tolist()),
        )
        for at, row in enumerate(choice.rows.tolist())
    ]


def known_before(choice: Choice, scene: Scene, row: int) -> Before:
    """Return what was known of a device when it was chosen, as `ExchangeRow` keeps it."""
    return Before(
        mu_cores=float(1.0 / scene.inverse_mu[row]),
        downlink_bps=finite(scene.down_bps[row]),
        uplink_bps=finite(scene.up_bps[row]),
        link_age_s=None if scene.link_age_s is None else finite(scene.link_age_s[row]),
        context_age_s=0.0 if scene.context_age_s is None else float(scene.context_age_s[row]),
        s_not_previous=int(not scene.last.has_trained[row]),
        s_literal_seed=int(scene.last.is_selected[row]),
        tau_hat_s=float(choice.prediction.tau_hat_s[row]),
        width_s=float(choice.prediction.width_s[row]),
    )
