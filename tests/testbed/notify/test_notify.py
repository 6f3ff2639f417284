"""Messages to a person at the end of a run, at its failure and about its alerts."""

import http.server
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from fairbed.coordinator.state.alerts import AlertChange
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.file import ExperimentError, parse_experiment
from fairbed.testbed.notify.notifier import (
    ALERT_PAUSE_S,
    AlertLimit,
    Notification,
    notification,
    post,
    run_command,
    send,
    serve,
)
from fairbed.testbed.notify.notify import AlertSeen, Notifier, NotifyWatcher, RunEnded, Start
from fairbed.testbed.notify.settings import (
    NotifyConfig,
    NotifyError,
    NotifySettings,
    address_problem,
    notify_settings,
)
from fairbed.testbed.run.watchers import watching
from tests.coordinator.store.fake_run import FakeRun, fake_run
from tests.testbed.small_run import running, wait_until

SECRET = "hush-77aa21"
ADDRESS = f"https://hooks.example.org/{SECRET}"

FACTS = Notification(
    event="end",
    run_id="demo-1",
    name="demo",
    status="done",
    rounds=4,
    rounds_planned=4,
    rounds_empty=0,
    reason="",
    accuracy=0.5,
    beta=None,
    lowest_rate=None,
    is_kept=None,
    title="Fairbed: demo is done",
    text="demo-1: done",
)

RECORD = """
import json, os, sys
facts = {name: value for name, value in os.environ.items() if name.startswith("FAIRBED_")}
json.dump([json.load(sys.stdin), facts, sys.argv[2:]], open(sys.argv[1] + ".new", "w"))
os.replace(sys.argv[1] + ".new", sys.argv[1])
"""


def recorder(path: Path) -> tuple[str, ...]:
    """Return a command that writes its message to a file."""
    return (sys.executable, "-c", RECORD, str(path), "{title}", "<{text}>")


def settings(**changes: object) -> NotifySettings:
    """Return settings without a way to send."""
    plain = NotifySettings(on=("end", "failure", "alert"), command=(), url=None, timeout_s=10.0)
    return msgspec.structs.replace(plain, **changes)


def test_an_experiment_has_no_address_and_its_error_shows_none() -> None:
    for section in ({"webhook": ADDRESS}, {"webhook": ADDRESS, "on": ["end"]}):
        with pytest.raises(ExperimentError) as caught:
            parse_experiment({"name": "x", "notify": section}, "x.toml")
        assert str(caught.value).startswith("x.toml: notify: webhook must be env:NAME or file:PATH")
        assert SECRET not in str(caught.value)


def test_messages_do_not_make_another_experiment() -> None:
    section = {"command": ["true"], "on": ["alert"]}
    notified = parse_experiment({"name": "x", "notify": section}, "x.toml")
    assert notified.room_tables["notify"].on == ("alert",)
    assert notified.hash() == parse_experiment({"name": "x"}, "x.toml").hash()


