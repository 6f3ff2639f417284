"""Availability, and the columns that decisions read from the registry."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import structs

from fairbed.coordinator.algorithms.selection.base import Reason
from fairbed.coordinator.state.memory import Fitting, TaskMemory
from fairbed.coordinator.state.registry import (
    Device,
    Registry,
    bounded_n_k,
    clamped_mu,
    clamped_values,
    cold_start,
    reason_lost,
)
from fairbed.wire.messages import Hyperparameters
from tests.coordinator.builders import CAPABILITIES, context, hello
from tests.tiers import examples


def joined(*names: str) -> Registry:
    registry = Registry()
    for name in names:
        registry.join(name, hello(n_k=100), now=0.0)
        registry.update_context(name, context(), now=10.0)
    return registry


def test_a_device_into_which_training_does_not_fit_is_not_available() -> None:
    registry, now = joined("pi-1", "pi-2"), 10.0
    whole = Hyperparameters(epochs=1, batch_size=16, learning_rate=0.1)
    assert registry.fitted(registry["pi-1"], whole) is whole
    fits = registry["pi-1"].capabilities
    assert fits is not None
    small = structs.replace(fits, memory_bytes=fits.memory_bytes // 4)
    registry["pi-2"].capabilities = small
    memory = TaskMemory(fixed_bytes=200.0 * 2**20, example_bytes=56.0 * 2**20)
    registry.fitting = Fitting(memory, 1000, batch_size=16, largest_part=16, chooses=True)
    assert registry.available(now).tolist() == [True, False]
    assert registry.absences(registry.available(now), now) == {1: Reason.UNFIT}
    assert registry.memory_problem(registry["pi-1"]) == ""
    assert "75% of the 256 MiB of the device" in registry.memory_problem(registry["pi-2"])
    assert registry.fitted(registry["pi-1"], whole).micro_batch == 10


def test_rows_follow_the_order_of_joining_and_survive_a_restart_of_the_agent() -> None:
    registry = joined("pi-2", "pi-1")
    registry.join("pi-2", hello(boot=9, n_k=100), now=20.0)
    assert registry.names() == ["pi-2", "pi-1"]
    assert [device.row for device in registry] == [0, 1]


NAMES = ("pi-0", "pi-1", "pi-2", "pi-3")


class ChangingRegistry(RuleBasedStateMachine):
    """Whatever happens to devices, columns are what the devices themselves say."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        self.now, self.round, self.seq = 0.0, 0, 0

    names = st.sampled_from(NAMES)
    some = st.sets(names)

    @rule(name=names, boot=st.integers(1, 2), n_k=st.none() | st.integers(0, 9))
    def join(self, name: str, boot: int, n_k: int | None) -> None:
        self.registry.join(name, hello(boot=boot, n_k=n_k), self.now)

    @rule(
        name=names,
        boot=st.integers(1, 2),
        mu=st.floats(0.01, 90.0),
        rate=st.none() | st.floats(1.0, 1e13),
        is_ready=st.booleans(),
        phase=st.sampled_from(["idle", "train"]),
    )
    def report(
        self, name: str, boot: int, mu: float, rate: float | None, is_ready: bool, phase: str
    ) -> None:
        self.seq += 1
        reported = structs.replace(
            context(),
            boot=boot,
            seq=self.seq,
            mu_cores=mu,
            downlink_bps=rate,
            uplink_bps=rate,
            is_ready=is_ready,
            phase=phase,
            n_k=self.seq % 12,
        )
        self.registry.update_context(name, reported, self.now)

    @rule(name=names, is_excluded=st.booleans())
    def exclude(self, name: str, is_excluded: bool) -> None:
        if (device := self.registry.get(name)) is not None:
            device.is_excluded = is_excluded

    @rule(name=names, boot=st.integers(1, 2))
    def leave(self, name: str, boot: int) -> None:
        self.registry.mark_off(name, boot, self.now)

    @rule(names=some, trained=some, draining=some)
    def play_a_round(self, names: set[str], trained: set[str], draining: set[str]) -> None:
        known = names & set(self.registry.names())
        self.round += 1
        self.registry.open_round(known, self.round)
        self.check()
        self.registry.close_round(known, trained & known, draining & known)

    @rule(name=names, has_trained=st.booleans(), is_draining=st.booleans())
    def release(self, name: str, has_trained: bool, is_draining: bool) -> None:
        if name in self.registry:
            self.registry.release(name, has_trained=has_trained, is_draining=is_draining)

    @rule()
    def lose_the_link(self) -> None:
        self.registry.expire_contexts()

    @rule(seconds=st.floats(0.0, 5.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(local_rule=st.sampled_from(["sgd", "drift"]), needs_losses=st.booleans())
    def change_needs(self, local_rule: str, needs_losses: bool) -> None:
        self.registry.local_rule, self.registry.needs_losses = local_rule, needs_losses

    @rule()
    def restart(self) -> None:
        saved = self.registry.to_state()
        self.registry = Registry()
        self.registry.load_state(saved)

    @invariant()
    def check(self) -> None:
        devices, now = list(self.registry), self.now
        needs_losses, rule = self.registry.needs_losses, self.registry.local_rule
        available = [
            d.is_available(now) and d.has_rule(rule) and (d.can_report_loss or not needs_losses)
            for d in devices
        ]
        assert self.registry.available(now).tolist() == available
        assert self.registry.n_k().tolist() == [bounded_n_k(d) for d in devices]
        for coding in ("not_previous", "literal_seed"):
            columns = self.registry.contexts(8e6, 8e6, coding)
            assert columns[:, 0].tolist() == [1.0 / clamped_mu(d) for d in devices]
            assert columns[:, 1].tolist() == [cold_start(d, coding) for d in devices]


TestChangingRegistry = ChangingRegistry.TestCase
TestChangingRegistry.settings = settings(max_examples=examples(50), stateful_step_count=20)


@pytest.mark.parametrize(
    ("n_k", "skills", "noise", "can_test"),
    [
        (100, ("loss", "test"), 0.0, True),
        (None, ("loss", "test"), 0.0, False),
        (100, ("loss",), 0.0, False),
        (100, ("test", "privacy"), 2.0, False),
    ],
    ids=["own data", "shard", "older agent", "owner demands noise"],
)
def test_a_device_tests_models_on_own_data_if_its_agent_can_and_its_owner_lets_it(
    n_k: int | None, skills: tuple[str, ...], noise: float, can_test: bool
) -> None:
    capabilities = structs.replace(CAPABILITIES, skills=skills, min_noise_multiplier=noise)
    registry = Registry()
    registry.expect(["pi-1"])
    assert not registry["pi-1"].can_test, "nothing is known of it"
    registry.join("pi-1", structs.replace(hello(n_k=n_k), capabilities=capabilities), now=0.0)
    assert registry["pi-1"].can_test == can_test


@pytest.mark.parametrize(
    ("engines", "models", "is_fit"),
    [
        (("onnx", "torch"), ("own", "other"), True),
        (("onnx",), ("own",), False),
        (("onnx", "torch"), ("other",), False),
    ],
    ids=["fit", "no torch", "module not allowed"],
)
def test_a_device_needs_the_engine_of_the_model_and_leave_of_its_owner(
    engines: tuple[str, ...], models: tuple[str, ...], is_fit: bool
) -> None:
    capabilities = structs.replace(CAPABILITIES, engines=engines, models=models)
    registry = Registry(engine="torch", module="own")
    registry.join("pi-1", structs.replace(hello(n_k=100), capabilities=capabilities), now=0.0)
    registry.update_context("pi-1", context(is_ready=is_fit), now=10.0)
    is_available = registry.available(10.0)
    assert is_available.tolist() == [is_fit]
    assert registry.absences(is_available, 10.0) == ({} if is_fit else {0: Reason.UNFIT})


def test_a_device_is_available_while_its_context_is_at_most_three_seconds_old() -> None:
    registry = joined("pi-1")
    assert registry.available(13.0).tolist() == [True]
    assert registry.available(13.001).tolist() == [False]
    assert registry["pi-1"].status(13.001) == "silent"


@pytest.mark.parametrize(
    ("change", "status"),
    [({"is_willing": False}, "unwilling"), ({"is_ready": False}, "preparing")],
)
def test_an_unwilling_or_unready_device_is_not_available(
    change: dict[str, bool], status: str
) -> None:
    registry = joined("pi-1")
    registry.update_context("pi-1", context(seq=2, **change), now=11.0)
    assert not registry.available(11.0).any()
    assert registry["pi-1"].status(11.0) == status


def test_an_excluded_device_is_not_available() -> None:
    registry = joined("pi-1")
    registry["pi-1"].is_excluded = True
    assert not registry.available(10.0).any()
    assert registry["pi-1"].status(10.0) == "excluded"


def test_the_last_will_of_an_earlier_process_changes_nothing() -> None:
    registry = joined("pi-1")
    assert not registry.mark_off("pi-1", boot=77, now=11.0)
    assert registry.available(11.0).all()
    assert registry.mark_off("pi-1", boot=1, now=11.0)
    assert not registry.mark_off("pi-1", boot=1, now=12.0)
    assert registry["pi-1"].status(11.0) == "gone"


def test_old_repeated_and_foreign_contexts_are_ignored() -> None:
    registry = joined("pi-1")
    assert not registry.update_context("pi-1", context(seq=1), now=12.0)
    assert not registry.update_context("pi-1", context(seq=5, boot=2), now=12.0)
    assert not registry.update_context("pi-9", context(seq=5), now=12.0)
    assert registry["pi-1"].context_at == 10.0


def test_context_features_are_inverse_mu_cold_start_and_seconds_of_transfer() -> None:
    registry = joined("pi-1")
    registry.update_context("pi-1", context(seq=2, mu_cores=2.0), now=11.0)
    columns = registry.contexts(8e6, 16e6, coding="not_previous")
    np.testing.assert_allclose(columns, [[0.5, 1.0, 1.0, 4.0]])


def test_an_unmeasured_link_counts_as_the_median_of_the_fleet() -> None:
    registry = joined("pi-1", "pi-2", "pi-3")
    registry.update_context("pi-2", context(seq=2, uplink_bps=8e6), now=11.0)
    registry.update_context("pi-3", context(seq=2, uplink_bps=None), now=11.0)
    columns = registry.contexts(8e6, 8e6, "not_previous")
    np.testing.assert_allclose(columns[2, 2:], np.median(columns[:2, 2:], axis=0))


def test_without_a_measured_link_transfers_take_no_time() -> None:
    registry = joined("pi-1")
    registry.update_context("pi-1", context(seq=2, downlink_bps=None), now=11.0)
    assert registry.contexts(8e6, 8e6, "not_previous")[0, 2:].tolist() == [0.0, 0.0]
    assert Registry().contexts(8e6, 8e6, "not_previous").shape == (0, 4)


def test_the_two_cold_start_codings_follow_training_and_selection() -> None:
    registry = joined("trained", "selected-only", "idle")
    registry.close_round({"trained", "selected-only"}, trained={"trained"}, draining=())
    assert registry.contexts(1.0, 1.0, "not_previous")[:, 1].tolist() == [0.0, 1.0, 1.0]
    assert registry.contexts(1.0, 1.0, "literal_seed")[:, 1].tolist() == [1.0, 1.0, 0.0]


def test_reported_values_are_clamped() -> None:
    registry = joined("pi-1")
    registry.update_context("pi-1", context(seq=2, n_k=10**9, mu_cores=4000.0), now=11.0)
    assert bounded_n_k(registry["pi-1"]) == 100
    assert clamped_mu(registry["pi-1"]) == 64.0


def test_a_late_device_is_busy_until_it_reports_that_it_is_idle() -> None:
    registry = joined("pi-1")
    registry.open_round(["pi-1"], round_id=4)
    registry.close_round(["pi-1"], trained=(), draining=["pi-1"])
    registry.update_context("pi-1", context(seq=2, phase="training"), now=11.0)
    assert not registry.available(11.0).any()
    registry.update_context("pi-1", context(seq=3, phase="idle"), now=12.0)
    assert registry.available(12.0).all()


def test_a_selected_device_is_busy_until_the_round_closes() -> None:
    registry = joined("pi-1")
    registry.open_round(["pi-1"], round_id=4)
    registry.update_context("pi-1", context(seq=2), now=11.0)
    assert not registry.available(11.0).any()
    registry.close_round(["pi-1"], trained=["pi-1"], draining=())
    assert registry.available(11.0).all()


def test_a_restored_registry_has_the_same_rows_and_waits_for_hellos() -> None:
    registry = joined("pi-2", "pi-1")
    registry["pi-1"].is_excluded = True
    registry.close_round(["pi-2"], trained=["pi-2"], draining=())
    restored = Registry()
    restored.load_state(registry.to_state())
    assert restored.names() == registry.names()
    assert restored.to_state() == registry.to_state()
    assert not restored.available(10.0).any()


def test_expected_devices_have_their_rows_in_any_order_of_joining() -> None:
    registry = Registry()
    registry.expect(["pi-1", "pi-2"])
    registry.join("pi-2", hello(n_k=100), now=5.0)
    assert registry.names() == ["pi-1", "pi-2"]
    assert registry.joined == 1
    assert registry["pi-1"].status(5.0) == "awaited"
    assert not registry.available(5.0).any()


def test_a_restarted_agent_is_free_and_a_repeated_hello_keeps_its_context() -> None:
    registry = joined("pi-1")
    registry.open_round(["pi-1"], round_id=4)
    registry.close_round(["pi-1"], trained=(), draining=["pi-1"])
    registry.join("pi-1", hello(n_k=100), now=10.5)
    assert registry["pi-1"].busy_round == 4
    assert registry["pi-1"].context is not None
    registry.join("pi-1", hello(boot=2, n_k=100), now=11.0)
    assert registry["pi-1"].status(11.0) == "silent"
    registry.update_context("pi-1", context(boot=2), now=11.5)
    assert registry.available(11.5).all()


def test_a_lost_link_ages_all_contexts() -> None:
    registry = joined("pi-1", "pi-2", "pi-3")
    registry.update_context("pi-2", context(seq=2, is_ready=False), now=10.0)
    registry.mark_off("pi-3", boot=1, now=10.0)
    assert registry.expire_contexts() == 1
    assert not registry.available(10.0).any()


def test_a_device_at_work_is_present_and_a_draining_one_is_not() -> None:
    registry = joined("free", "busy", "draining", "off")
    registry.open_round(["busy"], round_id=4)
    registry.drain(["draining"], round_id=4)
    registry.mark_off("off", boot=1, now=10.0)
    assert registry.present(10.0) == 2
    assert registry.present(13.5) == 0
    registry.update_context("draining", context(seq=2), now=13.5)
    assert registry.present(13.5) == 1


def test_claims_out_of_bounds_are_listed_with_the_value_in_use() -> None:
    registry = joined("pi-1")
    registry.expect(["pi-2"])
    assert clamped_mu(registry["pi-2"]) == 1.0
    assert clamped_values(registry["pi-2"]) == {}
    assert clamped_values(registry["pi-1"]) == {}
    wild = context(seq=2, mu_cores=0.01, downlink_bps=1.0, uplink_bps=1e15, n_k=101)
    registry.update_context("pi-1", wild, now=11.0)
    assert clamped_values(registry["pi-1"]) == {
        "mu": "0.01 cores, counts as 0.05",
        "downlink": "1 bit/s, counts as 1000",
        "uplink": "1e+15 bit/s, counts as 1e+12",
        "n_k": "101 examples, counts as 100",
    }


def test_a_device_is_lost_after_its_grace_or_a_long_silence() -> None:
    registry = joined("pi-1")
    device = registry["pi-1"]
    assert reason_lost(device, link_up_since=0.0, now=25.0) is None
    assert reason_lost(device, link_up_since=0.0, now=25.1) == (
        "no packet from the device for 15 s"
    )
    assert reason_lost(device, link_up_since=20.0, now=35.0) is None, "our own link was down"
    registry.mark_off("pi-1", boot=1, now=12.0)
    assert reason_lost(device, link_up_since=0.0, now=17.0) is None
    assert "left and did not come back within 5 s" in str(
        reason_lost(device, link_up_since=0.0, now=17.1)
    )


def test_a_device_may_be_silent_for_longer_at_a_cluster() -> None:
    (device,) = joined("pi-1")
    assert reason_lost(device, link_up_since=0.0, now=40.0, silent_s=30.0) is None
    assert reason_lost(device, link_up_since=0.0, now=40.1, silent_s=30.0) == (
        "no packet from the device for 30 s"
    )


def test_a_packet_delays_the_loss_of_a_known_device() -> None:
    registry = joined("pi-1")
    registry.record_packet("pi-1", now=20.0)
    registry.record_packet("pi-9", now=20.0)
    assert reason_lost(registry["pi-1"], link_up_since=0.0, now=35.0) is None
    assert "pi-9" not in registry


def test_missing_physical_devices_are_those_of_a_partly_emulated_fleet_without_a_hello() -> None:
    registry = Registry(emulated={"board-1"})
    registry.expect(["board-1", "pi-1", "pi-2"])
    registry.join("pi-2", hello(), 0.0)
    assert registry.missing_physical == ["pi-1"]
    registry.emulated = ()  # of such a fleet, states alone are reported
    assert registry.missing_physical == []


@pytest.mark.parametrize(
    ("fields", "noise_multiplier", "accepts"),
    [
        ({}, None, True),
        ({}, 1.0, False),  # an old agent
        ({"skills": ("privacy",)}, 1.0, True),
        ({"skills": ("privacy",), "min_noise_multiplier": 1.0}, 1.0, True),
        ({"skills": ("privacy",), "min_noise_multiplier": 1.5}, 1.0, False),
        ({"skills": ("privacy",), "min_noise_multiplier": 1.5}, None, False),
    ],
)
def test_a_device_takes_part_if_it_can_and_its_owner_lets_it(
    fields: dict[str, object], noise_multiplier: float | None, accepts: bool
) -> None:
    device = Device(name="pi-0", row=0, capabilities=structs.replace(CAPABILITIES, **fields))
    assert device.accepts_noise(noise_multiplier) is accepts
    assert Device(name="pi-1", row=1).accepts_noise(None)
    assert not Device(name="pi-1", row=1).accepts_noise(1.0)


def test_each_absence_has_a_reason() -> None:
    registry = Registry(needs_losses=True)
    changes: dict[str, dict[str, bool]] = {
        "ready": {},
        "unwilling": {"is_willing": False},
        "preparing": {"is_ready": False},
        "silent": {},
        "excluded": {},
        "busy": {},
        "unable": {},
    }
    for name, of_context in changes.items():
        skills = () if name == "unable" else ("loss",)
        capabilities = structs.replace(CAPABILITIES, skills=skills)
        registry.join(name, structs.replace(hello(), capabilities=capabilities), now=0.0)
        heard = 0.0 if name == "silent" else 9.0
        registry.update_context(name, context(**of_context), now=heard)
    registry.expect(["awaited"])
    registry["excluded"].is_excluded = True
    registry["busy"].busy_round = 3
    absences = registry.absences(registry.available(10.0), 10.0)
    names = registry.names()
    assert {names[row]: reason for row, reason in absences.items()} == {
        "unwilling": Reason.UNWILLING,
        "preparing": Reason.PREPARING,
        "silent": Reason.OFFLINE,
        "excluded": Reason.EXCLUDED,
        "busy": Reason.BUSY,
        "unable": Reason.UNFIT,
        "awaited": Reason.OFFLINE,
    }
