"""A module that needs a package that is not installed."""

import surely_not_installed  # noqa: F401
