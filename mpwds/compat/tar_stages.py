"""webdataset's stages for pipelines of small parts: they open shards, keep them on disk, read, and group.

``tarfile_to_samples`` reads the same samples in one stage, faster, and with addresses. Functions here are
webdataset's of the same names.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, BinaryIO, TypeGuard

from mpwds.pipeline.coercion import url_of
from mpwds.pipeline.error_context import add_incident, add_note
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.sources.shard_stream import file_of
from mpwds.pipeline.stream import Description
from mpwds.storage.caches.directory import files_in, remove
from mpwds.storage.caches.shard_cache import ShardCache
from mpwds.storage.streams.gopen import gopen, open_at
from mpwds.storage.streams.urls import url_to_cache_name
from mpwds.storage.tar.entries import is_whole_shard, read_members
from mpwds.storage.tar.names import split_name
from mpwds.suggestions import shown

Name = Callable[[str], Any]
Keys = Callable[[str], "tuple[str | None, str | None]"]

_REMOTE = re.compile(r"(https?|hdfs|gs|ais|s3):")
_META = r"__[^/]*__($|/)"


def url_opener(
    data: Iterable[dict[str, Any]], handler: Handler = reraise_exception, **kw: Any
) -> Iterator[dict[str, Any]]:
    """Opens shards: adds ``stream`` to each ``{"url": ...}``.

    Args:
        data: Shards; other elements are a ``TypeError``.
        handler: What to do about a shard that cannot be opened: to continue leaves it out.
        kw: Options for ``gopen``.

    Example:
        >>> for shard in url_opener([{"url": "pipe:echo hello"}]):
        ...     with shard["stream"] as stream:
        ...         stream.read()
        b'hello\\n'
    """
    return opened(data, handler, lambda url: {"stream": gopen(url, **kw)}, "url_opener()")


def opened(
    data: Iterable[dict[str, Any]], handler: Handler, open: Callable[[str], dict[str, Any]], stage: str
) -> Iterator[dict[str, Any]]:
    """Shards with what ``open`` makes of their URLs: ``{"stream": ...}``, and perhaps more."""
    for shard in data:
        url = url_of(shard)
        try:
            with_stream = {**shard, **open(url)}
        except Exception as error:
            if not handled(error, handler, stage, f"shard {url}", url):
                return
        else:
            yield with_stream


def tar_file_iterator(
    fileobj: BinaryIO,
    skip_meta: str | None = _META,
    handler: Handler = reraise_exception,
    select_files: Name | None = None,
    rename_files: Name | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields the members of a tar file as ``{"fname": name, "data": bytes}``.

    Args:
        fileobj: An object with a method ``read``; compressed archives are recognised. It stays open.
        skip_meta: A regular expression of names to leave out.
        handler: What to do when ``select_files`` or ``rename_files`` fails: to continue leaves the member
            out.
        select_files: A function of a member's name: whether to read it.
        rename_files: A function from a member's name to the name to use instead; it is called before
            ``select_files``.

    Raises:
        ShardError: The archive is damaged.

    Example:
        >>> import io
        >>> from mpwds.storage.writing.tar_writer import TarWriter
        >>> with TarWriter(buffer := io.BytesIO()) as shard:
        ...     shard.write({"__key__": "0", "txt": "hello"}) and None
        >>> list(tar_file_iterator(io.BytesIO(buffer.getvalue())))
        [{'fname': '0.txt', 'data': b'hello'}]
    """
    name = str(getattr(fileobj, "name", "") or "a tar file")
    borrowed = SimpleNamespace(read=fileobj.read, close=lambda: None)  # its owner closes it
    for member, _, data in _members(borrowed, name, skip_meta, handler, select_files, rename_files):
        yield {"fname": member, "data": data}


def tar_file_expander(
    data: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    select_files: Name | None = None,
    rename_files: Name | None = None,
    eof_value: Any = {},  # noqa: B006  # webdataset's default, and never changed
) -> Iterator[dict[str, Any]]:
    """Yields the members of opened shards as ``{"fname": ..., "data": ..., "__url__": ...}``.

    It closes each shard that it has read.

    Args:
        data: The elements of ``url_opener``: ``{"url": ..., "stream": ...}``, perhaps with ``local_path``.
        handler: What to do about a damaged shard: to continue skips the rest of it.
        select_files: As for ``tar_file_iterator``, like ``rename_files``.
        eof_value: Yielded after each shard, so that samples of two shards are kept apart; nothing if
            ``None``.

    Raises:
        TypeError: An element of ``data`` has no stream.
    """
    for shard in data:
        url = url_of(shard)
        if "stream" not in shard:
            raise TypeError(f"tar_file_expander: {shown(shard)} has no stream: put url_opener before it")
        more = {"__local_path__": shard["local_path"]} if shard.get("local_path") is not None else {}
        try:
            for name, _, body in _members(shard["stream"], url, _META, handler, select_files, rename_files):
                yield {"fname": name, "data": body, "__url__": url, **more}
        except Exception as error:
            if not handled(error, handler, "tar_file_expander()", f"shard {url}", url):
                return
        if eof_value is not None:
            yield eof_value


