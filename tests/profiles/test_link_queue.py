"""The queue of a link: its depth in time or in bytes, and its discipline."""

import msgspec
import pytest

from fairbed.profiles import Link, LinkQueue


def _link(**numbers: object) -> Link:
    source = {"tag": "literature", "source": "made up"}
    return msgspec.convert(
        {key: {"value": value, **source} for key, value in numbers.items()}, Link
    )


def test_a_link_may_state_its_queue_in_time_or_in_bytes() -> None:
    assert Link().queue == LinkQueue()
    assert _link(queue_ms=250, queue="fq_codel").queue == LinkQueue(0.25, None, "fq_codel")
    assert _link(queue_bytes=60_000).queue == LinkQueue(depth_bytes=60_000)


@pytest.mark.parametrize(
    ("numbers", "rule"),
    [
        ({"queue_ms": 100, "queue_bytes": 20_000}, "queue_ms and queue_bytes exclude each other"),
        ({"queue_ms": 0}, "> 0.0"),
        ({"queue_bytes": 1500}, ">= 3028"),
        ({"queue": "codel"}, "Invalid enum value 'codel'"),
    ],
)
def test_a_queue_that_no_link_can_have_is_refused(numbers: dict[str, object], rule: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=rule):
        _link(**numbers)
