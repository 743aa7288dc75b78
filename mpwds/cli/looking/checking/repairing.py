"""Writes copies of shards without what is damaged in them."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from mpwds.cli.looking.checking.verifying import Checker
from mpwds.cli.looking.samples.reading import Problem, Sample, all_data
from mpwds.cli.looking.samples.sources import Shard
from mpwds.storage.streams.urls import local_path, without_credentials
from mpwds.storage.writing.tar_writer import TarWriter

_MOST_KEPT = 1000
_KEPT_AS = ".damaged"


@dataclass
class Copy:
    """A shard to copy, and what became of it.

    Attributes:
        shard: The shard.
        target: Where the copy goes; empty to replace the shard, which is kept under another name beside it.
        damaged: Whether verifying it found anything wrong.
        kept: How many samples the copy has.
        left_out: How many it does not have.
        left_out_keys: The keys of the first of those.
    """

    shard: Shard
    target: str
    damaged: bool
    kept: int = 0
    left_out: int = 0
    left_out_keys: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The copy's name, to show."""
        return without_credentials(self.target or self.shard.name)

    def as_dict(self) -> dict[str, Any]:
        """What JSON says about the copy."""
        return {
            "shard": without_credentials(self.shard.name),
            "copy": self.name,
            "samples": self.kept,
            "left_out": self.left_out,
            "left_out_keys": self.left_out_keys,
        }


@dataclass(frozen=True)
class Repair:
    """Function that copies a shard, member by member as they are, and leaves damaged samples out.

    Args:
        decode: Leave out samples whose fields cannot be decoded.
        required: Fields that a sample must have.
        force: Replace a file that has the name of a copy by the time that it is complete.
    """

    decode: bool
    required: frozenset[str]
    force: bool

    def __call__(self, copy: Copy) -> Copy:
        if copy.target:
            self._write(copy, copy.target, self.force)
            return copy
        path = os.path.realpath(local_path(copy.shard.name))  # a hard link of a symbolic link keeps no data
        kept = path + _KEPT_AS
        try:
            os.link(path, kept)
        except FileExistsError:
            message = "it exists already, with what an earlier repair replaced: move it elsewhere"
            raise FileExistsError(errno.EEXIST, message, kept) from None
        try:
            self._write(copy, path, replace=True)
        except BaseException:
            os.unlink(kept)
            raise
        return copy

    def _write(self, copy: Copy, target: str, replace: bool) -> None:
        check = Checker(self.decode)
        with TarWriter(target, replace=replace) as sink, closing(copy.shard.read(all_data)) as read:
            for found in read:
                if isinstance(found, Problem):
                    continue
                if not isinstance(found, Sample):
                    if found.data is not None or not found.size:
                        sink.write_blocks(found.blocks)
                elif copy.damaged and (self._is_incomplete(found) or any(check(found))):
                    copy.left_out += 1
                    copy.left_out_keys += [found.key] if len(copy.left_out_keys) < _MOST_KEPT else []
                else:
                    copy.kept += 1
                    sink.write_blocks(b"".join(member.blocks for member in found.members))

    def _is_incomplete(self, sample: Sample) -> bool:
        return sample.interrupted or not self.required <= {member.field for member in sample.members}
