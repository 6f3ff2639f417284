"""Why a connection failed, in words, and whether trying again may help."""

FINAL_CODES = {
    130: "does an MQTT 3.1.1 broker listen there?",  # what came was no MQTT, or a CONNACK of 1
    133: "choose another client id",
    134: "check user and password",
    135: "check what this user may do",  # not authorised
    138: "ask who runs the broker",  # banned
}
"""Refusals for good, as paho translates the codes 2, 4 and 5 of a CONNACK (MQTT 3.1.1), and what
to do about each. Code 3, server unavailable (136), passes."""


def advice_on(error: BaseException) -> str | None:
    """Return what to do about a connection that will never succeed; None when it may."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "check ?cafile="
    code = getattr(error, "rc", None)
    return FINAL_CODES.get(getattr(code, "value", code)) if code is not None else None


def reason_of(error: BaseException) -> str:
    """Return why a link was lost, or not made."""
    if isinstance(error, TimeoutError):
        return "no answer to subscribe"
    source = error.__cause__ if hasattr(error.__cause__, "rc") else error
    code = getattr(source, "rc", None)
    text = str(source) if code is None else str(code)
    return "connection lost" if text == "Unspecified error" else text
