"""Errors of profiles.

ProfileError
├── UnknownProfile   no profile, link or population has this name
└── TraceError       a trace cannot be found or read, or breaks a rule
"""


class ProfileError(Exception):
    """A profile breaks a rule; the message is one line: file, rule, value, what to do."""


class UnknownProfile(ProfileError):
    """Nothing has this name; the message says which names are near, and which exist."""


class TraceError(ProfileError):
    """A trace breaks a rule; the message is one line: file, row if any, rule, value, advice."""
