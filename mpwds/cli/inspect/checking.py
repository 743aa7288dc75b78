"""Finds damage in shards and in the fields of their samples, and copies shards without it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from mpwds.cli.inspect.shards import Problem, Sample, Shard
from mpwds.errors import ShardError
from mpwds.pipeline.decoding.audio import AudioDecoder
from mpwds.pipeline.decoding.decoders import Decoder
from mpwds.pipeline.decoding.media import check_complete
from mpwds.pipeline.decoding.video import VideoDecoder
from mpwds.storage.streams.urls import local_path, without_credentials
from mpwds.storage.tar.compression import LOOK_BYTES, compression_of
from mpwds.storage.tar.input import Decompressed, StreamInput
from mpwds.storage.writing.tar_writer import TarWriter

_USUAL_SHARE = 0.95
_MOST_KEPT = 1000  # problems of a shard, and samples of one set of fields
_MOST_SETS = 100  # sets of fields in a shard
_JPEG_START = b"\xff\xd8\xff"
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND"
_PICKLES = frozenset(["pyd", "pickle", "pkl", "pth", "pt"])  # decoding them would run their code
_PIECE_BYTES = 1 << 20
_KEPT_AS = ".damaged"
_OFFSET = attrgetter("offset")

FieldSet = tuple[str, ...]


class Checker:
    """Function that checks the samples of one shard, in order."""

    def __init__(self, decode: bool) -> None:
        self._decode = make_decoder() if decode else None
        self.offsets: dict[str, int] = {}  # of the first sample of each key

    def __call__(self, sample: Sample) -> Iterator[Problem]:
        """Yields what is wrong with a sample: its key, and the fields that have data."""
        before = self.offsets.setdefault(sample.key, sample.offset)
        if before != sample.offset:
            yield _problem(sample, f"the sample at offset {before} has the same key")
        for name, member in sample.members.items():
            if member.data is None:
                continue
            try:
                check_checksums(member.data)
                if self._decode is not None:
                    self._decode(name, member.data)
            except ImportError:  # concerns every sample
                raise
            except Exception as error:  # decoders raise many kinds
                reason = str(error) or type(error).__name__
                yield Problem(sample.shard, member.offset, sample.key, name, reason)


@dataclass
class Report:
    """The damage that was found in a shard. Can be pickled."""

    shard: str
    samples: int = 0
    problems: list[Problem] = field(default_factory=list)  # the first ones
    problem_count: int = 0  # all
    sets: Counter[FieldSet] = field(default_factory=Counter)  # of fields, in samples that are not damaged
    places: dict[FieldSet, list[Sample]] = field(default_factory=dict)  # the first ones, without their data
    keys: np.ndarray[tuple[int], np.dtype[np.uint64]] = field(default_factory=lambda: np.empty(0, np.uint64))
    is_readable: bool = True  # there are samples in it, or nothing is wrong

    def add(self, problem: Problem) -> None:
        self.problem_count += 1
        if len(self.problems) < _MOST_KEPT:
            self.problems.append(problem)

    def count(self, sample: Sample, is_sound: bool) -> None:
        """Counts a sample, and its fields unless it is known to be damaged."""
        self.samples += 1
        if not is_sound:
            return
        fields = tuple(sorted(sample.members))
        if fields not in self.sets and len(self.sets) >= _MOST_SETS:
            return
        self.sets[fields] += 1
        places = self.places.setdefault(fields, [])
        if len(places) < _MOST_KEPT:
            places.append(Sample(sample.shard, sample.number, sample.key, sample.offset))


def verify_shard(shard: Shard, decode: bool) -> Iterator[Report]:
    """Reads a shard from end to end, and yields what is wrong with it."""
    report, check = Report(shard.name), Checker(decode)
    try:
        with closing(shard.read(lambda *_: True)) as read:
            for found in read:
                if isinstance(found, Problem):
                    report.add(found)
                elif isinstance(found, Sample):
                    problems = list(check(found))
                    for problem in problems:
                        report.add(problem)
                    report.count(found, not (problems or found.interrupted))
        for what in shard.contradictions(report.samples):
            report.add(Problem(shard.name, 0, "", "", what))
    except (OSError, ShardError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        report.add(Problem(shard.name, 0, "", "", f"it cannot be read: {reason}"))
    report.is_readable = report.samples > 0 or not report.problem_count
    report.keys = np.array(sorted(map(_hash, check.offsets)), np.uint64)
    yield report


def usual_fields(reports: Sequence[Report]) -> frozenset[str]:
    """The fields that nearly all samples (95 %) have, so that every sample should."""
    counts: Counter[str] = Counter()
    for found in reports:
        for fields, count in found.sets.items():
            counts.update(dict.fromkeys(fields, count))
    total = sum(found.sets.total() for found in reports)
    return frozenset(name for name, count in counts.items() if count >= _USUAL_SHARE * total)


def add_incomplete(reports: Sequence[Report]) -> None:
    """Adds a problem to the reports for each sample that lacks a field which nearly all others have."""
    usual = usual_fields(reports)
    for found in reports:
        for fields, places in found.places.items():
            if lacking := usual.difference(fields):
                what = f"it lacks {', '.join(sorted(lacking))}, which nearly all other samples have"
                for sample in places:
                    found.add(_problem(sample, what))
                found.problem_count += found.sets[fields] - len(places)
        found.problems.sort(key=lambda problem: problem.offset)


def keys_in_several(reports: Sequence[Report]) -> int:
    """Counts the keys that occur in more than one shard."""
    keys = [np.empty(0, np.uint64), *(found.keys for found in reports)]
    _, counts = np.unique(np.concatenate(keys), return_counts=True)
    return int((counts > 1).sum())


def _problem(sample: Sample, what: str) -> Problem:
    return Problem(sample.shard, sample.offset, sample.key, "", what)


def _hash(key: str) -> int:
    data = key.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


@dataclass
class Copy:
    """A shard to copy, and what became of it."""

    shard: Shard
    target: str  # empty to replace the shard, which is kept under another name beside it
    damaged: bool  # verifying it found something wrong
    kept: int = 0
    left_out: int = 0
    left_out_keys: list[str] = field(default_factory=list)  # the first ones

    @property
    def name(self) -> str:
        return without_credentials(self.target or self.shard.name)

    def as_dict(self) -> dict[str, Any]:
        names = {"shard": without_credentials(self.shard.name), "copy": self.name, "samples": self.kept}
        return {**names, "left_out": self.left_out, "left_out_keys": self.left_out_keys}


@dataclass(frozen=True)
class Repair:
    """Function that copies a shard, member by member as they are, and leaves damaged samples out."""

    decode: bool  # samples whose fields cannot be decoded are damaged, too
    required: frozenset[str]  # fields of all samples
    force: bool  # to replace a file that has the name of a copy by the time that it is complete

    def __call__(self, copy: Copy) -> Iterator[Copy]:
        if copy.target:
            self._write(copy, copy.target, self.force)
        else:
            self._replace(copy)
        yield copy

    def _replace(self, copy: Copy) -> None:
        path = os.path.realpath(local_path(copy.shard.name))  # a hard link of a symbolic link keeps no data
        kept = path + _KEPT_AS
        try:
            os.link(path, kept)
        except FileExistsError:
            if not os.path.samefile(path, kept):  # else a repair was killed before it replaced anything
                message = "it exists already, with what an earlier repair replaced: move it elsewhere"
                raise FileExistsError(errno.EEXIST, message, kept) from None
        try:
            self._write(copy, path, replace=True)
        except BaseException:
            if os.path.samefile(path, kept):
                os.unlink(kept)
            raise

    def _write(self, copy: Copy, target: str, replace: bool) -> None:
        check = Checker(self.decode)
        with TarWriter(target, replace=replace) as sink, closing(copy.shard.read(lambda *_: True)) as read:
            for found in read:
                if isinstance(found, Problem):
                    continue
                if not isinstance(found, Sample):
                    members = [found]
                elif copy.damaged and (self._is_incomplete(found) or any(check(found))):
                    if check.offsets.get(found.key) == found.offset:  # another one of this key may be sound
                        del check.offsets[found.key]
                    copy.left_out += 1
                    copy.left_out_keys += [found.key] if len(copy.left_out_keys) < _MOST_KEPT else []
                    members = found.others
                else:
                    copy.kept += 1
                    members = sorted([*found.members.values(), *found.others], key=_OFFSET)
                readable = (member for member in members if member.data is not None or not member.size)
                sink.write_blocks(b"".join(member.blocks for member in readable))

    def _is_incomplete(self, sample: Sample) -> bool:
        return sample.interrupted or not self.required.issubset(sample.members)


def check_checksums(data: bytes) -> None:
    """Compares the checksums and lengths in a field with its bytes; its content tells the format.

    A field of another format passes. Damage is a ``ValueError``.

    Example:
        >>> check_checksums(b"BZh9" + bytes(20))
        >>> import gzip
        >>> check_checksums(gzip.compress(b"text")[:-3])
        Traceback (most recent call last):
        mpwds.errors.ShardError: it cannot be decompressed (gzip), ...: it ends in the middle, ...
    """
    if data.startswith(_PNG_START):
        _check_png(data)
    elif data.startswith(b"PK\x03\x04"):
        _check_zip(data)
    elif compression := compression_of(data[:LOOK_BYTES]):
        stream = Decompressed(StreamInput(io.BytesIO(data), "it", 0), compression)
        while stream.read(_PIECE_BYTES):
            pass
    else:
        check_complete(data)


def _check_png(data: bytes) -> None:
    """Raises unless all chunks are there with their checksums. The PNG specification, 5.3, has the layout."""
    start, kind = len(_PNG_START), b""
    while kind != _PNG_END:
        end = start + 12 + int.from_bytes(data[start : start + 4], "big")
        kind = data[start + 4 : start + 8]
        if start + 12 > len(data) or end > len(data):
            raise ValueError(f"the PNG image is cut off in its chunk at byte {start}")
        if zlib.crc32(data[start + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            raise ValueError(f"the PNG image is damaged: its chunk at byte {start} has the wrong checksum")
        start = end


def _check_zip(data: bytes) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"the zip archive is damaged: {error}") from None
    if damaged is not None:
        raise ValueError(f"the zip archive is damaged: {damaged} in it has the wrong checksum")


def _check_jpeg(data: bytes) -> None:
    with contextlib.suppress(ImportError):
        import simplejpeg

        if simplejpeg.decode_jpeg_header(data)[2] in ("Gray", "YCbCr", "RGB"):
            simplejpeg.decode_jpeg(data, "GRAY", strict=True)


def make_decoder() -> Callable[[str, bytes], None]:
    """A function of a field's name and data that raises if the field cannot be decoded.

    Pickles are not decoded. With mpwds[turbojpeg], a JPEG image is an error if its decoder so much as warns.
    """
    decode = Decoder(VideoDecoder("numpy"), AudioDecoder("numpy"), "rgb8")

    def check(name: str, data: bytes) -> None:
        if name.rpartition(".")[2] not in _PICKLES:
            decode({name: data})
        if data.startswith(_JPEG_START):
            _check_jpeg(data)

    return check
