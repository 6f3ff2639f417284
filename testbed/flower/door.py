"""What the room adds: `fairbed run --flower`, the table `[flower]`, and `fairbed flower setup`."""

from fairbed.testbed.rooms import Command, Room

ROOM = Room(
    commands={
        "flower": Command(
            help="make the environment of a Flower app",
            options="fairbed.testbed.flower.options:add_command",
            module="fairbed.testbed.flower.cli",
        )
    },
    options={"run": "fairbed.testbed.flower.options:add_options"},
    takes={"run": "fairbed.testbed.flower.options:take"},
    tables={"flower": "fairbed.testbed.flower.settings:FlowerConfig"},
    parts={"application": "fairbed.testbed.flower.application:application"},
)
