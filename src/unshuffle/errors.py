"""The errors that a user is meant to read, once."""


class UserError(ValueError):
    """Something the user can put right; the command line prints it as one sentence and exits with code 2."""


class SaidByAnother(UserError):
    """This process ends because another one failed, and that one says why."""
