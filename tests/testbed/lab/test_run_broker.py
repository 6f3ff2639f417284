"""The broker of a lab during a run."""

from pathlib import Path

from fairbed.testbed.lab.run_broker import RunAtLab
from fairbed.testbed.run_folder import Endpoint
from fairbed.wire.transport.address import parse_url
from tests.testbed.lab.labs import make_lab


def test_devices_on_hosts_reach_a_lab_at_its_tls_listener(tmp_path: Path) -> None:
    lab = make_lab(tmp_path / "lab")
    broker = RunAtLab(Endpoint(url="mqtt://coordinator@127.0.0.1:1", tenant="main"), lab=lab)
    address = parse_url(broker.url_at("10.0.0.1"))
    assert (address.host, address.port, address.is_tls) == ("10.0.0.1", lab.settings.port, True)
    assert (address.server_name, address.cafile) == ("127.0.0.1", str(lab.ca))
