"""Names that identify their run."""

from fairbed.testbed.backends.network.plan.names import NetworkNames, make_names, owner_of

TAG = bytes.fromhex("0badcafe")


def test_the_name_of_a_namespace_has_its_run_and_its_device() -> None:
    names = make_names("digits-12", TAG)
    assert names.hub == "fairbed.digits-12.0badcafe"
    assert names.device("pi-07") == "fairbed.digits-12.0badcafe.pi-07"


def test_the_owner_of_a_namespace_is_found_again() -> None:
    names = make_names("digits-12", TAG)
    assert owner_of(names.hub) == names
    assert owner_of(names.device("pi-07")) == names
    assert owner_of(names.device("hub")) == names


def test_foreign_names_have_no_owner() -> None:
    for name in (
        "",
        "blue",
        "fairbed",
        "fairbed.x",
        "fairbed.x.pi",
        "cni-1234",
        "fairbed.a.0badcaf",
    ):
        assert owner_of(name) is None


def test_any_run_name_makes_names_that_can_be_read_back() -> None:
    for run_id in ("a b", "../../etc", "Ü.x", "", "x" * 500, "a.b.0badcafe"):
        names = make_names(run_id, TAG)
        assert owner_of(names.device("d")) == names
        assert "/" not in names.stem
        assert len(names.device("d" * 32)) < 255


def test_the_link_on_the_host_fits_a_kernel_name() -> None:
    assert make_names("x" * 500, TAG).host_link == "fb0badcafe"
    assert NetworkNames("fairbed..0badcafe").host_link == "fb0badcafe"
