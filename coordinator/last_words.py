"""What devices are told of exchanges that are over, also when they ask again."""

from coordinator.exchange import Exchange, Stage
from coordinator.post import Post
from wire.messages import Cancel, Received


class LastWords:
    """Says them, and remembers one a device."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._words: dict[str, Received | Cancel] = {}

    def say(self, exchange: Exchange) -> None:
        """Tell a device what became of its exchange."""
        stage, offer, why = exchange.stage, exchange.offer, exchange.why
        word: Received | Cancel = Cancel(round=exchange.round, reason=why)
        if offer is not None and stage in (Stage.DONE, Stage.REJECTED):
            is_accepted, blob = stage is Stage.DONE, offer.manifest.id
            word = Received(round=exchange.round, id=blob, accepted=is_accepted, reason=why)
        self._words[exchange.device] = word
        self._post.say(exchange.device, word)

    def repeat(self, device: str, round_id: int, otherwise: str) -> None:
        """Tell a device again what became of its exchange, or that nothing will."""
        word = self._words.get(device)
        if word is None or word.round != round_id:
            word = Cancel(round=round_id, reason=otherwise)
        self._post.say(device, word)