def test_the_address_is_read_from_the_environment_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "hook"
    path.write_text(f"{ADDRESS}\n")
    for webhook in ("env:HOOK", f"file:{path}"):
        found = notify_settings(NotifyConfig(webhook=webhook), {"HOOK": f" {ADDRESS}"})
        assert found is not None
        assert found.url == ADDRESS
    assert notify_settings(NotifyConfig(), {}) is None
    assert notify_settings(NotifyConfig(webhook="env:HOOK", on=()), {}) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (NotifyConfig(webhook="env:NONE"), "variable with an address, got NONE, which is not set"),
        (NotifyConfig(webhook="file:/nowhere"), "got /nowhere: No such file or directory"),
        (NotifyConfig(webhook="file:EMPTY"), "EMPTY: empty"),
        (NotifyConfig(webhook="env:FTP"), "must begin with https:// and a host, got something"),
        (NotifyConfig(webhook="env:HTTP"), "got http:// to hooks.example.org, where everyone"),
        (NotifyConfig(webhook="env:USER"), "must have no user or password before the host"),
        (NotifyConfig(webhook="env:BAD"), "the address is not valid"),
        (NotifyConfig(command=("no-such-program",)), "got 'no-such-program'; install it"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line_without_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: NotifyConfig, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("EMPTY").write_text("\n")
    environ = {
        "FTP": f"ftp://hooks.example.org/{SECRET}",
        "HTTP": f"http://hooks.example.org/{SECRET}",
        "USER": f"https://me:{SECRET}@hooks.example.org/",
        "BAD": f"https://[hooks/{SECRET}",
    }
    with pytest.raises(NotifyError) as caught:
        notify_settings(config, environ)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_http_is_for_this_machine_or_on_request() -> None:
    assert address_problem("http://127.0.0.1:8080/x", allows_plain=False) is None
    assert address_problem("http://[::1]/x", allows_plain=False) is None
    assert address_problem("http://localhost/x", allows_plain=False) is None
    assert address_problem("http://10.0.0.7/x", allows_plain=False) is not None
    assert address_problem("http://10.0.0.7/x", allows_plain=True) is None


def test_a_user_has_messages_for_every_experiment_without_its_own(tmp_path: Path) -> None:
    path = tmp_path / "notify.toml"
    path.write_text('command = ["true"]\non = ["failure"]\n')
    environ = {"FAIRBED_NOTIFY": str(path), "PATH": os.environ["PATH"]}
    found = notify_settings(NotifyConfig(), environ)
    assert found is not None
    assert (found.command, found.on) == (("true",), ("failure",))
    own = notify_settings(NotifyConfig(command=("false",)), environ)
    assert own is not None
    assert own.command == ("false",)
    for text, message in (
        ('comand = ["true"]', "unknown field comand"),
        ("command = [", "not valid TOML"),
    ):
        path.write_text(text)
        with pytest.raises(NotifyError, match=message):
            notify_settings(NotifyConfig(), environ)
    path.unlink()
    with pytest.raises(NotifyError, match="must be a file that can be read"):
        notify_settings(NotifyConfig(), environ)


def test_the_message_about_an_end_has_what_a_person_asks_first(tmp_path: Path) -> None:
    with RunReader(fake_run(tmp_path / "demo-1", rounds=4, devices=3)) as reader:
        message = notification(reader)
        info = reader.run()
    assert message.event == "end"
    assert (message.run_id, message.status, message.rounds) == ("demo-1", "done", 4)
    assert message.accuracy == info.accuracy_mean
    assert (message.beta, message.is_kept) == (0.15, True)
    assert message.title == "Fairbed: digits-12 is done"
    assert message.text == (
        f"demo-1: done after 4 of 4 rounds, accuracy {info.accuracy_mean:.3f}, "
        "guarantee of 0.15 kept"
    )
    environment = message.environment()
    assert environment["FAIRBED_ACCURACY"] == str(info.accuracy_mean)
    assert (environment["FAIRBED_ALERT"], environment["FAIRBED_IS_KEPT"]) == ("", "true")


def test_a_failure_has_its_reason_and_a_killed_run_is_a_failure(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "demo-1")
    run.play(2)
    run.store.set_status("failed", "the fleet is lost")
    run.store.close()
    with RunReader(tmp_path / "demo-1") as reader:
        message = notification(reader)
    assert (message.event, message.reason) == ("failure", "the fleet is lost")
    assert "failed after 2 of 30 rounds: the fleet is lost, accuracy" in message.text
    run = FakeRun(tmp_path / "demo-2")
    run.play(1)
    run.store.close()  # its status is still "running"
    with RunReader(tmp_path / "demo-2") as reader:
        message = notification(reader)
    assert (message.event, message.status) == ("failure", "interrupted")
    assert message.title == "Fairbed: digits-12 was killed"


def test_a_message_about_an_alert_names_it_and_its_end(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "demo-1")
    run.store.flush()
    with RunReader(tmp_path / "demo-1") as reader:
        begun = notification(reader, AlertSeen("disk low", "1 GB is free", False))
        over = notification(reader, AlertSeen("disk low", "1 GB is free", True))
    assert (begun.event, begun.alert, begun.is_over) == ("alert", "disk low", False)
    assert begun.text == "demo-1: 1 GB is free"
    assert over.title == "Fairbed: digits-12: disk low is over"
    run.store.close()


def test_alerts_of_one_kind_are_limited_and_ends_follow_begins() -> None:
    limit = AlertLimit()

    def allows(kind: str, is_over: bool, now: float) -> bool:
        return limit.allows(AlertSeen(kind, "", is_over), now)

    assert allows("broker lost", False, 0.0)
    assert allows("disk low", False, 1.0)
    assert allows("broker lost", True, 2.0)
    assert not allows("broker lost", False, ALERT_PAUSE_S - 1.0)
    assert not allows("broker lost", True, ALERT_PAUSE_S - 0.5), "its begin was not sent"
    assert allows("broker lost", False, ALERT_PAUSE_S)


def test_a_command_gets_the_facts_without_a_shell(tmp_path: Path) -> None:
    out = tmp_path / "out; touch oops"
    message = msgspec.structs.replace(FACTS, text="$(touch oops) `touch oops`")
    assert run_command(recorder(out), message, 30.0) == ""
    facts, environment, arguments = json.loads(out.read_text())
    assert facts == msgspec.to_builtins(message)
    assert environment["FAIRBED_RUN_ID"] == "demo-1"
    assert environment["FAIRBED_IS_KEPT"] == ""
    assert arguments == ["Fairbed: demo is done", "<$(touch oops) `touch oops`>"]


@pytest.mark.parametrize(
    ("command", "limit_s", "message"),
    [
        (("sh", "-c", "echo first >&2; echo last >&2; exit 3"), 30.0, "exit status 3: last"),
        (("sh", "-c", "exit 4"), 30.0, "ended with exit status 4"),
        (("sh", "-c", "sleep 60 & sleep 60"), 0.2, "did not end within 0.2 s and was killed"),
        (("/no/such/program",), 30.0, "cannot be started: No such file or directory"),
    ],
)
def test_a_command_that_fails_is_one_line(
    command: tuple[str, ...], limit_s: float, message: str
) -> None:
    assert run_command(command, FACTS, limit_s).endswith(message)


@contextmanager
def webhook(*statuses: int) -> Iterator[tuple[str, list[bytes]]]:
    """Serve a webhook that answers with these statuses; yield its address and what it got."""
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status = statuses[min(len(bodies), len(statuses) - 1)]
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"http://127.0.0.1:{server.server_port}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{SECRET}", bodies
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("statuses", "attempts", "problem"),
    [
        ((204,), 1, ""),
        ((500, 200), 2, ""),
        ((503,), 3, "HTTP status 503"),
        ((404,), 1, "HTTP status 404"),
        ((302, 200), 1, "HTTP status 302"),
    ],
)
def test_a_webhook_is_tried_again_where_that_can_help_and_never_redirected(
    statuses: tuple[int, ...], attempts: int, problem: str
) -> None:
    with webhook(*statuses) as (url, bodies):
        assert post(url, FACTS, time.monotonic() + 30.0, (0.0, 0.0, 0.0)) == problem
    assert len(bodies) == attempts
    assert msgspec.json.decode(bodies[0], type=Notification) == FACTS


