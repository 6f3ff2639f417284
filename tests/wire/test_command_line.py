"""Commands of operators as text."""

import pytest

from fairbed.wire.command_line import (
    LOSSES,
    MEANINGS,
    CommandTextError,
    parse_command,
    split_line,
    usage,
)
from fairbed.wire.messages import FIELDS_OF_ACTION

ID = bytes(range(16))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("set beta 0.2", "set beta 0.2"),
        ("set selection.beta 0.2", "set beta 0.2"),
        ("set V 0", "set V 0"),
        ("kick pi-7", "kick pi-7"),
        ("note the fan is off", "note the fan is off"),
        ("throttle pi-7 cpu 0.5", "throttle pi-7 cpu 0.5"),
        ("link pi-7 lte-urban", "link pi-7 lte-urban"),
        ("fault pi-7 unplugged 20", "fault pi-7 unplugged 20"),
        ("stop-after-round", "stop-after-round"),
    ],
)
def test_reads_a_command(words: str, line: str) -> None:
    command = parse_command(words.split(), ID)
    assert (command.line, command.id) == (line, ID)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('note "the fan is off"', ["note", "the fan is off"]),
        ("  note  'the  fan'  ", ["note", "the  fan"]),
        ("note the fan's off", ["note", "the fan's off"]),
        ('note "a" and "b"', ["note", '"a" and "b"']),
        ('note "the fan', ["note", '"the fan']),
        ('note "', ["note", '"']),
        ('note ""', ["note"]),
        ("note ", ["note"]),
        ("", []),
        (' set  "beta" 0.2', ["set", '"beta"', "0.2"]),
    ],
)
def test_a_line_has_the_words_of_a_shell(line: str, words: list[str]) -> None:
    assert split_line(line) == words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "command: must be one of pause, resume, stop,"),
        ("frob", "command: must be one of pause, resume, stop,"),
        ("set V", "command: must be 'set NAME NUMBER', got 'set V'"),
        ("set V fast", "command: must have a number, got 'fast'"),
        ("set V nan", "command: must have a number, got 'nan'"),
        ("set V 1e300", "command: Expected `float` <= 1000000000000000.0 - at `$.value`"),
        ("kick", "command: must be 'kick DEVICE', got 'kick'"),
        ("kick Pi_7", "command: a device must be 1 to 32 of a-z, 0-9 and hyphen, got 'Pi_7'"),
        ("note", "command: must be 'note TEXT', got 'note'"),
        (f"note {'x' * 501}", "command: a note must have at most 500 characters"),
        ("pause pi-7", "command: must be 'pause', got 'pause pi-7'"),
    ],
)
def test_refuses_what_is_no_command(words: str, message: str) -> None:
    with pytest.raises(CommandTextError) as caught:
        parse_command(words.split(), ID)
    assert str(caught.value).startswith(message)


def test_every_action_has_a_meaning() -> None:
    assert set(MEANINGS) == set(FIELDS_OF_ACTION)
    assert set(LOSSES) < set(FIELDS_OF_ACTION)
    assert usage("throttle") == "throttle DEVICE NAME NUMBER"
