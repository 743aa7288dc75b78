"""Archives and their members, for the tests of what reads and writes them."""

import io
import tarfile
from typing import NamedTuple

from mpwds.storage.tar.entries import read_members as read

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
OTHERS = {
    "directory": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "link": tarfile.LNKTYPE,
    "fifo": tarfile.FIFOTYPE,
    "device": tarfile.CHRTYPE,
}


class Raw(io.RawIOBase):
    """Bytes that come in short pieces, as those of a socket may."""

    def __init__(self, data, steps, offset=0):
        self._rest = io.BytesIO(data)
        self._rest.seek(offset)
        self._steps = steps
        self._reads = 0

    def readable(self):
        return True

    def readinto(self, buffer):
        self._reads += 1
        return self._rest.readinto(memoryview(buffer)[: self._steps[self._reads % len(self._steps)]])


class Plain:
    """The least that a stream may have."""

    def __init__(self, data, steps, offset=0):
        self._raw = Raw(data, steps, offset)

    def read(self, size):
        return self._raw.read(size)

    def close(self):
        self._raw.close()


class Member(NamedTuple):
    name: str
    offset: int
    data: bytes


def read_members(url, offset=0, *, select=None, **options):
    if select is not None:
        options["choose"] = lambda name: name if select(name) else None
    for member in read(url, offset, **options):
        yield Member(*member)


def contents_of(path):
    return [(name, data) for name, _, data in read(str(path))]


def archive_of(members, archive_format=tarfile.PAX_FORMAT, linkname="target/" * 30, **options):
    """An archive of members (name, content), where content is a file's bytes or a key of ``OTHERS``."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=archive_format, **options) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = OTHERS[content], linkname
                archive.addfile(info)
    return stream.getvalue()


def write_all(writer, samples):
    with writer as sink:
        for sample in samples:
            sink.write(sample)


def with_checksum(header):
    header = bytearray(header)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)