def test_a_webhook_that_cannot_be_reached_is_one_line_without_its_address() -> None:
    with webhook(200) as (url, _):
        pass
    problem = send(settings(url=url), FACTS, 30.0, (0.0,))
    assert problem.startswith("webhook of 127.0.0.1: ")
    assert "refused" in problem
    assert SECRET not in problem
    assert post(url, FACTS, time.monotonic() - 1.0) == "no time is left for an attempt"


def test_a_command_that_hangs_does_not_hold_up_the_webhook(tmp_path: Path) -> None:
    with webhook(200) as (url, bodies):
        command = ("sh", "-c", "sleep 60")
        problem = send(settings(command=command, url=url), FACTS, 1.0)
    assert problem.startswith("sh: ")
    assert len(bodies) == 1


def lines(*structs: msgspec.Struct) -> Iterator[bytes]:
    return (msgspec.json.encode(struct) for struct in structs)


def test_a_notifier_answers_each_line_and_ends_with_the_run(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "demo-1", rounds=2, devices=2)
    out, answers = tmp_path / "out", io.BytesIO()
    how = settings(command=recorder(out), on=("end", "alert"))
    seen = AlertSeen("disk low", "1 GB is free", False)
    serve(lines(Start(str(folder), how), seen, seen, RunEnded()), answers)
    found = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert found == [
        {"problem": "", "is_last": False},
        {"problem": "", "is_last": False},
        {"problem": "", "is_last": True},
    ]
    facts, _, _ = json.loads(out.read_text())
    assert facts["event"] == "end"


