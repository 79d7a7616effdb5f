"""The one error that a user is meant to read."""


class UserError(ValueError):
    """Something the user can put right; the command line prints it as one sentence and exits with code 2."""
