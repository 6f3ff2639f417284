"""Profiles: shipped numbers have sources and are plausible; bad files are refused in a line."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fairbed import profiles
from fairbed.profiles import Profile, ProfileError, Quantity, UnknownProfile, Varying
from fairbed.profiles.load import near_names
from fairbed.profiles.schema import CellProfile, LinkProfile
from fairbed.profiles.traces import TraceReader
from fairbed.profiles.traces.table import parse_table

FOLDER = Path(profiles.__file__).resolve().parent
FILES = sorted(path for kind in ("devices", "links", "cells") for path in FOLDER.glob(f"{kind}/*"))
PI_4 = (
    (FOLDER / "devices" / "raspberry-pi-4b.toml").read_text(encoding="utf-8").split("[thermal]")[0]
)

DOCS = (FOLDER.parent / "docs" / "profiles.md").read_text(encoding="utf-8")

Edit = Callable[[str], str]


real_data = pytest.mark.skipif(
    not (Path(os.environ.get("FAIRBED_DATA", "nowhere")) / "traces").is_dir(),
    reason="needs the published traces: FAIRBED_DATA is not set",
)


def quantities(item: object) -> Iterator[tuple[str, Quantity[float]]]:
    assert isinstance(item, msgspec.Struct)
    for name in item.__struct_fields__:
        value = getattr(item, name)
        if isinstance(value, Quantity):
            yield name, value
        elif isinstance(value, msgspec.Struct):
            yield from quantities(value)


def shipped() -> list[Profile | LinkProfile | CellProfile]:
    return [
        *(profiles.load(name) for name in profiles.names()),
        *(profiles.load_link(name) for name in profiles.link_names()),
        *(profiles.load_cell(name) for name in profiles.cell_names()),
    ]


def test_every_shipped_file_is_without_problems() -> None:
    assert {path.stem for path in FILES} == {item.name for item in shipped()}
    assert [problem for path in FILES for problem in profiles.check(path)] == []


@pytest.mark.parametrize("item", shipped(), ids=lambda item: item.name)
def test_every_number_has_a_source(item: Profile | LinkProfile | CellProfile) -> None:
    found = list(quantities(item))
    assert len(found) >= 3
    for _, quantity in found:
        assert len(quantity.source.split()) >= 2
        if quantity.tag == "measured":
            assert re.search(r"\d", quantity.source), quantity.source


def test_a_file_of_the_first_version_keeps_its_meaning(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text(PI_4, encoding="utf-8")  # without the fields of the second version
    old = profiles.load(path)
    assert (old.clock, old.thermal, old.availability, old.energy) == (None, None, None, None)
    assert (old.link.jitter_s, old.link.loss_ratio) == (0.0, 0.0)
    assert all(
        number.is_constant for _, number in profiles.numbers(old) if isinstance(number, Varying)
    )


def test_no_number_of_the_library_is_unknown() -> None:
    assert {item.name: profiles.unknown_numbers(item) for item in shipped()} == {
        item.name: {} for item in shipped()
    }


def test_a_link_of_its_own_needs_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "half.toml"
    path.write_text(
        'title = "half a link"\nlicence = "made up"\n[link]\n'
        'down_bps = { value = 1e6, tag = "measured", source = "made up 1" }\n'
    )
    [problem] = profiles.check(path)
    assert "link: must have the key up_bps, got none" in problem


def test_boards_that_throttle_are_cooler_at_rest() -> None:
    hot = {name: thermal for name in profiles.names() if (thermal := profiles.load(name).thermal)}
    assert len(hot) >= 15
    for thermal in hot.values():
        assert thermal.sustained_clock_ratio < 1.0
        assert thermal.idle_celsius is not None
        assert thermal.limit_celsius is not None
        assert thermal.idle_celsius.value < thermal.limit_celsius.value


def test_the_library_is_broad_and_most_of_it_measured() -> None:
    devices = [profiles.load(name) for name in profiles.names()]
    measured = [
        device.name
        for device in devices
        if device.one_core.tag == device.link.down.tag == device.link.up.tag == "measured"
    ]
    assert len(devices) >= 20
    assert len(measured) >= 12
    families = {"lte-driving", "lte-city", "3g", "5g-static", "5g-driving", "starlink-driving"}
    assert families <= set(profiles.link_names())


@real_data
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_trace_that_a_shipped_file_names_can_be_followed(path: Path) -> None:
    assert profiles.check(path, os.environ) == []


@real_data
def test_typical_rates_of_traces_are_their_means() -> None:
    read = TraceReader(os.environ)
    for name in profiles.link_names():
        link = profiles.load_link(name).link
        for key, number in (("down_bps", link.down), ("up_bps", link.up)):
            if number.trace is not None:
                assert read(number.trace, key).mean == pytest.approx(number.value, rel=0.01)


def test_the_reference_machine_has_speed_one() -> None:
    assert profiles.load("n100").core_speed == 1.0


def test_a_pi_5_trains_twice_as_fast_as_a_pi_4() -> None:
    ratio = (
        profiles.load("raspberry-pi-5").training_speed
        / profiles.load("raspberry-pi-4b").training_speed
    )
    assert 1.8 < ratio < 2.2


def test_the_phone_classes_are_ordered() -> None:
    low, mid, high = (profiles.load(f"phone-{c}").training_speed for c in ("low", "mid", "high"))
    assert low < mid < high


def test_the_properties_are_the_plain_values() -> None:
    pi = profiles.load("raspberry-pi-4b")
    assert (pi.name, pi.kind, pi.cores, pi.engine_threads) == ("raspberry-pi-4b", "board", 4, 1)
    assert pi.memory_bytes == 4 << 30
    assert pi.free_cores == pi.cores - pi.background_load
    assert (pi.link.down_bps, pi.link.delay_s) == (108e6, 0.0025)


def test_background_load_can_slow_training() -> None:
    pi = profiles.load("raspberry-pi-4b")
    busy = msgspec.structs.replace(
        pi, busy=Varying(value=3.5, tag="literature", source="made up here")
    )
    assert busy.training_speed == pytest.approx(pi.core_speed * 0.5)


def test_a_profile_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "my-board.toml"
    path.write_text(PI_4, encoding="utf-8")
    assert profiles.load(path).name == "my-board"
    assert profiles.load(str(path)).core_speed == profiles.load("raspberry-pi-4b").core_speed


def test_an_unknown_name_lists_the_valid_ones() -> None:
    near = r"^pi4: no such profile; similar names: .*raspberry-pi-4b.*; fairbed profiles list"
    with pytest.raises(UnknownProfile, match=near):
        profiles.load("pi4")
    with pytest.raises(
        UnknownProfile, match=r"^4g: no such link; use one of 3g, .* or a \.toml file$"
    ):
        profiles.load_link("4g")


def test_similar_names_are_close_in_spelling_or_abbreviated() -> None:
    known = profiles.names()
    assert near_names("rapsberry-pi-5", known)[0] == "raspberry-pi-5"
    assert near_names("rpi5", known)[0] == "raspberry-pi-5"
    assert near_names("xaviernx", known) == ["jetson-xavier-nx"]
    assert near_names("", known) == near_names("zzz", known) == []


def replace(old: str, new: str) -> Edit:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return edit


def schedule(words: str) -> Edit:
    """Give the downlink of 108 Mbit/s a schedule."""
    return replace("down_bps = { value = 108e6", f"down_bps = {{ value = 108e6, {words}")


BAD: dict[str, tuple[Edit, str]] = {
    "zero cores": (
        replace("cores = { value = 4", "cores = { value = 0"),
        "cores.value: must be int >= 1, got 0; correct it",
    ),
    "speed below zero": (
        replace("core_speed = { value = 0.425", "core_speed = { value = -1.0"),
        "core_speed.value: must be float > 0.0, got -1.0; correct it",
    ),
    "speed that is not a number": (
        replace("core_speed = { value = 0.425", "core_speed = { value = nan"),
        "core_speed.value: must be float > 0.0, got nan; correct it",
    ),
    "a word for a number": (
        replace("core_speed = { value = 0.425", 'core_speed = { value = "fast"'),
        "core_speed.value: must be float, got 'fast'; correct it",
    ),
    "a number without source": (
        lambda text: re.sub(r"(?m)^cores = .*$", "cores = 4", text),
        "cores: must be a table with value, tag, source, got 4; correct it",
    ),
    "a tag of one's own": (
        replace('tag = "measured"', 'tag = "guessed"'),
        "core_speed.tag: must be one of datasheet, estimated, literature, measured, unknown, got "
        "'guessed'",
    ),
    "no source": (
        replace(', source = "BCM2711: 4 x Cortex-A72 at 1.5 GHz"', ""),
        "cores: must have the key source, got {",
    ),
    "no licence": (
        replace('licence = "', 'license = "'),
        "license: unknown key, got 'numbers derived",
    ),
    "negative delay": (
        replace("delay_s = { value = 0.0025", "delay_s = { value = -0.1"),
        "link.delay_s.value: must be float >= 0.0, got -0.1",
    ),
    "more threads than cores": (
        replace("engine_threads = { value = 1", "engine_threads = { value = 5"),
        "engine_threads must be at most the 4 cores, got 5",
    ),
    "a load that leaves nothing": (
        replace("background_load = { value = 0.05", "background_load = { value = 4"),
        "background_load must be less than the 4 cores, got 4.0",
    ),
    "two schedules": (
        schedule('series = { t_s = [0], values = [1e6], period_s = 2 }, trace = "a.csv"'),
        "link.down_bps: must have at most one schedule, got series and trace; correct it",
    ),
    "a series that goes back": (
        schedule("series = { t_s = [0, 2, 1], values = [1e6, 1e9, 0], period_s = 3 }"),
        "link.down_bps.series: series: times must increase, got 1.0 after 2.0 at row 2; correct",
    ),
    "a series below zero": (
        schedule("series = { t_s = [0, 2], values = [1e9, -1], period_s = 3 }"),
        "link.down_bps.series.values[1]: must be float >= 0.0, got -1; correct it",
    ),
    "a value outside its series": (
        schedule("series = { t_s = [0], values = [1e6], period_s = 2 }"),
        "link.down_bps: value must be within its series, 1e+06 to 1e+06, got 108000000.0; correct",
    ),
    "quantiles that fall": (
        schedule("spread = { quantiles = [[0, 9], [1, 3]], step_s = 1, correlation = 0 }"),
        "quantiles: values must not decrease, got 3.0 after 9.0 at point 1; correct it",
    ),
    "correlation of one": (
        schedule("spread = { quantiles = [[0, 9]], step_s = 1, correlation = 1 }"),
        "link.down_bps.spread.correlation: must be float < 1.0, got 1; correct it",
    ),
    "a trace without name": (
        schedule('trace = "data:mahimahi"'),
        "link.down_bps.trace: must be str",
    ),
    "certain loss": (
        lambda text: text + 'loss_ratio = { value = 1.0, tag = "measured", source = "a wall" }\n',
        "link.loss_ratio.value: must be float < 1.0, got 1.0",
    ),
    "available for more than ever": (
        lambda text: (
            text + '[availability]\navailable = { value = 1.5, tag = "measured", source = "x 1" }\n'
        ),
        "availability.available.value: must be float <= 1.0, got 1.5",
    ),
    "a load that once leaves nothing": (
        replace(
            "background_load = { value = 0.05",
            "background_load = { value = 0.05, series = "
            "{ t_s = [0, 1], values = [0, 4], period_s = 2 }",
        ),
        "background_load must be less than the 4 cores, got 4.0",
    ),
    "no speed": (
        lambda text: re.sub(r"(?m)^core_speed = .*$", "", text),
        "core_speed: must be given, got nothing; add it",
    ),
    "an unknown number with a value": (
        replace(
            'down_bps = { value = 108e6, tag = "measured"',
            'down_bps = { value = 108e6, tag = "unknown"',
        ),
        'link.down_bps: must have a source, got tag = "unknown"; leave the key out',
    ),
    "not TOML": (lambda text: text + "=\n", "must be TOML, got Invalid statement (at line"),
}


@pytest.mark.parametrize("case", BAD)
def test_the_message_of_a_bad_file_has_file_rule_value_and_advice(
    case: str, tmp_path: Path
) -> None:
    edit, complaint = BAD[case]
    path = tmp_path / "board.toml"
    path.write_text(edit(PI_4), encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        profiles.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert complaint in message
    assert "\n" not in message


def test_check_reports_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "Board.toml"
    text = PI_4
    for case in ("zero cores", "negative delay", "no licence"):
        text = BAD[case][0](text)
    path.write_text(text, encoding="utf-8")
    problems = profiles.check(path)
    rules = ("license: unknown", "file name", "licence: must be given", "cores.value", "link.")
    assert len(problems) == len(rules)
    for problem, rule in zip(problems, rules, strict=True):
        assert problem.startswith(str(path))
        assert rule in problem


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_bytes(b"\xe4")
    assert profiles.check(path)[0].startswith(f"{path}: must be UTF-8 text, got byte 0xe4 in row 1")


def test_the_example_of_the_docs_is_a_profile(tmp_path: Path) -> None:
    example = DOCS.split("## A device, by example")[1].split("```toml\n")[1].split("```")[0]
    path = tmp_path / "example.toml"
    path.write_text(example, encoding="utf-8")
    assert profiles.check(path) == []
    assert profiles.load(path).thermal is not None


def test_the_traces_of_the_docs_can_be_read() -> None:
    example = DOCS.split("## Traces")[1].split("```\n")[1].split("```")[0]
    assert parse_table(example.encode(), "docs").period_s == 4.0
