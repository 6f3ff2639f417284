"""Errors of profiles.

ProfileError
└── UnknownProfile   no profile or link has this name
"""


class ProfileError(Exception):
    """A profile breaks a rule; the message is one line: file, rule, value, what to do."""


class UnknownProfile(ProfileError):
    """No profile or link has this name; the message lists those that exist."""
