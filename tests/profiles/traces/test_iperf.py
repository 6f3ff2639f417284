"""The JSON of iperf3 becomes the rates of a link, in the direction of its device."""

import json
from typing import Any

import pytest

from fairbed.profiles.errors import TraceError
from fairbed.profiles.traces.iperf import is_iperf, read_iperf


def interval(number: float, rate: float, **more: object) -> dict[str, Any]:
    return {"start": number, "end": number + 1, "seconds": 1, "bits_per_second": rate, **more}


def log(sums: list[dict[str, Any]], *, server: bool = False, **settings: object) -> dict[str, Any]:
    peer: dict[str, object] = {"accepted_connection": {}} if server else {"connecting_to": {}}
    start = {**peer, "test_start": {"protocol": "TCP", "reverse": 0, **settings}}
    return {"start": start, "intervals": [{"sum": each} for each in sums], "end": {}}


def columns(document: object) -> dict[str, list[float]]:
    (test,) = read_iperf(json.dumps(document).encode(), "t.json")
    return {name: values.tolist() for name, values in test.trace.columns.items()}


@pytest.mark.parametrize(
    ("server", "reverse", "sender", "column"),
    [
        (False, 0, True, "up_bps"),
        (False, 1, False, "down_bps"),
        (True, 0, False, "up_bps"),
        (True, 1, True, "down_bps"),
        (False, 0, None, "up_bps"),  # 3.1 has no `sender`
        (False, 1, None, "down_bps"),
        (True, 0, None, "up_bps"),
        (True, 1, None, "down_bps"),
    ],
)
def test_the_client_is_the_device(
    server: bool, reverse: int, sender: bool | None, column: str
) -> None:
    more = {} if sender is None else {"sender": sender}
    sums = [interval(0, 5e6, **more), interval(1, 7e6, **more)]
    assert columns(log(sums, server=server, reverse=reverse)) == {column: [5e6, 7e6]}


def test_both_directions_of_bidir_are_read() -> None:
    document = log([], bidir=1)
    document["intervals"] = [
        {
            "sum": interval(0, 3e6, sender=True),
            "sum_bidir_reverse": interval(0, 9e6, sender=False),
        }
    ]
    assert columns(document) == {"up_bps": [3e6], "down_bps": [9e6]}


def test_omitted_intervals_and_the_last_splinter_do_not_count() -> None:
    sums = [interval(0, 1.0, omitted=True), interval(0, 4e6), interval(1, 6e6)]
    splinter = {"start": 2.0, "end": 2.01, "seconds": 0.01, "bits_per_second": 0.0}
    (test,) = read_iperf(json.dumps(log([*sums, splinter])).encode(), "t.json")
    assert test.trace.columns["up_bps"].tolist() == pytest.approx([4e6, 6e6 / 1.01])
    assert test.trace.period_s == pytest.approx(2.01)


def test_a_stream_of_events_is_a_test() -> None:
    whole = log([interval(0, 5e6), interval(1, 6e6)])
    events = [{"event": "start", "data": whole["start"]}]
    events += [{"event": "interval", "data": each} for each in whole["intervals"]]
    content = "\n".join(json.dumps(event) for event in [*events, {"event": "end", "data": {}}])
    (test,) = read_iperf(content.encode(), "t.json")
    assert test.trace.columns["up_bps"].tolist() == [5e6, 6e6]
    assert is_iperf(content.encode())


def test_udp_takes_the_rate_of_the_receiver() -> None:
    document = log([interval(0, 9e9, sender=True)], protocol="UDP")
    with pytest.raises(TraceError, match="writes the rate that it offered, not that of the link"):
        columns(document)
    document["server_output_json"] = log([interval(0, 4e6, sender=False)], server=True)
    assert columns(document) == {"up_bps": [4e6]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"error": "unable to connect"}', "the test failed: unable to connect"),
        ('{"start": {}, "intervals": [', "the JSON that begins in row 1 must be whole"),
        ('{"start": {}, "intervals": []}', "must have intervals"),
        ('{"intervals": [{"sum": {"start": 0}}]}', "must have the fields of iperf3"),
        ('{"intervals": [7]}', "must have the fields of iperf3"),
        ('{"intervals": [{"sum": {"start": 0, "end": 1, "bits_per_second": -1}}]}', "from 0 to"),
        ('{"intervals": [{"sum": {"start": 1, "end": 1, "bits_per_second": 1}}]}', "must follow"),
    ],
)
def test_a_bad_test_is_one_line(content: str, words: str) -> None:
    with pytest.raises(TraceError, match=r"^t\.json: ") as caught:
        read_iperf(content.encode(), "t.json")
    assert words in str(caught.value)
