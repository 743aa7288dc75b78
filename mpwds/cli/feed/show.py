"""placeholder"""


def show() -> None: ...
