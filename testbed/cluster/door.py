"""What the room adds: the hosts of a Ray cluster work for commands that have `--cluster`."""

from fairbed.testbed.rooms import Room

ROOM = Room(
    options={
        "run": "fairbed.testbed.cluster.options:add_emulating",
        "replay": "fairbed.testbed.cluster.options:add_training",
        "compare": "fairbed.testbed.cluster.options:add_replaying",
    },
    parts={"hosts": "fairbed.testbed.cluster.api:ClusterHosts"},
)
