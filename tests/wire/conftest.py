"""What the tests of the wire share."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio, as the product does."""
    return "asyncio"
