"""The module `fairbed_flower`, by which an app with its own loop goes on after a crash.

    try:
        from fairbed_flower import resumed
    except ImportError:  # not a run of Fairbed

        def resumed(arrays):
            return arrays, 1

    arrays, first_round = resumed(ArrayRecord(...))

An app whose rounds are run by `Strategy.start` needs no such call.
"""

import sys
import types
from typing import Any

from fairbed.device_agent.clients.child.flower_records import decode, from_records
from fairbed.testbed.flower.child.app_link import AppLink, Start

LOST = "all that the app has not kept itself, such as its metrics"


def offer_arrays(link: AppLink, start: Start) -> None:
    """Make the module `fairbed_flower` of this process."""

    def resumed(arrays: Any) -> tuple[Any, int]:
        """Return the arrays of a run that goes on, and its first round; else `arrays` and 1."""
        if start.first_round <= 1 or not start.arrays:
            return arrays, 1
        found = from_records(decode(start.arrays))
        link.send({"is": "resumed", "first_round": start.first_round, "lost": LOST})
        return next(iter(found.array_records.values())), start.first_round

    module = types.ModuleType("fairbed_flower", __doc__)
    module.__dict__["resumed"] = resumed
    sys.modules["fairbed_flower"] = module
