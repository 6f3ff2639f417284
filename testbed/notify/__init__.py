"""Messages about a run to a person, by a command of this machine or a webhook."""
