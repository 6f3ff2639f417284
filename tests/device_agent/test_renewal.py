"""The agent asks its lab why the broker refuses it, and acts on the reply."""

import logging
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from fairbed.device_agent.config import AgentConfig, load_config
from fairbed.device_agent.enrolment import Enrolled
from fairbed.device_agent.errors import LabProblem
from fairbed.device_agent.renewal import ENDED_WAIT_S, Renewal
from fairbed.wire.enrolment import RenewReply
from fairbed.wire.errors import Refused
from fairbed.wire.messages import PROTOCOL_VERSION

pytestmark = pytest.mark.anyio

PASSWORD = "p" * 32
URL = f"mqtts://pi:{PASSWORD}@lab.local:8883?cafile=/x/ca.pem"
REFUSED = Refused("not authorised")


class FakeLab:
    """Replies with one standing, and keeps what it was asked."""

    def __init__(self, reply: RenewReply | LabProblem) -> None:
        self.reply, self.asked = reply, list[Enrolled]()

    def __call__(self, identity: Enrolled) -> RenewReply:
        self.asked.append(identity)
        if isinstance(self.reply, LabProblem):
            raise self.reply
        return self.reply


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(
        f'# mine\nname = "pi"\nbroker_url = "{URL}"\nlab_url = "https://lab.local:8884"\n'
        'data = "mine.npz"\n[timeouts]\nhello_s = 3.0\n'
    )
    return path


def reply(standing: str, name: str = "pi", **more: object) -> RenewReply:
    return RenewReply(standing=standing, name=name, lab="home", version="9", **more)  # type: ignore[arg-type]  # of the test


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


async def test_a_renamed_device_writes_its_new_name_and_keeps_all_else(path: Path) -> None:
    config = load_config(path, {})
    lab = FakeLab(reply("renamed", "kitchen"))
    renewal = Renewal(config, path, lab)
    assert await renewal.on_refused(REFUSED) == 0.0
    with anyio.fail_after(5):
        await renewal.until_renamed()
    renamed = load_config(path, {})
    assert renamed.name == "kitchen"
    assert renamed.broker_url == URL.replace("//pi:", "//kitchen:")
    assert (renamed.data, renamed.timeouts) == (config.data, config.timeouts)
    text, mode = await anyio.Path(path).read_text(), (await anyio.Path(path).stat()).st_mode
    assert text.startswith("# mine\n")
    assert mode & 0o777 == 0o600
    assert lab.asked[0].name == "pi"
    assert lab.asked[0].password == PASSWORD


@pytest.mark.parametrize(
    ("standing", "line"),
    [
        ("revoked", "its identity was revoked on 2026-11-23; enrol it again: fairbed enroll pi"),
        ("expired", "its identity expired on 2026-11-23; enrol it again: fairbed enroll pi"),
    ],
)
async def test_an_ended_identity_is_named_once_and_tried_rarely(
    path: Path, caplog: pytest.LogCaptureFixture, standing: str, line: str
) -> None:
    renewal = Renewal(load_config(path, {}), path, FakeLab(reply(standing, since_s=1795400000.0)))
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        assert ENDED_WAIT_S / 2 <= await renewal.on_refused(REFUSED) <= ENDED_WAIT_S
    assert lines(caplog) == [f"pi: {line}"]


async def test_a_lab_that_is_away_changes_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    renewal = Renewal(load_config(path, {}), path, FakeLab(LabProblem("no answer")))
    for _ in range(2):
        assert await renewal.on_refused(REFUSED) == 0.0
    assert lines(caplog) == ["pi: the lab was asked why: no answer"]


async def test_a_lab_of_another_protocol_is_named_with_what_to_do(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = reply("valid", protocol=PROTOCOL_VERSION + 1)
    await Renewal(load_config(path, {}), path, FakeLab(other)).on_refused(REFUSED)
    assert "Fairbed 9 with protocol 2, this agent has protocol 1; install the lab's" in caplog.text


async def test_a_name_of_the_flags_is_not_changed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    renewal = Renewal(load_config(path, {}), None, FakeLab(reply("renamed", "kitchen")))
    assert await renewal.on_refused(REFUSED) == 0.0
    assert lines(caplog) == ["pi: the lab renamed it to kitchen; start it with that name"]
    assert load_config(path, {}).name == "pi"


async def test_an_agent_without_a_lab_asks_nobody() -> None:
    lab = FakeLab(reply("revoked"))
    config = AgentConfig(broker_url="mqtt://u:p@h", name="pi")
    assert await Renewal(config, None, lab).on_refused(REFUSED) == 0.0
    assert lab.asked == []


def test_the_agent_loads_no_http_before_a_refusal() -> None:
    code = (
        "import sys; from fairbed.device_agent.memory import defer_urllib; defer_urllib()\n"
        "import fairbed.device_agent.process\n"
        "print([m for m in ('http.client', 'email', 'fairbed.device_agent.enrolment') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
