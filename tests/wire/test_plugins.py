"""Names that a program registers for its own parts."""

from collections.abc import Iterator

import pytest

from fairbed.wire import plugins
from fairbed.wire.plugins import PluginError, factory_of, installed, register, registered

GROUP = "fairbed.parts_of_test"


class Part: ...


class Other: ...


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    plugins._registered.pop(GROUP, None)


def test_a_registered_factory_is_found_by_its_name() -> None:
    register(GROUP, "mine", Part)
    assert factory_of("part", GROUP, "mine", "a name") is Part
    assert list(installed(GROUP)) == list(registered(GROUP)) == ["mine"]
    assert not registered("fairbed.another_group")


def test_the_newest_factory_of_a_name_counts() -> None:
    """A notebook runs a cell again."""
    register(GROUP, "mine", Part)
    register(GROUP, "mine", Other)
    assert factory_of("part", GROUP, "mine", "a name") is Other


def test_a_registered_factory_hides_an_installed_one() -> None:
    name = next(iter(installed("pytest11")))
    try:
        register("pytest11", name, Part)
        assert factory_of("part", "pytest11", name, "a name") is Part
    finally:
        plugins._registered.pop("pytest11")


@pytest.mark.parametrize("name", ["", "a:b", "a b", "folder/mine", "-x"])
def test_a_name_that_looks_like_a_path_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match=r"letters, digits and _\.\+-, got '"):
        register(GROUP, name, Part)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(PluginError, match=r"register mine: must be a class or a function .* int"):
        register(GROUP, "mine", 3)  # type: ignore[arg-type]  # what a script may do
