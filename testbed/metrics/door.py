"""What the room adds: the options by which a run exports its numbers."""

from fairbed.testbed.rooms import Room

_ADD = "fairbed.testbed.metrics.options:add_options"

ROOM = Room(
    options=dict.fromkeys(("demo", "run", "coordinator", "replay"), _ADD),
    parts={"follower": "fairbed.testbed.metrics.start:follower"},
)
