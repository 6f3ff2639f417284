"""Why a connection failed, in words, and whether trying again may help."""

NOT_MQTT = "does an MQTT 3.1.1 broker listen there?"

CONNACK_REASONS = {
    1: "it does not speak MQTT 3.1.1",
    2: "it does not take this client id",
    3: "it is not available",
    4: "wrong user or password",
    5: "not authorised",
}
"""What the codes of a CONNACK say (MQTT 3.1.1, section 3.2.2.3)."""

_ADVICE = {
    1: NOT_MQTT,
    2: "choose another client id",
    4: "check user and password",
    5: "check what this user may do",
}
"""What to do about those that are for good; code 3 passes."""

_PAHO_CODES = {
    130: NOT_MQTT,  # what came was no MQTT, or a CONNACK of 1
    133: _ADVICE[2],
    134: _ADVICE[4],
    135: _ADVICE[5],
    138: "ask who runs the broker",  # banned
}
"""The same as paho translates them; server unavailable (136) passes."""


def advice_on_connack(code: int) -> str | None:
    """Return what to do about a refusal for good; None when it may pass."""
    return _ADVICE.get(code)


def advice_on(error: BaseException) -> str | None:
    """Return what to do about a connection that will never succeed; None when it may."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "check ?cafile="
    code = getattr(error, "rc", None)
    return _PAHO_CODES.get(getattr(code, "value", code)) if code is not None else None


def reason_of(error: BaseException) -> str:
    """Return why aiomqtt lost a link, or did not make it."""
    if isinstance(error, TimeoutError):
        return "no answer"
    source = error.__cause__ if hasattr(error.__cause__, "rc") else error
    code = getattr(source, "rc", None)
    text = str(source) if code is None else str(code)
    return "connection lost" if text == "Unspecified error" else text