def group_by_keys(
    data: Any = None,
    keys: Keys | None = None,
    lcase: bool = True,
    suffixes: Collection[str] | None = None,
    handler: Handler = reraise_exception,
) -> Any:
    """Groups successive members into samples.

    Without ``data``, or with ``keys`` as the first argument, returns a function of ``data``, as in webdataset
    0.1.

    Args:
        data: The members that ``tar_file_expander`` yields, or pairs of a name and bytes; an empty dict ends
            a sample.
        keys: Takes a name, returns the sample's key and the extension, or two ``None``;
            :func:`base_plus_ext` by default.
        lcase: Whether to convert extensions to lower case.
        suffixes: The extensions to keep; all by default.
        handler: What to do about a member that cannot be grouped: to continue leaves it out.

    Raises:
        ValueError: A sample has a member twice.

    Example:
        >>> names = ["0.png", "0.cls", "1.png", "1.cls"]
        >>> members = [{"fname": name, "data": b"", "__url__": "x.tar"} for name in names]
        >>> [sorted(sample) for sample in group_by_keys(members)]
        [['__key__', '__url__', 'cls', 'png'], ['__key__', '__url__', 'cls', 'png']]
    """
    if data is None or (callable(data) and not isinstance(data, Iterable)):
        return partial(group_by_keys, keys=keys or data, lcase=lcase, suffixes=suffixes, handler=handler)
    return _grouped(data, base_plus_ext if keys is None else keys, lcase, suffixes, handler)


def _grouped(
    data: Iterable[Any], keys: Keys, lcase: bool, suffixes: Collection[str] | None, handler: Handler
) -> Iterator[dict[str, Any]]:
    current: dict[str, Any] | None = None
    for member in data:
        if member == {}:
            if valid_sample(current):
                yield current
            current = None
            continue
        if isinstance(member, tuple):
            member = dict(zip(("fname", "data"), member, strict=True))
        url = member.get("__url__")
        finished = None
        try:
            name = member["fname"]
            key, suffix = keys(name)
            if key is None or suffix is None:
                continue
            suffix = suffix.lower() if lcase else suffix
            if current is None or key != current["__key__"]:
                finished, current = current, {"__key__": key, "__url__": url}
            if suffix in current:
                raise ValueError(
                    f"{name}: duplicate file name in tar file: sample {key!r} has a member {suffix!r} already"
                )
            if suffixes is None or suffix in suffixes:
                current[suffix] = member["data"]
            if member.get("__local_path__") is not None:
                current["__local_path__"] = member["__local_path__"]
        except Exception as error:
            if not handled(error, handler, "group_by_keys()", f"a member of {url}", url):
                break
        if valid_sample(finished):
            yield finished
    if valid_sample(current):
        yield current


def base_plus_ext(path: str) -> tuple[str, str] | tuple[None, None]:
    """A member's sample key and its extension; two ``None`` for a name without an extension.

    Example:
        >>> base_plus_ext("train/0017.seg.PNG"), base_plus_ext("README")
        (('train/0017', 'seg.PNG'), (None, None))
    """
    key, _ = split_name(path, allow_meta=True)
    return (key, path[len(key) + 1 :]) if key else (None, None)


def valid_sample(sample: Any) -> TypeGuard[dict[str, Any]]:
    """True if an object is a sample: a dict that is not empty and not marked ``__bad__``.

    Example:
        >>> valid_sample({"__key__": "a"}), valid_sample({}), valid_sample(None)
        (True, False, False)
    """
    return isinstance(sample, dict) and len(sample) > 0 and not sample.get("__bad__", False)


class _Stop(Exception):
    """A handler ends the iteration."""


def _members(
    stream: Any,
    name: str,
    skip_meta: str | None,
    handler: Handler,
    select_files: Name | None,
    rename_files: Name | None,
) -> Iterator[tuple[str, int, bytes]]:
    meta = re.compile(skip_meta) if skip_meta is not None else None

    def rename(member: str) -> str | None:
        """The name to use; ``None`` for a member to leave out."""
        if meta is not None and meta.match(member):
            return None
        try:
            renamed: str = member if rename_files is None else rename_files(member)
            return renamed or None if select_files is None or select_files(renamed) else None
        except Exception as error:
            if handled(error, handler, "tar_file_iterator()", f"member {member} of {name}", name):
                return None
            raise _Stop from error

    try:
        yield from read_members(name, open=lambda url, offset: stream, choose=rename)
    except _Stop:
        return


def handled(error: Exception, handler: Handler, stage: str, place: str, url: str | None) -> bool:
    """Asks a handler about an error, with notes on the place; returns whether to continue."""
    add_note(error, f"in {stage}, on {place}")
    add_incident(error, stage, Description(place, url))
    return bool(handler(error))


