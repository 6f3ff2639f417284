"""What the room adds: `fairbed reproduce`."""

from fairbed.testbed.rooms import Command, Room

ROOM = Room(
    commands={
        "reproduce": Command(
            help="run the experiments of a source, and show its published rows beside ours",
            options="fairbed.testbed.reproduction.options:add_reproduce",
            module="fairbed.testbed.reproduction.cli",
            hint="the source is the first argument: fairbed reproduce q-ffl --smoke",
        ),
    }
)
