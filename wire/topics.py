"""All MQTT topics. `t` is the tenant: one topic tree, used by one coordinator at a time.

    fairbed/t/coordinator            CoordinatorStatus, retained, will
    fairbed/t/command                OperatorCommand, from operators
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

For topics of many devices the coordinator subscribes with `+`, never with `#`. Dots and spaces are
forbidden in names, because NATS maps slashes to dots.
"""

from dataclasses import dataclass

from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import is_device_name

ROOT = "fairbed"


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one tenant."""

    tenant: str = "main"

    def __post_init__(self) -> None:
        if not is_device_name(self.tenant):
            raise ValueError(f"tenant: must be 1 to 32 of a-z, 0-9 and hyphen, got {self.tenant!r}")

    @property
    def base(self) -> str:
        """Prefix of all topics of this tenant."""
        return f"{ROOT}/{self.tenant}"

    @property
    def coordinator(self) -> str:
        """Status of the coordinator."""
        return f"{self.base}/coordinator"

    @property
    def command(self) -> str:
        """Commands of operators to the run."""
        return f"{self.base}/command"

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
        """Intent record of a public blob, by hexadecimal id (`+` for all)."""
        return f"{self.base}/b/{blob}/intent"

    def chunk(self, blob: str, index: int) -> str:
        """One retained chunk of a public blob, by hexadecimal id."""
        return f"{self.base}/b/{blob}/c/{index}"

    def limit(self, probe: str) -> str:
        """Messages of a client to itself that test the broker's payload limit."""
        return f"{self.base}/limit/{probe}"

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
        if not is_device_name(name):
            raise DecodeError(
                f"device name: must be 1 to 32 of a-z, 0-9 and hyphen, got {name[:60]!r}"
            )
        return name, channel