def pipe_cleaner(spec: str) -> str:
    """The URL that a ``pipe:`` command probably reads: its first word that is a URL.

    Without such a word it is the command; any other URL is returned unchanged.

    Example:
        >>> pipe_cleaner("pipe:curl -s -L https://host/000.tar || true")
        'https://host/000.tar'
    """
    if not spec.startswith("pipe:"):
        return spec
    command = spec[len("pipe:") :]
    words = (word.strip("'\"") for word in command.split(" "))
    return next(filter(_REMOTE.match, words), command)


class StreamingOpen:
    """Stage that opens shards: ``{"url": ..., "stream": ...}``, and ``local_path`` where it is a file.

    ``mpwds.tar_file_expander`` and ``mpwds.group_by_keys`` make samples of them. ``tarfile_to_samples`` does
    the same in one stage, faster and with addresses.

    Args:
        verbose: Without effect.
        handler: What to do about a shard that cannot be opened; raises by default.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     [opened] = StreamingOpen()([file.name])
        ...     opened["stream"].close()
        >>> sorted(opened)
        ['local_path', 'stream', 'url']
    """

    def __init__(self, verbose: bool = False, handler: Handler = reraise_exception) -> None:
        check_handler("StreamingOpen", handler)
        self.verbose = verbose
        self.handler = handler

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        shards = ({"url": url_of(shard)} for shard in urls)
        return opened(shards, self.handler, self._open, f"{type(self).__name__}()")

    def _open(self, url: str) -> dict[str, Any]:
        stream = open_at(url)
        path = file_of(url)
        return {"stream": stream} if path is None else {"stream": stream, "local_path": path}


class FileCache(StreamingOpen):
    """Stage that opens shards from a cache on a local disk: a :class:`StreamingOpen` that keeps them.

    It waits until the file at ``local_path`` is complete; ``WebDataset(cache_dir=...)`` reads while it fills.
    Local files are opened where they are.

    Args:
        cache_dir: The directory, created when it is needed; by default the environment variable
            ``WDS_CACHE``, or ``./_cache``.
        url_to_name, verbose, validator: As for :class:`mpwds.ShardCache`.
        handler: As for ``StreamingOpen``.
        cache_size: Size limit in bytes; no limit below 1.
        cache_cleanup_interval: Without effect.

    Example:
        >>> FileCache("/tmp").cache_dir
        '/tmp'
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        url_to_name: Callable[[str], str] = url_to_cache_name,
        verbose: bool = False,
        validator: Callable[[str], Any] | None = is_whole_shard,
        handler: Handler = reraise_exception,
        cache_size: float = -1,
        cache_cleanup_interval: float = 30,
    ) -> None:
        super().__init__(verbose, handler)
        if cache_dir is None:
            cache_dir = os.environ.get("WDS_CACHE", "./_cache")
        self.cache_dir = os.fspath(cache_dir)
        size = cache_size if cache_size > 0 else -1
        self._cache = ShardCache(self.cache_dir, size, url_to_name, verbose, validator=validator)

    def _open(self, url: str) -> dict[str, Any]:
        if url == "-" or file_of(url) is not None:
            return super()._open(url)
        return {"stream": self._cache.open_whole(url), "local_path": self._cache.path(url)}


@dataclass(eq=False, repr=False)
class LRUCleanup:
    """Removes files of a directory, the least recently used first, until the rest is small enough.

    ``ShardCache(directory, size_bytes)`` keeps its size by itself; this is for directories that are filled in
    other ways. It removes *any* file, except one that a ``ShardCache`` is reading.

    Args:
        cache_dir: The directory; its subdirectories count as well.
        cache_size: Bytes that may remain.
        keyfn: Called with a path; files with the smallest result go first.
        verbose: Print on standard error which files are removed.
        interval: Seconds after a clean-up in which :meth:`cleanup` does nothing; ``None`` for 0.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     for name in ("old", "new"):
        ...         with open(os.path.join(directory, name), "wb") as file:
        ...             written = file.write(bytes(1000))
        ...     LRUCleanup(directory, 1500, keyfn=lambda path: "old" not in path).cleanup()
        ...     os.listdir(directory)
        ['new']
    """

    cache_dir: str | os.PathLike[str] | None = None
    cache_size: float = int(1e12)
    keyfn: Callable[[str], Any] = os.path.getctime
    verbose: bool = False
    interval: float | None = 30
    last_run: float = field(default=0.0, init=False)

    def set_cache_dir(self, cache_dir: str | os.PathLike[str]) -> None:
        self.cache_dir = cache_dir

    def cleanup(self) -> None:
        """Removes files until the rest is small enough; does nothing if the directory does not exist."""
        if self.cache_dir is None:
            raise ValueError("LRUCleanup: no directory to clean up: give cache_dir or call set_cache_dir")
        now = time.time()
        if self.interval is not None and now - self.last_run < self.interval:
            return
        directory = os.fspath(self.cache_dir)
        files = []
        for name, status in files_in(directory):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                files.append((self.keyfn(os.path.join(directory, name)), name, status.st_size))
        total = sum(size for _, _, size in files)
        for _, name, size in sorted(files, key=lambda file: file[0]):
            if total <= self.cache_size:
                break
            if remove(directory, name, self.verbose):
                total -= size
        self.last_run = now
