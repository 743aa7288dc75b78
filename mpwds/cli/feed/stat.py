"""placeholder"""


def stat() -> None: ...