def test_a_run_whose_lines_end_early_was_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun(tmp_path / "demo-1")
    run.play(1)
    run.store.close()
    out = tmp_path / "out"
    serve(lines(Start(str(tmp_path / "demo-1"), settings(command=recorder(out)))), io.BytesIO())
    facts, _, _ = json.loads(out.read_text())
    assert (facts["event"], facts["status"]) == ("failure", "interrupted")
    failing = settings(command=("sh", "-c", "exit 1"))
    serve(lines(Start(str(tmp_path / "demo-1"), failing)), io.BytesIO())
    assert "fairbed: no notification: sh: ended with exit status 1" in capfd.readouterr().err


def test_an_occasion_that_is_not_asked_for_is_silent(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "demo-1", rounds=1, devices=2)
    out, problems = tmp_path / "out", list[str]()
    notifier = Notifier(settings(command=recorder(out), on=("failure",)), folder, problems.append)
    notifier.alert(AlertChange("disk low", "1 GB", 0.0, is_new=True))
    notifier.end()
    assert problems == []
    assert not out.exists()


def test_a_notifier_that_has_died_is_one_report(tmp_path: Path) -> None:
    problems = list[str]()
    notifier = Notifier(settings(), fake_run(tmp_path / "demo-1", rounds=1), problems.append)
    os.kill(notifier._process.pid, signal.SIGKILL)
    notifier._process.wait()
    notifier.alert(AlertChange("disk low", "1 GB", 0.0, is_new=True))
    notifier.end()
    assert problems == ["the notifier has ended: Broken pipe"]


def test_a_notifier_that_hangs_delays_the_end_by_its_time_limit(tmp_path: Path) -> None:
    problems = list[str]()
    folder = fake_run(tmp_path / "demo-1", rounds=1)
    notifier = Notifier(settings(timeout_s=0.3), folder, problems.append)
    os.kill(notifier._process.pid, signal.SIGSTOP)
    begun = time.monotonic()
    notifier.end()
    assert 0.3 <= time.monotonic() - begun < 5.0
    assert problems == ["no confirmation within 0.3 s"]
    os.kill(notifier._process.pid, signal.SIGCONT)
    notifier._process.wait()


def test_a_replay_sends_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    watchers = [NotifyWatcher(settings(command=recorder(out)))]
    with watching(watchers, fake_run(tmp_path / "demo-1", rounds=1)):
        assert not out.exists()
    assert json.loads(out.read_text())[0]["status"] == "done"
    own = tmp_path / "notify.toml"
    own.write_text(f"command = {json.dumps(recorder(out))}\n")
    monkeypatch.setenv("FAIRBED_NOTIFY", str(own))
    experiment = tmp_path / "x.toml"
    experiment.write_text(
        'name = "x"\nrounds = 1\n[selection]\nper_round = 1\n[[fleet]]\nmodel = "linear"\n'
        "count = 2\ntheta = [1.0, 0.5, 0.2]\n"
    )
    assert main(["replay", str(experiment), "--out", str(tmp_path / "run")]) == 0
    assert json.loads(out.read_text())[0]["name"] == "x"


def user_settings(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Give the user of this test settings of their own."""
    path = folder / "notify.toml"
    path.write_text(text)
    monkeypatch.setenv("FAIRBED_NOTIFY", str(path))


def told(path: Path, is_it: Callable[[dict[str, object]], bool]) -> bool:
    """Return whether a recorder has got such a message."""
    return path.exists() and is_it(json.loads(path.read_text())[0])


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.full
def test_a_live_run_tells_its_end_and_keeps_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:9/{SECRET}")  # no program listens there
    user_settings(
        tmp_path,
        monkeypatch,
        f'command = {json.dumps(recorder(out))}\nwebhook = "env:HOOK"\ntimeout_s = 20\n',
    )
    with running(tmp_path, rounds=2) as run:
        code, _, err = run.finish()
    assert code == 0, err
    assert told(out, lambda facts: facts["status"] == "done" and facts["rounds"] == 2)
    with RunReader(run.folder) as reader:
        warnings = [row.text for _, row in reader.events() if row.kind == "not notified"]
    assert len(warnings) == 1
    assert warnings[0].startswith("webhook of 127.0.0.1: ")
    for path in run.folder.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()
    assert SECRET not in err


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.full
def test_a_live_run_that_is_killed_is_told_as_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    user_settings(tmp_path, monkeypatch, f"command = {json.dumps(recorder(out))}\n")
    with running(tmp_path, rounds=1000) as run:
        run.wait_round(1)
        os.kill(run.process.pid, signal.SIGKILL)
        wait_until(lambda: told(out, lambda facts: facts["status"] == "interrupted"), "the message")
