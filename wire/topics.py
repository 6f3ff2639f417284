"""All MQTT topics. `t` is the tenant: one topic tree, used by one coordinator at a time.

    fairbed/t/coordinator            CoordinatorStatus, retained, will
    fairbed/t/command/<operator>     OperatorCommand, from one operator
    fairbed/t/answer/<operator>      OperatorAnswer, to this operator
    fairbed/t/watch/<viewer>         RowsRequest, from one viewer, QoS 0
    fairbed/t/rows/<viewer>          RowsPart, to this viewer, QoS 0
    fairbed/t/d/<name>/status        Status, retained, will
    fairbed/t/d/<name>/tel           Context, QoS 0
    fairbed/t/d/<name>/up            Hello, Offer, UploadDone, Failed, requests
    fairbed/t/d/<name>/ctl           all messages to one device
    fairbed/t/d/<name>/data          chunks of its private blobs, QoS 0
    fairbed/t/u/<name>               chunks of its updates, QoS 0
    fairbed/t/ctl                    messages to all devices
    fairbed/t/b/<blob>/intent        Intent, retained
    fairbed/t/b/<blob>/c/<k>         public chunks, retained, QoS 0
    fairbed/t/limit/<id>             test messages that measure the broker's payload limit

`<blob>` is the name of a blob (`Manifest.topic_name`). A coordinator process uses its names again,
so that a broker that remembers every topic does not grow.

For topics of many devices the coordinator subscribes with `+`, never with `#`. Dots and spaces are
forbidden in names, because NATS maps slashes to dots.
"""

from dataclasses import dataclass, field

from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import is_device_name

ROOT = "fairbed"

ANY = "+"
"""Matches one level of a topic: all tenants, devices, operators, viewers or blobs."""

LOCAL_OPERATOR = "local"
"""Name of the operator where the broker knows no operators: at the broker of one run."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one tenant, or filters for all tenants (`+`)."""

    tenant: str = "main"
    base: str = field(init=False, repr=False)
    """Prefix of all topics of this tenant."""

    def __post_init__(self) -> None:
        if self.tenant != ANY and not is_device_name(self.tenant):
            raise ValueError(f"tenant: must be 1 to 32 of a-z, 0-9 and hyphen, got {self.tenant!r}")
        object.__setattr__(self, "base", f"{ROOT}/{self.tenant}")

    @property
    def coordinator(self) -> str:
        """Status of the coordinator."""
        return f"{self.base}/coordinator"

    def command(self, operator: str) -> str:
        """Commands of one operator to the run (`+` for all)."""
        return f"{self.base}/command/{operator}"

    def answer(self, operator: str) -> str:
        """Answers to the commands of one operator (`+` for all)."""
        return f"{self.base}/answer/{operator}"

    def watch(self, viewer: str) -> str:
        """Requests of one viewer for rows of the run's store (`+` for all)."""
        return f"{self.base}/watch/{viewer}"

    def rows(self, viewer: str) -> str:
        """Rows for one viewer (`+` for all)."""
        return f"{self.base}/rows/{viewer}"

    @property
    def control_all(self) -> str:
        """Messages to all devices."""
        return f"{self.base}/ctl"

    def status(self, name: str) -> str:
        """Status of one device (`+` for all)."""
        return f"{self.base}/d/{name}/status"

    def telemetry(self, name: str) -> str:
        """Context of one device (`+` for all)."""
        return f"{self.base}/d/{name}/tel"

    def up(self, name: str) -> str:
        """Messages from one device (`+` for all)."""
        return f"{self.base}/d/{name}/up"

    def control(self, name: str) -> str:
        """Messages to one device."""
        return f"{self.base}/d/{name}/ctl"

    def data(self, name: str) -> str:
        """Chunks of one device's private blobs."""
        return f"{self.base}/d/{name}/data"

    def upload(self, name: str) -> str:
        """Chunks of one device's updates (`+` for all)."""
        return f"{self.base}/u/{name}"

    def intent(self, blob: str) -> str:
        """Intent record of a public blob, by its name (`+` for all)."""
        return f"{self.base}/b/{blob}/intent"

    def chunk(self, blob: str, index: int | str) -> str:
        """One retained chunk of a public blob, by its name (`+` for all)."""
        return f"{self.base}/b/{blob}/c/{index}"

    def limit(self, probe: str) -> str:
        """Messages of a client to itself that test the broker's payload limit (`+` for all)."""
        return f"{self.base}/limit/{probe}"

    def operator_of(self, topic: str) -> str | None:
        """Return the operator of a topic of commands; None if it is another topic.

        Raises:
            DecodeError: The name is not valid.
        """
        prefix = self.command("")
        if not topic.startswith(prefix):
            return None
        return _name(topic.removeprefix(prefix), "operator")

    def viewer_of(self, topic: str) -> str | None:
        """Return the viewer of a topic of requests; None if it is another topic.

        Raises:
            DecodeError: The name is not valid.
        """
        prefix = self.watch("")
        if not topic.startswith(prefix):
            return None
        return _name(topic.removeprefix(prefix), "viewer")

    def device_of(self, topic: str) -> tuple[str, str]:
        """Return (device name, channel) of a topic that a device published on.

        The channel is `status`, `tel`, `up` or `upload`.

        Raises:
            DecodeError: The topic is not of a device, or the name is not valid.
        """
        prefix = f"{self.base}/"
        parts = topic.removeprefix(prefix).split("/") if topic.startswith(prefix) else []
        channel: str
        match parts:
            case ["d", name, ("status" | "tel" | "up") as kind]:
                channel = kind
            case ["u", name]:
                channel = "upload"
            case _:
                raise DecodeError(f"topic: must be one of a device, got {topic[:120]!r}")
        return _name(name, "device name"), channel


def _name(name: str, where: str) -> str:
    if not is_device_name(name):
        raise DecodeError(f"{where}: must be 1 to 32 of a-z, 0-9 and hyphen, got {name[:60]!r}")
    return name
