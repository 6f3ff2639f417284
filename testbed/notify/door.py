"""What the room adds: messages about a run, by `[notify]` or by the file of `FAIRBED_NOTIFY`."""

from fairbed.testbed.rooms import Room

ROOM = Room(
    tables={"notify": "fairbed.testbed.notify.settings:NotifyConfig"},
    parts={"watcher": "fairbed.testbed.notify.notify:watcher"},
)
