"""What the room adds: `fairbed pack` and `fairbed unpack`."""

from fairbed.testbed.rooms import Command, Room

ROOM = Room(
    commands={
        "pack": Command(
            help="write a run or a grid into one file, with all that it needs to run again",
            options="fairbed.testbed.packs.options:add_pack",
            module="fairbed.testbed.packs.cli_pack",
        ),
        "unpack": Command(
            help="unpack such a file, check it, or run its replays again",
            options="fairbed.testbed.packs.options:add_unpack",
            module="fairbed.testbed.packs.cli_unpack",
        ),
    }
)
