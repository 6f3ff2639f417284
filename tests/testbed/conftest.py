"""What the tests of the testbed share."""

from collections.abc import Iterator

import pytest

from fairbed.testbed.replay.world.world import ModelFault


@pytest.fixture(scope="session", autouse=True)
def internal_errors_are_raised() -> Iterator[None]:
    """Let a bug in a model of a replay fail its test, instead of one exchange."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelFault, "raises", True)
        yield
