"""``mpwds extract``: writes fields to files below a folder and nowhere else, whatever their names."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Annotated

from typer import BadParameter, Option

from mpwds.cli.console import progress, report
from mpwds.cli.options import Chosen, Force, Json, Limit, Shards
from mpwds.cli.outputs import path_of
from mpwds.closing import Closes
from mpwds.errors import MpwdsError
from mpwds.storage.writing.destinations import PendingFile, write_whole
from mpwds.viewing.wording import counted


def extract(
    shards: Shards,
    chosen: Chosen,
    output: Annotated[str, Option("--output", "-o", metavar="FOLDER", help="Where the files go.")],
    limit: Limit = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Write fields of shards to files in a folder, under the names that they have in the shard.

    No file is written outside of the folder, and none is replaced without --force. Samples that damage may
    have made incomplete are left out, and named on standard error; the exit status is 1 then.
    """
    from mpwds.cli.inspect.selection import SampleSelection
    from mpwds.cli.inspect.shards import Problem

    path = path_of(output)
    if path is None:
        raise BadParameter(f"{output} is no local folder, and files are written to one")
    samples = SampleSelection(shards, chosen, limit)
    count = files = 0
    with Folder(path, force) as folder, progress(None) as advance:
        for sample in samples:
            for name, member in sample.members.items():
                try:
                    folder.write(member.name, member.data or b"")
                    files += 1
                except UnsafeName as error:
                    samples.report(Problem(sample.shard, member.offset, sample.key, name, str(error)))
            count += 1
            advance(1, "extracting samples")
    values = {"samples": count, "files": files, "output": output, "problems": samples.problems}
    report(as_json, values, f"wrote {counted(files, 'file')} of {counted(count, 'sample')} to {output}")
    return int(samples.problems > 0)


class UnsafeName(MpwdsError, ValueError):
    """A file's name leads out of the folder."""


class Folder(Closes):
    """A folder to write files to; made when the first one is written. ``force`` replaces files that exist.

    No name leads out of it: not by ``..``, not by starting at the root, and not through symbolic links, even
    those that others make at the same time.
    """

    def __init__(self, path: str, force: bool = False) -> None:
        self._path = path
        self._force = force
        self._open: tuple[list[str], int] | None = None  # the directory written to last

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, which appears under its name when it is complete."""
        *directories, last = [part for part in name.split("/") if part != "."] or [""]
        if {"", ".."} & {*directories, last} or "\0" in name:
            raise UnsafeName(f"the name {name!r} leads out of the folder: not written")
        shown = "/".join((self._path, *directories, last))
        try:
            descriptor = self._directory(directories)
            if not self._force and os.access(last, os.F_OK, dir_fd=descriptor, follow_symlinks=False):
                what = "it exists, or two samples have it: extract elsewhere, or replace it with --force"
                raise FileExistsError(errno.EEXIST, what, shown)
            write_whole(PendingFile(shown, sync=False, replace=self._force, directory=descriptor), data)
        except OSError as error:
            if error.errno:  # the system names a descriptor's directory, or a part of the path
                raise OSError(error.errno, error.strerror, shown) from error
            raise

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _directory(self, parts: list[str]) -> int:
        """A descriptor of a directory below the folder, made if need be."""
        if self._open is not None and self._open[0] == parts:
            return self._open[1]
        self.close()
        os.makedirs(self._path, exist_ok=True)
        descriptor = os.open(self._path, os.O_DIRECTORY | os.O_CLOEXEC)
        for part in parts:
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
                flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                following = os.open(part, flags, dir_fd=descriptor)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise UnsafeName(f"{part!r} is a link or a file, not a folder: not written") from None
                raise
            finally:
                os.close(descriptor)
            descriptor = following
        self._open = parts, descriptor
        return descriptor
