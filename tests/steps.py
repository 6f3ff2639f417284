"""How much work something is, told without a clock."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


def steps(work: Callable[[], object]) -> int:
    """Return how many bytecodes of Python some work takes, what it calls included."""
    count = 0
    if sys.version_info >= (3, 12):
        # `f_trace_opcodes` misses bytecodes of a function that is traced for the first time.
        watch, tool = sys.monitoring, sys.monitoring.PROFILER_ID
        instruction = watch.events.INSTRUCTION

        def executed(code: CodeType, offset: int) -> None:
            nonlocal count
            count += 1

        watch.use_tool_id(tool, "steps")
        watch.register_callback(tool, instruction, executed)
        watch.set_events(tool, instruction)
        try:
            work()
        finally:
            watch.set_events(tool, 0)
            watch.register_callback(tool, instruction, None)
            watch.free_tool_id(tool)
        return count

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
