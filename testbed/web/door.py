"""What the room adds: `fairbed watch --web`."""

from fairbed.testbed.rooms import Room

ROOM = Room(
    options={"watch": "fairbed.testbed.web.options:add_options"},
    takes={"watch": "fairbed.testbed.web.cli:watch"},
)
