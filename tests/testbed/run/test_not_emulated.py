"""Settings that the backend does not emulate are reported in one line."""

from pathlib import Path

from fairbed.testbed.backends.choice import BackendChoice
from fairbed.testbed.emulation.conditions import LinkFeature
from fairbed.testbed.experiment.file import Experiment, FleetConfig
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.experiment.noise import NoiseConfig, PartNoise
from fairbed.testbed.run.preflight import not_emulated, preflight_findings

LINK = """
title = "A link that moves"
licence = "made up for this test"
[link]
up_bps = { value = 1e6, tag = "measured", source = "made up" }
delay_s = { value = 0.02, tag = "measured", source = "made up" }
loss_ratio = { value = 0.01, tag = "measured", source = "made up" }
[link.down_bps]
value = 2e6
series = { t_s = [0, 1], values = [1e6, 3e6], period_s = 2 }
tag = "measured"
source = "made up"
"""


PROXY: dict[LinkFeature, str] = {"loss": "", "fq_codel": "", "bbr": ""}
"""A proxy emulates none of the features."""


def test_a_constant_fleet_is_fully_emulated() -> None:
    fleet = (
        FleetConfig(profile="raspberry-pi-4b", link="gigabit-ethernet", count=3),
        FleetConfig(),
    )
    devices = plan_fleet(Experiment(name="still", fleet=fleet), {})
    assert not_emulated(devices, "process", PROXY) is None


def test_one_line_names_the_missing_keys_and_their_profiles(tmp_path: Path) -> None:
    path = tmp_path / "moving.toml"
    path.write_text(LINK, encoding="utf-8")
    fleet = (
        FleetConfig(profile="raspberry-pi-4b", link=str(path), count=2),
        FleetConfig(profile="raspberry-pi-5", link=str(path)),
        FleetConfig(profile="raspberry-pi-4b", link="gigabit-ethernet"),
    )
    devices = plan_fleet(Experiment(name="moving", fleet=fleet), {})
    words = not_emulated(devices, "process", PROXY)
    assert words is not None
    assert words.startswith(
        "3 of 4 devices have settings that the process backend does not emulate"
    )
    assert words.endswith("link.loss_ratio (raspberry-pi-4b and 1 more)")
    assert "\n" not in words


def test_a_live_run_warns_that_it_has_no_exchange_times_of_a_log() -> None:
    fleet = (FleetConfig(profile="raspberry-pi-4b", exchange_times="office.csv", count=9),)
    of = Experiment(name="logged", fleet=fleet)
    choice = BackendChoice("process", {}, (), Path())
    found = list(preflight_findings(of, plan_fleet(of, {}), choice, 1.0))
    (warning,) = (finding for finding in found if finding.kind == "not-emulated")
    assert warning.level == "warning"
    assert "fleet.exchange_times: only a replay draws durations from a log, got office.csv" in (
        warning.text
    )


def test_a_live_run_warns_that_its_exchanges_do_not_vary() -> None:
    def kinds(noise: NoiseConfig) -> list[str]:
        fleet = (FleetConfig(profile="raspberry-pi-4b", count=9),)
        of = Experiment(name="noisy", fleet=fleet, noise=noise)
        choice = BackendChoice("process", {}, (), Path())
        return [
            found.text
            for found in preflight_findings(of, plan_fleet(of, {}), choice, 1.0)
            if found.kind == "not-emulated"
        ]

    assert kinds(NoiseConfig(compute=PartNoise(device=0.2))) == []
    (words,) = kinds(NoiseConfig(compute=PartNoise(exchange=0.2)))
    assert words.startswith("noise.*.exchange: only a replay varies single exchanges")


def test_a_kernel_without_fq_codel_or_bbr_is_reported_with_what_to_do() -> None:
    fleet = (
        FleetConfig(profile="raspberry-pi-4b", queue="fq_codel", congestion="bbr", count=3),
        FleetConfig(profile="raspberry-pi-5", congestion="bbr"),
    )
    devices = plan_fleet(Experiment(name="short", fleet=fleet), {})
    assert not_emulated(devices, "namespace", {}) is None
    lacks: dict[LinkFeature, str] = {"fq_codel": "sudo modprobe sch_fq_codel", "bbr": "modprobe b"}
    assert not_emulated(devices, "namespace", lacks) == (
        "4 of 4 devices have settings that the namespace backend does not emulate: "
        "link.queue (raspberry-pi-4b); fleet.congestion (raspberry-pi-4b and 1 more); "
        "sudo modprobe sch_fq_codel; modprobe b"
    )
    words = not_emulated(devices, "process", PROXY, "bbr")
    assert words is not None
    assert "emulation.congestion (raspberry-pi-4b and 1 more)" in words
