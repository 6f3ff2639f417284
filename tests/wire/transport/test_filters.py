"""Topic filters, by the examples of MQTT 3.1.1, section 4.7."""

import pytest

from fairbed.wire.transport.client import KNOWN_TOPICS, Subscriptions, matches


@pytest.mark.parametrize(
    ("pattern", "topic", "is_covered"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("#", "a/b", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/uptime", False),
        ("+/uptime", "$SYS/uptime", False),
        ("$SYS/#", "$SYS/uptime", True),
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/b", "a", False),
    ],
)
def test_covers(pattern: str, topic: str, is_covered: bool) -> None:
    assert matches(pattern, topic) is is_covered


def test_the_highest_qos_of_all_filters_counts() -> None:
    subscriptions = Subscriptions()
    subscriptions.add(["a/+", "a/b"], 0)
    subscriptions.add(["a/#"], 1)
    assert subscriptions.qos_of("a/b") == 1
    subscriptions.discard(["a/#", "never"])
    assert subscriptions.qos_of("a/b") == 0
    assert subscriptions.qos_of("b") is None
    subscriptions.discard(["a/+", "a/b"])
    assert subscriptions.qos_of("a/b") is None


def test_any_number_of_topics_takes_bounded_memory() -> None:
    subscriptions = Subscriptions()
    subscriptions.add(["a/+"], 1)
    assert all(subscriptions.qos_of(f"a/{k}") == 1 for k in range(3 * KNOWN_TOPICS))
    assert len(subscriptions._found) <= KNOWN_TOPICS
    assert subscriptions.qos_of("b") is None
    subscriptions.add(["b"], 0)
    assert subscriptions.qos_of("b") == 0
