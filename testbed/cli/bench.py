"""`fairbed bench NAME`: run a benchmark of the repository, a module with a `main`."""

import argparse
import pkgutil

from fairbed.testbed.cli import DONE, from_clone
from fairbed.testbed.errors import UsageError


def main(options: argparse.Namespace) -> int:
    """List the benchmarks, or run one; return the exit code."""
    package = from_clone("benchmarks")
    names = sorted(
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules(package.__path__)
        if not module.name.startswith("_")
    )
    if options.name is None:
        for name in names:
            module = from_clone(f"benchmarks.{name.replace('-', '_')}")
            print(f"{name:<16}{(module.__doc__ or '').splitlines()[0]}")
        return DONE
    if options.name not in names:
        raise UsageError(f"bench: no benchmark {options.name!r}; there are: {', '.join(names)}")
    module = from_clone(f"benchmarks.{options.name.replace('-', '_')}")
    code: int = module.main(options.arguments)
    return code
