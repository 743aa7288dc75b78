"""placeholder"""


def monitor() -> None: ...
