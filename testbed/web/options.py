"""The options of `fairbed watch` for pages."""

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--web` and what goes with it."""
    parser.add_argument(
        "--steer", action="store_true", help="with --web: pages may pause, resume, exclude, ..."
    )
    parser.add_argument(
        "--web", action="store_true", help="show the TUI in browsers, read-only; Ctrl-C ends it"
    )
    parser.add_argument(
        "--host", help="with --web: address to listen on (default 127.0.0.1: this machine alone)"
    )
    parser.add_argument(
        "--port", type=int, help="with --web: port (default 8885; 0 is any free one)"
    )
    parser.add_argument("--sessions", type=int, help="with --web: pages open at a time (default 4)")
    parser.add_argument(
        "--idle",
        type=float,
        metavar="MINUTES",
        help="with --web: end a page without keys and mouse for so long (default 60)",
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="with --web: allow --host beyond this machine: all travels in plain text",
    )
