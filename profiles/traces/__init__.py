"""Traces: how a link, a clock or availability went, row by row, and where to find them."""

from profiles.traces.find import TraceReader
from profiles.traces.read import read_trace
from profiles.traces.trace import Trace

__all__ = ["Trace", "TraceReader", "read_trace"]
