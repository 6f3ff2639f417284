"""An experiment file is read strictly, and each error is one clear line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.experiment.explain import override
from fairbed.testbed.experiment.file import (
    Experiment,
    ExperimentError,
    load_experiment,
    parse_experiment,
)

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_valid(path: Path) -> None:
    assert load_experiment(path).devices > 0


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_resolved_experiment_is_the_same_experiment(path: Path, tmp_path: Path) -> None:
    experiment = load_experiment(path, ["selection.V=3", "seeds.data=5"])
    copy = tmp_path / "experiment.toml"
    copy.write_text(experiment.resolved_toml(), encoding="utf-8")
    assert load_experiment(copy) == experiment
    assert load_experiment(copy).hash() == experiment.hash()


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("selection.bta=0.2", "selection.bta: unknown key; did you mean 'beta'? valid here: V, "),
        ("selection.policy=rbcsf", "selection.policy: must be one of 'app', 'fastest-known'"),
        ("selection.V=abc", "selection.V: must be a number, got 'abc'"),
        ("selection.V=-1", "selection.V: must be a number >= 0, got -1"),
        (
            "training.rule_options={ a = 1, rate = 99999999999999999999 }",
            "training.rule_options.rate: must be a whole number <= 9007199254740992, got 9999",
        ),
        (
            "training.rule_options={ b = 'x', a = [1] }",
            "training.rule_options.a: must be true or false or a whole number or a number or a",
        ),
        ("rounds=0", "rounds: must be a whole number >= 1, got 0"),
        ("rounds=true", "rounds: must be a whole number, got True"),
        ("fleet=3", "fleet: must be a list, got 3"),
        ('data.partition={kind="dirichle"}', "data.partition.kind: must be one of 'iid', 'dirich"),
        ('data.partition={kind="dirichlet", alfa=1}', "data.partition.alfa: unknown key; did you"),
        (
            'data={dataset="digits", folder="x"}',
            "data: folder must not be set for dataset",
        ),
        (
            "data.dataset=imagenet",
            "data: dataset must be digits, synthetic, breast-cancer, diabetes, fashion-mnist, ",
        ),
        ("exchange.up=gzip", "exchange.up: must be one of 'float16', 'float32', 'int8', 'top-k'"),
        ("exchange.down=top-k", "exchange.down: must be one of 'delta', 'float16', 'float32', "),
        ("exchange.top_k=0", "exchange.top_k: must be a number > 0, got 0"),
        ("exchange.topk=0.1", "exchange.topk: unknown key; did you mean 'top_k'?"),
        ("selection.per_round=40", "selection.per_round must be at most the 12 devices"),
        ("selection.alpha=[]", "selection.alpha: must be a number or a text"),
        (
            "emulation.host_core_speed=inf",
            "emulation.host_core_speed: must be a finite number, got",
        ),
        ("training.learning_rate=nan", "training.learning_rate: must be a finite number, got nan"),
        ("training.weight_decay=1e4", "training.weight_decay: must be a number <= 1000"),
        ("round.deadline_s=1e9", "round.deadline_s: must be a number <= 1"),
        (
            "broker.url=localhost",
            "broker.url: must begin with mqtt:// or mqtts://, got 'localhost'",
        ),
        ("broker.url=mqtt://", "broker.url: must name a host, got 'mqtt://'; write mqtt://host"),
        (
            "model.name=resnet",
            "model.name: must be softmax, mlp, cnn, linear-svm, cnn-ditto, ",
        ),
        ("nosuch.key=1", "nosuch: unknown key; valid here: aggregation, "),
        ("name=../../etc", "name: must be a text that matches ^[a-zA-Z0-9]"),
    ],
)
def test_a_wrong_key_type_or_value_is_one_line(setting: str, line: str) -> None:
    path = Path(__file__).parents[3] / "examples" / "quickstart.toml"
    with pytest.raises(ExperimentError) as caught:
        load_experiment(path, [setting])
    assert str(caught.value).startswith(f"{path}: {line}")
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_broken_toml_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"nothing\.toml: there is no such file;"):
        load_experiment(tmp_path / "nothing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("name = ", encoding="utf-8")
    with pytest.raises(ExperimentError, match=r"broken\.toml: not valid TOML: "):
        load_experiment(broken)
    broken.write_bytes(b"\xe4")
    with pytest.raises(ExperimentError, match=r"broken\.toml: must be UTF-8 text, got byte 0xe4"):
        load_experiment(broken)


@pytest.mark.parametrize("setting", ["selection.V", "=3", "selection..V=1", "name.x=3"])
def test_an_invalid_override_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=r"must be KEY=VALUE such as|is not a table"):
        override({"name": "x"}, setting)


def test_overrides_are_toml_or_plain_words() -> None:
    raw: dict[str, object] = {}
    for setting in ("a.b=1.5", "a.c=text", 'a.d=["x"]', "e=true"):
        override(raw, setting)
    assert raw == {"a": {"b": 1.5, "c": "text", "d": ["x"]}, "e": True}


def test_an_override_names_one_of_several_tables_by_index() -> None:
    raw: dict[str, object] = {"fleet": [{"count": 1}, {"count": 2}]}
    override(raw, "fleet.1.count=7")
    assert raw == {"fleet": [{"count": 1}, {"count": 7}]}
    for wrong, message in (
        ("fleet.2.count=7", "'2' must be the index of one of 2 tables, from 0"),
        ("fleet.count=7", "'count' must follow the index of a table"),
        ("fleet.first.count=7", "'first' must be the index of one of 2"),
    ):
        with pytest.raises(ValueError, match=message):
            override(raw, wrong)


def test_the_seed_is_the_default_of_every_purpose() -> None:
    experiment = parse_experiment({"name": "x", "seed": 4, "seeds": {"data": 9}}, "test")
    assert (experiment.seed_for("data"), experiment.seed_for("init")) == (9, 4)


def test_a_run_waits_for_the_whole_emulated_fleet() -> None:
    experiment = parse_experiment({"name": "x", "fleet": [{"count": 7}]}, "test")
    assert experiment.coordinator().round.min_devices == 7

    assert experiment.coordinator(absent=2).round.min_devices == 5
    assert experiment.coordinator().round.join_timeout_s == 120.0
    client = {"data": {"dataset": "none"}, "training": {"client": "m:C"}, "fleet": [{"count": 7}]}
    patient = parse_experiment({"name": "x", **client}, "test")
    assert patient.coordinator().round.join_timeout_s == 600.0, "its packages take long to import"


@pytest.mark.parametrize(
    ("sections", "wanted", "shards"),
    [
        ({"selection": {"per_round": 4}}, 4, 4),
        ({"selection": {"per_round": 4}, "round": {"over_select": 2}}, 6, 6),
        ({"selection": {"per_round": 4}, "round": {"mode": "async", "concurrency": 3}}, 3, 3),
        ({"selection": {"per_round": 4}, "round": {"min_devices": 9}}, 9, 9),
        ({"selection": {"per_round": 4}, "fleet": [{"count": 7}]}, 4, 7),
        (
            {"selection": {"per_round": 4}, "fleet": [{"count": 4}], "round": {"over_select": 2}},
            4,
            4,
        ),
        (
            {"selection": {"per_round": 4}, "fleet": [{"count": 7}], "round": {"min_devices": 1}},
            1,
            7,
        ),
    ],
)
def test_devices_that_join_by_themselves_are_waited_for_until_a_round_is_full(
    sections: dict[str, object], wanted: int, shards: int
) -> None:
    experiment = parse_experiment({"name": "x", **sections}, "test")
    config = experiment.coordinator(starts_fleet=False)
    assert (config.round.min_devices, experiment.shards) == (wanted, shards)
    assert config.round.join_timeout_s == 600.0


def test_a_smaller_number_is_enough_for_an_emulated_fleet_where_it_is_asked_for() -> None:
    for wanted in (1, 3):
        raw = {"name": "x", "fleet": [{"count": 7}], "round": {"min_devices": wanted}}
        assert parse_experiment(raw, "test").coordinator().round.min_devices == wanted


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    section=st.sampled_from(Experiment.__struct_fields__),
    value=json_values | st.dictionaries(st.sampled_from(["V", "kind", "dataset"]), json_values),
)
def test_any_section_decodes_or_is_one_line(section: str, value: object) -> None:
    line = "file.toml: fine"
    try:
        parse_experiment({"name": "x"} | {section: value}, "file.toml")
    except ExperimentError as exc:
        line = str(exc)
    assert line.startswith("file.toml: ")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("settings", "trains"),
    [
        ([], False),
        (["data.dataset=digits"], True),
        (["data.dataset=digits", "replay.training=false"], False),
        (["replay.training=true"], True),
    ],
)
def test_a_linear_world_trains_only_if_it_is_given_data(settings: list[str], trains: bool) -> None:
    paper = next(path for path in EXAMPLES if path.stem == "rbcs-f-paper")
    assert load_experiment(paper, settings).trains_in_replay is trains
    quickstart = next(path for path in EXAMPLES if path.stem == "quickstart")
    assert load_experiment(quickstart).trains_in_replay
