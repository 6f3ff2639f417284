"""The tiers of the tests: none is in neither, and property tests are in both."""

import subprocess
import sys

import pytest

from tests.tiers import FULL, NEEDED, ROOT

KILLS, PROPERTIES, BROKERS = (
    "tests/wire/transport/test_kills.py",
    "tests/wire/test_topics.py",
    "tests/testbed/run/test_limit.py",
)
TIMEOUT_S = 60.0


def collected(tier: str) -> set[str]:
    """Return the tests of three files that a tier runs."""
    options = ["--collect-only", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--tier", tier, KILLS, PROPERTIES, BROKERS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.full
def test_every_test_is_in_a_tier() -> None:
    fast, rest, both = collected("fast"), collected("rest"), collected("all")
    assert fast | rest == both
    in_both = fast & rest
    assert in_both
    assert {name.partition("::")[0] for name in in_both} == {PROPERTIES}
    assert not [name for name in fast if name.startswith(KILLS)]
    kinds = {name.partition("[")[2] for name in fast if "takes_the_largest_chunk" in name}
    assert len(kinds) == 1, "one broker is enough for the fast tier"


def test_every_entry_of_the_full_tier_is_there() -> None:
    missing = [name for name in FULL if not (ROOT / name).exists()]
    assert not missing, f"tests/tiers.py: {missing}"


def test_every_needed_test_is_there() -> None:
    for name, test in NEEDED.items():
        assert f"def {test}(" in (ROOT / name).read_text(encoding="utf-8")
