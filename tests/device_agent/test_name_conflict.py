"""Two agents of one name: the one that came later gives up."""

from fairbed.device_agent.name_conflict import (
    LASTED_S,
    SHORT_S,
    SIGHTINGS_OF_SMALLER_BOOT,
    NameConflict,
)


def after_short_links(conflict: NameConflict, count: int, boot: int) -> list[bool]:
    """Return the decisions on `count` links on which another agent is seen."""
    decisions = []
    for link in range(count):
        conflict.on_link_up(float(link))
        decisions.append(conflict.on_status(boot))
        conflict.on_link_down(link + 0.1)
    return decisions


def test_a_new_agent_gives_up_when_it_sees_the_other_twice() -> None:
    assert after_short_links(NameConflict(9), 2, boot=5) == [False, True]


def test_an_agent_whose_link_has_lasted_stays() -> None:
    conflict = NameConflict(9)
    conflict.on_link_up(0.0)
    assert not conflict.on_link_down(LASTED_S)
    assert not any(after_short_links(conflict, 20, boot=5))


def test_of_two_new_agents_the_larger_boot_gives_up_first() -> None:
    decisions = after_short_links(NameConflict(5), SIGHTINGS_OF_SMALLER_BOOT, boot=9)
    assert decisions.index(True) == SIGHTINGS_OF_SMALLER_BOOT - 1


def test_the_topic_is_subscribed_once_and_only_after_a_short_link() -> None:
    conflict = NameConflict(1)
    conflict.on_link_up(0.0)
    assert not conflict.on_link_down(100.0)
    conflict.on_link_up(200.0)
    assert conflict.on_link_down(200.5)
    conflict.on_link_up(201.0)
    assert not conflict.on_link_down(201.5)


def test_its_own_status_and_repeats_on_one_link_do_not_count() -> None:
    conflict = NameConflict(9)
    conflict.on_link_up(0.0)
    assert not any(conflict.on_status(boot) for boot in (9, 5, 9, 5, 5))
    assert conflict.sightings == 1


def test_a_link_of_the_other_agents_backoff_does_not_count_as_lasting() -> None:
    conflict = NameConflict(9)
    conflict.on_link_up(0.0)
    assert not conflict.on_link_down(SHORT_S + 1.0)  # NATS delays a client id that flaps
    assert any(after_short_links(conflict, 20, boot=5))
