"""Writing: a profile that is written and read again is equal."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed import profiles
from fairbed.profiles import LinkProfile, Population, Profile, Varying
from fairbed.profiles.quantities import Steps

PI = profiles.load("raspberry-pi-3b")


def again(item: Profile | LinkProfile | Population, folder: Path) -> msgspec.Struct:
    path = folder / f"{item.name}.toml"
    path.write_text(profiles.to_toml(item, str(folder)), encoding="utf-8")
    assert profiles.check(path) == []
    if isinstance(item, LinkProfile):
        return profiles.load_link(path)
    return profiles.load_population(path) if isinstance(item, Population) else profiles.load(path)


def shipped() -> list[Profile | LinkProfile | Population]:
    return [
        *(profiles.load(name) for name in profiles.names()),
        *(profiles.load_link(name) for name in profiles.link_names()),
        *(profiles.load_population(name) for name in profiles.population_names()),
    ]


@pytest.mark.parametrize("item", shipped(), ids=lambda item: item.name)
def test_what_is_written_is_read_back(
    item: Profile | LinkProfile | Population, tmp_path: Path
) -> None:
    assert again(item, tmp_path) == item


def test_a_series_and_a_trace_beside_the_file_are_written(tmp_path: Path) -> None:
    (tmp_path / "bus.csv").write_text("t_s,up_bps\n0,1e6\n", encoding="utf-8")
    steps: Steps[float] = Steps(
        t_s=tuple(map(float, range(20))), values=(1.0, 0.5) * 10, period_s=20.0
    )
    clock: Varying[float, float] = Varying(
        value=0.75, tag="measured", source="run 1 of this test", series=steps
    )
    up: Varying[float, float] = Varying(
        value=1e6, tag="measured", source="run 1 of this test", trace=str(tmp_path / "bus.csv")
    )
    link = msgspec.structs.replace(PI.link, up=up)
    profile = msgspec.structs.replace(PI, clock=clock, link=link)
    assert again(profile, tmp_path) == profile
    assert 'trace = "bus.csv"' in profiles.to_toml(profile, str(tmp_path))


@given(st.text(min_size=3, max_size=60).filter(lambda text: text < "\ud800"))
def test_any_text_survives(words: str) -> None:
    profile = msgspec.structs.replace(PI, title=words)
    raw = msgspec.toml.decode(profiles.to_toml(profile))
    assert raw["title"] == words


@given(st.floats(min_value=1e-300, max_value=1e12))
def test_any_number_survives_to_the_last_bit(value: float) -> None:
    down = msgspec.structs.replace(PI.link.down, value=value)
    profile = msgspec.structs.replace(PI, link=msgspec.structs.replace(PI.link, down=down))
    raw = msgspec.toml.decode(profiles.to_toml(profile))
    assert raw["link"]["down_bps"]["value"] == value
