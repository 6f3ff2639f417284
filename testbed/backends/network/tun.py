"""TUN links: a process reads and writes their packets through a file descriptor."""

import fcntl
import os
import struct

TUN_DEVICE = "/dev/net/tun"

TUNSETIFF, TUNSETPERSIST, TUNSETCARRIER = 0x400454CA, 0x400454CB, 0x400454E2
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
"""From linux/if_tun.h."""


def open_tun(name: str) -> int:
    """Return the non-blocking descriptor of a new TUN link in this namespace.

    The link is persistent and ends with the namespace. Links that end with their descriptors take
    the kernel 20 ms each, one after the other; the links of a namespace end together.

    Raises:
        OSError: There is no TUN device file, or the kernel refuses.
    """
    descriptor = os.open(TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        request = struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI)
        fcntl.ioctl(descriptor, TUNSETIFF, request)
        fcntl.ioctl(descriptor, TUNSETPERSIST, 1)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def set_carrier(descriptor: int, *, is_plugged: bool) -> None:
    """Connect or disconnect a TUN link, which must be up.

    Raises:
        OSError: The kernel refuses.
    """
    fcntl.ioctl(descriptor, TUNSETCARRIER, struct.pack("i", is_plugged))
