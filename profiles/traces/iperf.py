"""Read the rates of an iperf3 test from its JSON (`iperf3 -J` or `--json-stream`).

A rate goes up if the device sends. The device is the client of the test, whichever end wrote the
log. The sender of a UDP test writes the rate that it offered, not the rate of the link; so its log
needs that of the receiver (`--get-server-output`).

Source: the fields of iperf3 3.1 to 3.19, `iperf_api.c` in github.com/esnet/iperf.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairbed.profiles.errors import TraceError
from fairbed.profiles.traces.trace import MAX_BPS, Trace

START, END = "start", "end"

SUMS = ("sum", "sum_bidir_reverse")
"""Rates of all streams of an interval; the second in the other direction of `--bidir`."""

SHORTEST_SHARE = 0.1
"""A shorter last interval, relative to the median, joins the one before: iperf3 ends with one of a
few milliseconds, whose rate is noise."""

NOT_IMPORTED = (
    "retransmits, round-trip times and losses of a saturated link are of its queue: not imported"
)


@dataclass(frozen=True, slots=True)
class Test:
    """The rates of one test."""

    trace: Trace
    line: str
    """What the test was."""


def is_iperf(content: bytes) -> bool:
    """Return whether a file is the JSON of iperf3."""
    text = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith(b"{") and any(
        word in text[:20_000] for word in (b'"intervals"', b'"event"', b'"error"', b'"start"')
    )


def read_iperf(content: bytes, where: str) -> list[Test]:
    """Return the tests in a file, one after the other.

    Raises:
        TraceError: It is not JSON of iperf3, or a test has no rates of a link.
    """
    documents = _tests(list(_documents(content, where)))
    return [
        _test(document, where if len(documents) == 1 else f"{where}: test {number}")
        for number, document in enumerate(documents, 1)
    ]


def _documents(content: bytes, where: str) -> Iterator[Mapping[str, Any]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise TraceError(f"{where}: must be UTF-8 text, got: {exc}; save it as UTF-8") from exc
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        try:
            found, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as exc:
            row = text.count("\n", 0, place) + 1
            raise TraceError(
                f"{where}: the JSON that begins in row {row} must be whole, got: {exc}; run "
                "the test again, with -J and --logfile"
            ) from exc
        if not isinstance(found, dict):
            raise TraceError(f"{where}: must be JSON objects of iperf3, got {found!r:.40}")
        yield found


def _tests(documents: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return one object per test, also from the events of `--json-stream`."""
    tests: list[dict[str, Any]] = []
    for document in documents:
        event, data = document.get("event"), document.get("data")
        if event is None:
            tests.append(dict(document))
            continue
        if event == "start" or not tests:
            tests.append({"intervals": []})
        if event == "interval":
            tests[-1]["intervals"].append(data)
        else:
            tests[-1][str(event)] = data
    return list(tests)


def _test(document: Mapping[str, Any], where: str) -> Test:
    try:
        return _rates(document, where)
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise TraceError(
            f"{where}: must have the fields of iperf3, got none or another {exc!r:.80}; "
            "run iperf3 -J again"
        ) from exc


def _rates(document: Mapping[str, Any], where: str) -> Test:
    start = document.get("start") or {}
    settings: Mapping[str, Any] = start.get("test_start") or {}
    protocol = str(settings.get("protocol", "TCP")).upper()
    is_server = "accepted_connection" in start
    intervals = document.get("intervals") or []
    if document.get("error") and not intervals:
        raise TraceError(f"{where}: the test failed: {document['error']}; run it again")
    remote = document.get("server_output_json") or {}
    offered = protocol == "UDP" and any(
        _is_sender(one.get("sum", {}), settings, is_server, reverse=False) for one in intervals
    )
    if offered:
        if not remote.get("intervals") or settings.get("bidir"):
            raise TraceError(
                f"{where}: the sender of a UDP test writes the rate that it offered, not that of "
                "the link; run it with --get-server-output, or import the log of the receiver"
            )
        intervals, is_server = remote["intervals"], True
    columns: dict[str, list[tuple[float, float, float]]] = {}
    for one in intervals:
        for key in SUMS:
            if key in one and not one[key].get("omitted", False):
                total = one[key]
                sends = _is_sender(total, settings, is_server, reverse=key != SUMS[0])
                name = "up_bps" if sends != is_server else "down_bps"
                columns.setdefault(name, []).append(
                    (float(total[START]), float(total[END]), float(total["bits_per_second"]))
                )
    if not columns:
        raise TraceError(
            f"{where}: must have intervals, got none that is not omitted; run iperf3 -J -i 1"
        )
    rows = [np.array(values) for values in columns.values()]
    if any(len(each) != len(rows[0]) for each in rows):
        raise TraceError(f"{where}: both directions must have the same intervals; run it again")
    edges = np.append(rows[0][:, 0], rows[0][-1, 1])
    for each in rows:
        if not np.all(np.isfinite(each)) or not np.all((each[:, 2] >= 0) & (each[:, 2] <= MAX_BPS)):
            raise TraceError(f"{where}: rates must be from 0 to {MAX_BPS:g} bit/s; run it again")
    steps = np.diff(edges)
    if not np.all(steps > 0.0):
        raise TraceError(f"{where}: intervals must follow each other, got them out of order")
    names, rates = list(columns), [each[:, 2] for each in rows]
    if len(steps) > 1 and steps[-1] < SHORTEST_SHARE * np.median(steps):
        for each in rates:
            each[-2] = np.average(each[-2:], weights=steps[-2:])
        rates, edges = [each[:-1] for each in rates], np.append(edges[:-2], edges[-1])
    trace = Trace(
        edges[:-1] - edges[0], dict(zip(names, rates, strict=True)), float(edges[-1] - edges[0])
    )
    ways = " and ".join(name.removesuffix("_bps") for name in names)
    error = f"; the test ended early: {document['error']}" if document.get("error") else ""
    return Test(
        trace,
        f"iperf3 {protocol}, {ways}, log of the {'server' if is_server else 'client'}; the client "
        f"is the device; {NOT_IMPORTED}{error}",
    )


def _is_sender(
    total: Mapping[str, Any], settings: Mapping[str, Any], is_server: bool, *, reverse: bool
) -> bool:
    """Return whether the end that wrote the log sent; early versions state it for the test only."""
    if "sender" in total:
        return bool(total["sender"])
    client_sends = bool(settings.get("reverse", 0)) == reverse
    return client_sends != is_server
