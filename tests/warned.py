"""The warnings that a program sees of the package."""


def files_of(caught):
    """The files that warnings name. Python 3.12 and later also warn of forks, as tests use."""
    return [warning.filename for warning in caught if warning.category is not DeprecationWarning]
