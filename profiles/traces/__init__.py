"""Traces: how a link, a clock or availability went, row by row, and where to find them."""

from fairbed.profiles.traces.files import TraceReader, read_trace
from fairbed.profiles.traces.trace import Trace

__all__ = ["Trace", "TraceReader", "read_trace"]
