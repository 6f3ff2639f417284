"""amqtt as a program: one listener, one user, and fixes for two faults of its broker.

Run by its path: `python -I amqtt_broker.py SETTINGS.json`, with `bind`, `user` and `password`.
The faults of amqtt 0.12.1: a client that connects receives the retained messages of all other
clients' subscriptions; and if another client subscribes at that time, the new session ends with
"dictionary changed size during iteration". Both happen whenever a fleet joins.
"""

import asyncio
import hmac
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amqtt.broker import Broker
from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session


class OnePassword(BaseAuthPlugin):  # type: ignore[misc]  # amqtt publishes no types
    """Accepts one user with one password."""

    @dataclass
    class Config:
        """The settings that amqtt passes to this plug-in."""

        user: str
        password: str

    async def authenticate(self, *, session: Session) -> bool:
        """Return whether user and password are correct."""
        credentials = f"{session.username}:{session.password}".encode()
        return hmac.compare_digest(
            credentials, f"{self.config.user}:{self.config.password}".encode()
        )


class FixedBroker(Broker):  # type: ignore[misc]  # amqtt publishes no types
    """amqtt's broker, in which no other task runs during a loop over all subscriptions."""

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        subscribers = self._subscriptions.get(subscription[0], ())
        if any(subscriber is session for subscriber, _ in subscribers):
            await super()._publish_retained_messages_for_subscription(subscription, session)

    async def _topic_filtering(self, *_: Any, **__: Any) -> bool:
        return True


async def serve(bind: str, user: str, password: str) -> None:
    """Run the broker until the process is killed."""
    settings = {
        "listeners": {"default": {"type": "tcp", "bind": bind}},
        "plugins": {f"{__name__}.{OnePassword.__name__}": {"user": user, "password": password}},
    }
    broker = FixedBroker(settings)
    await broker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("transitions").setLevel(logging.WARNING)
    asyncio.run(serve(**json.loads(Path(sys.argv[1]).read_text())))
