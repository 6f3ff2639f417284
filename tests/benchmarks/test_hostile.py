"""The attack of a device with a valid login, small; and on a broker without rules."""

import json
import secrets
from pathlib import Path

import numpy as np
import pytest

from benchmarks import hostile
from benchmarks._hostile_client import HostileClient
from benchmarks._hostile_messages import ON_OTHER_TOPICS, ON_OWN_TOPICS, SUBSCRIPTIONS, Place
from fairbed.testbed.host.broker_process import find_nats
from fairbed.testbed.run.broker import start_broker
from fairbed.wire.codec import decode_from_device
from fairbed.wire.errors import DecodeError
from fairbed.wire.topics import Topics
from fairbed.wire.transport.address import parse_url
from tests import needs

KINDS = len(ON_OWN_TOPICS) + len(ON_OTHER_TOPICS) + len(SUBSCRIPTIONS) + len(hostile.OTHER_KINDS)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize(
    "broker",
    [
        pytest.param("mosquitto", marks=needs.mosquitto),
        pytest.param("nats", marks=pytest.mark.skipif(not find_nats(), reason="missing")),
    ],
)
def test_no_message_of_any_kind_has_an_effect(
    broker: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile, "BLOCK_ROUNDS", 4)
    options = ["--broker", broker, "--agents", "2", "--rounds", "16", "--messages", str(KINDS + 10)]
    assert hostile.main([*options, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["kinds"] == KINDS >= 25
    assert result["refused"] == result["messages"] >= KINDS + 10
    assert (result["forwarded"], result["read"], result["logged_in"]) == (0, 0, 0)
    assert (result["effects"], result["rounds"]) == ([], 16)
    assert result["lines_per_kind"] == 1
    assert "bad message" in result["log_lines"]


@pytest.mark.anyio
@pytest.mark.broker
@needs.mosquitto
async def test_a_broker_without_rules_fails_the_attack(tmp_path: Path) -> None:
    """The witnesses are not blind: with one login for all, they see what is forged."""
    async with start_broker("mosquitto", folder=tmp_path) as broker:
        address, topics = parse_url(broker.url), Topics()
        place = Place(topics, np.random.default_rng(1), "pi-0")
        witness = HostileClient(address, f"w{secrets.token_hex(8)}")
        witness.subscribe("fairbed/#")
        witnesses = hostile._Witnesses([witness])
        attacker = hostile._Attacker(address, place, witnesses, ["pi-0"])
        attacker.attack(KINDS)
        witness.ping()
        witnesses.look()
        attacker.close()
        witness.close()
    assert len(attacker.sent) == KINDS
    assert witnesses.forwarded >= len(ON_OTHER_TOPICS) - 1  # one is of no topic that it reads
    assert attacker.read > 0


def test_the_messages_follow_the_seed() -> None:
    def all_of(seed: int) -> list[bytes]:
        place = Place(Topics(), np.random.default_rng(seed), "pi-0")
        return [kind(place).payload for kind in {**ON_OWN_TOPICS, **ON_OTHER_TOPICS}.values()]

    assert all_of(1) == all_of(1)
    assert all_of(1) != all_of(2)


def test_damaged_messages_are_not_valid_by_chance() -> None:
    names = ["garbage", "cut message", "flipped bit", "nested without end", "unknown field"]
    names += ["other protocol version", "message of a coordinator", "message of an operator"]
    names += ["number that is none", "absurd number", "negative round", "text of 100 kB"]
    place = Place(Topics(), np.random.default_rng(1), "pi-0")
    for name in names:
        for _ in range(20):
            with pytest.raises(DecodeError):
                decode_from_device(ON_OWN_TOPICS[name](place).payload)
