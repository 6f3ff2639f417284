"""Errors of profiles.

ProfileError
├── UnknownProfile   no profile, link, population or cell has this name
└── TraceError       a trace cannot be found or read, or violates a rule
"""


class ProfileError(Exception):
    """A profile violates a rule; the message is one line: file, rule, value, what to do."""


class UnknownProfile(ProfileError):
    """No profile has this name; the message lists similar or existing names."""


class TraceError(ProfileError):
    """A trace violates a rule; the message is one line: file, row if any, rule, value, advice."""
