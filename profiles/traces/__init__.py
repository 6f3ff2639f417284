"""Traces: recorded values of a link, a clock or availability over time, and their files."""

from fairbed.profiles.traces.files import TraceReader, read_trace
from fairbed.profiles.traces.trace import Trace

__all__ = ["Trace", "TraceReader", "read_trace"]
