"""The count of bytecodes that stands for work."""

from tests.steps import steps

SOURCE = "def work(n):\n    return sum(k for k in range(n))\n"


def test_the_first_count_of_a_function_is_that_of_every_later_one() -> None:
    names: dict[str, object] = {}
    exec(SOURCE, names)
    work = names["work"]
    assert callable(work)
    first, *later = [steps(lambda: work(50)) for _ in range(3)]
    assert first > 100
    assert set(later) == {first}


def test_twice_the_work_has_twice_the_steps() -> None:
    few, many = steps(lambda: _sum(500)), steps(lambda: _sum(1000))
    assert 1.9 < many / few < 2.1


def _sum(n: int) -> int:
    return sum(k for k in range(n))
