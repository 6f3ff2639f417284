"""A measuring end: one process, inside a device or outside, that does as it is told.

`python -m benchmarks._fidelity.end PARENT [first]` obeys `orders` on stdin, one after the other,
until it ends. It has one thread and blocking sockets: nothing else stands between a byte and its
moment.
"""

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks._fidelity import datagrams, end_commands, streams, work
from fairbed.testbed.backends.priority import raise_priority
from fairbed.testbed.host.guard import die_with_parent


class End:
    """Knows who carries out what."""

    def __init__(self) -> None:
        stream, datagram_socket = streams.Stream(), datagrams.Datagrams()
        self._do: dict[type[end_commands.Command], Callable[[Any], end_commands.Replies]] = {
            end_commands.Listen: stream.listen,
            end_commands.Connect: stream.connect,
            end_commands.Accept: stream.accept,
            end_commands.SendStream: stream.send_stream,
            end_commands.ReceiveStream: stream.receive_stream,
            end_commands.SendBlock: stream.send_block,
            end_commands.ReceiveBlock: stream.receive_block,
            end_commands.SendMessages: stream.send_messages,
            end_commands.ReceiveMessages: stream.receive_messages,
            end_commands.OpenDatagrams: datagram_socket.open,
            end_commands.SendDatagrams: datagram_socket.send,
            end_commands.ReceiveDatagrams: datagram_socket.receive,
            end_commands.RunKernel: work.run_kernel,
            end_commands.Compute: work.compute,
            end_commands.RunPaced: work.run_paced,
        }

    def obey(self, command: end_commands.Commands) -> end_commands.Replies:
        """Carry an command out; return what came of it."""
        try:
            return self._do[type(command)](command)
        except (OSError, EOFError) as exc:
            return end_commands.Failed(reason=f"{type(command).__name__}: {exc!r}")


def main() -> None:
    """Obey; the arguments are our parent's process id and, for an instrument, `first`."""
    die_with_parent(int(sys.argv[1]))
    if "first" in sys.argv[2:]:
        raise_priority()
    end, decoder = End(), msgspec.json.Decoder(end_commands.Commands)
    for line in sys.stdin.buffer:
        answer = msgspec.json.encode(end.obey(decoder.decode(line)))
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
