"""A question before a selection, and its answer: what is the loss of this model on your data?"""

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from wire.parts import BlobId, Coding, Count, Manifest, Message, RoundId, Seconds


class Ask(Message, frozen=True, kw_only=True, tag="ask"):
    """Evaluate the model of a round before anybody is selected, and answer with `Answer`.

    A device that is selected then has the model already: it keeps it until the next `Train`,
    `Ask` or `Cancel`. Only who named the skill `loss` is asked.
    """

    round: RoundId
    attempt: Count = 0
    model: Manifest
    examples: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    """Size of the mini-batch to evaluate; None is the whole training set."""
    seed: Count
    """Picks the mini-batch."""
    limit_s: Seconds
    """Time the coordinator will wait; past it the device may stop."""
    coding: Coding | UnsetType = UNSET
    """Left out where the model travels as float32."""


class Answer(Message, frozen=True, kw_only=True, tag="answer"):
    """The loss of the model that `Ask` announced; only who was asked says it.

    The durations are laps of one stopwatch, from the arrival of `Ask` to the answer.
    """

    round: RoundId
    attempt: Count = 0
    """That of the `Ask` it answers."""
    loss: Annotated[float, Meta(ge=0.0)]
    """Mean over the examples, in nats."""
    n: Count
    """Examples that were evaluated."""
    was_cold: bool
    """Data and session had to be loaded."""
    download_s: Seconds
    decode_s: Seconds
    load_s: Seconds
    evaluate_s: Seconds
    pulled: BlobId | UnsetType = UNSET
    """The blob that the model came in; left out if it was `Ask.model`."""
