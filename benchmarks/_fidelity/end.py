"""A measuring end: one process, inside a device or outside, that executes commands.

`python -m benchmarks._fidelity.end PARENT [first]` executes `end_commands` from stdin, one after
the other, until stdin ends. It has blocking sockets, and one thread beside that of a load, so that
timestamps are taken directly at a transfer.
"""

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks._fidelity import datagrams, end_commands, streams, work
from fairbed.testbed.backends.priority import raise_priority
from fairbed.testbed.host.guard import die_with_parent


class End:
    """Executes each command with the object that implements it."""

    def __init__(self) -> None:
        stream, datagram_socket = streams.Stream(), datagrams.Datagrams()
        self._execute: dict[type[end_commands.Command], Callable[[Any], end_commands.Replies]] = {
            end_commands.Listen: stream.listen,
            end_commands.Connect: stream.connect,
            end_commands.Accept: stream.accept,
            end_commands.SendStream: stream.send_stream,
            end_commands.ReceiveStream: stream.receive_stream,
            end_commands.SendBlock: stream.send_block,
            end_commands.ReceiveBlock: stream.receive_block,
            end_commands.SendMessages: stream.send_messages,
            end_commands.ReceiveMessages: stream.receive_messages,
            end_commands.OpenLoad: stream.open_load,
            end_commands.CloseLoad: stream.close_load,
            end_commands.OpenDatagrams: datagram_socket.open,
            end_commands.SendDatagrams: datagram_socket.send,
            end_commands.ReceiveDatagrams: datagram_socket.receive,
            end_commands.RunKernel: work.run_kernel,
            end_commands.Compute: work.compute,
            end_commands.Burst: work.burst,
            end_commands.Passes: work.passes,
            end_commands.RunPaced: work.run_paced,
        }

    def execute(self, command: end_commands.Commands) -> end_commands.Replies:
        """Execute a command; return its reply."""
        try:
            return self._execute[type(command)](command)
        except (OSError, EOFError) as exc:
            return end_commands.Failed(reason=f"{type(command).__name__}: {exc!r}")


def main() -> None:
    """Execute commands; arguments: process id of the parent, and `first` for an instrument."""
    die_with_parent(int(sys.argv[1]))
    if "first" in sys.argv[2:]:
        raise_priority()
    end, decoder = End(), msgspec.json.Decoder(end_commands.Commands)
    for line in sys.stdin.buffer:
        reply = msgspec.json.encode(end.execute(decoder.decode(line)))
        sys.stdout.buffer.write(reply + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
