"""The members of archives, with names for their parts."""

from typing import NamedTuple

from mpwds.storage.tar.entries import read_members as read


class Member(NamedTuple):
    name: str
    offset: int
    data: bytes


def read_members(url, offset=0, *, select=None, **options):
    if select is not None:
        options["choose"] = lambda name: name if select(name) else None
    for member in read(url, offset, **options):
        yield Member(*member)
