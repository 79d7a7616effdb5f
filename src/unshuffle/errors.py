"""The errors that a user is meant to read."""


class UserError(ValueError):
    """A problem that the user can solve; the command line prints it as one sentence and exits with code 2."""


class UnknownTaskError(UserError):
    """A config names a task of another package, whose module was not imported."""


class ReportedElsewhere(UserError):
    """This process ends because another one failed and has reported why."""
