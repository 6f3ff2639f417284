"""Errors of the engines.

EngineError            the engine cannot run this task
└── EngineMismatch     it runs, and computes something else than the task says
"""


class EngineError(Exception):
    """The engine is missing, or cannot run a task."""


class EngineMismatch(EngineError):
    """The engine's results differ from what the task says a right engine computes."""
