"""What the room adds: the control room of a run on another machine, and the relay that feeds it."""

from fairbed.testbed.rooms import Room

ROOM = Room(
    parts={
        "elsewhere": "fairbed.testbed.remote.viewer:parse_target",
        "relay": "fairbed.testbed.remote.relay",
    },
)
