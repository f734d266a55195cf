"""The two kinds of failure that are not bugs."""


class UserError(Exception):
    """Bad input: the message is one line that says what to do. The command line prints it and exits with 2."""


class HarnessError(Exception):
    """The harness or the machine failed, not the candidate; retried elsewhere, never counted against a model."""
