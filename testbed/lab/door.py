"""What the room adds: a broker that stays, and the commands for it and for its devices."""

from fairbed.testbed.rooms import Command, Room

ROOM = Room(
    commands={
        "lab": Command(
            help="make, run, stop or show a lab: a broker that stays, for your own devices",
            options="fairbed.testbed.lab.options:add_lab",
            module="fairbed.testbed.lab.cli",
            hint="the folder of a lab is an option: fairbed lab {action} --lab DIR",
            meanings=dict.fromkeys(
                ("start", "stop"),  # `fairbed stop` is a command, so the word is of a lab
                "fairbed lab up starts a lab, fairbed lab down stops it",
            ),
        ),
        "devices": Command(
            help="list, rename or revoke the devices of the lab",
            options="fairbed.testbed.lab.options:add_devices",
            module="fairbed.testbed.lab.cli_devices",
        ),
    },
    options={"enroll": "fairbed.testbed.lab.options:add_enroll"},
    takes={"enroll": "fairbed.testbed.lab.cli_devices:enroll"},
    brokers={"lab": "fairbed.testbed.lab.named_broker:LabBroker"},
)
