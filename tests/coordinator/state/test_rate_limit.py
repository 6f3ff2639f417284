"""A burst, then a steady rate, for each device alone; in bounded memory."""

from fairbed.coordinator.state.rate_limit import MAX_KEYS, RateLimit


def test_a_burst_is_taken_then_a_steady_rate() -> None:
    limit = RateLimit(per_s=10.0, burst=5)
    assert [limit.take("a", 0.0) for _ in range(7)] == [True] * 5 + [False] * 2
    taken = sum(limit.take("a", 0.01 * k) for k in range(1, 1001))
    assert taken == 100


def test_a_device_costs_no_other_device_anything() -> None:
    limit = RateLimit(per_s=1.0, burst=2)
    for _ in range(100):
        limit.take("a", 0.0)
    assert limit.take("b", 0.0)


def test_a_pause_restores_the_burst_and_no_more() -> None:
    limit = RateLimit(per_s=10.0, burst=5)
    for _ in range(5):
        limit.take("a", 0.0)
    assert [limit.take("a", 1e6) for _ in range(6)] == [True] * 5 + [False]


def test_any_number_of_names_takes_bounded_memory() -> None:
    limit = RateLimit(per_s=1.0, burst=1)
    taken = sum(limit.take(f"n{k}", 0.0) for k in range(MAX_KEYS + 1000))
    assert taken == MAX_KEYS
    assert limit.take("new", 2.0)  # the others have paid meanwhile
