"""The stream of every stage that reads shards, one after the other, and resumes at the byte."""

from __future__ import annotations

import itertools
import os
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from mpwds.errors import ShardError
from mpwds.pipeline.coercion import url_of
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import add_incident, add_note
from mpwds.pipeline.filter import ErrorHandlingStream, Filter
from mpwds.pipeline.handlers import CountingHandler, Handler, ignore_and_continue, reraise_exception
from mpwds.pipeline.stream import Address, Description, Stream, as_address, one_sample
from mpwds.storage.streams.base import InputStream, unbuffered
from mpwds.storage.streams.gopen import open_at, shards_ahead
from mpwds.storage.streams.patterns import listed
from mpwds.storage.streams.urls import is_local, local_path, rewrite_url

if TYPE_CHECKING:
    from concurrent.futures import Future

    from mpwds.storage.caches.shard_cache import ShardCache
    from mpwds.storage.streams.ahead import Threads
    from mpwds.storage.tar.input import OpenAt

Read: TypeAlias = "tuple[int, int | None, Any]"
"""An element's offset in its shard, the offset of the next one (``None`` after the last), and the element."""

OnError: TypeAlias = Callable[[Exception], object]


_MOST_FILES = 100_000  # of a folder that are looked at
_MOST_SHARDS = 10_000  # of which are looked for in it
_OPENED_AT_A_TIME = 8
_LOOK_EVERY = 100  # shards without a sample


def _nbytes(element: Any) -> int:
    values = element.values() if isinstance(element, dict) else ()
    return sum(len(value) for value in values if isinstance(value, (bytes, memoryview)))


class ShardReader(Filter):
    """Base of the stages that read shards.

    Attributes:
        handler: What to do about a shard that cannot be read.
        empty_check: Whether it is an error if all shards are empty, or if a rank has none. Of a rank's
            workers, those without a shard are idle.
        cache: Keeps shards on a local disk, and fetches the next ones while one is read.
        open_at: Without a cache, opens a shard's URL at a byte.
        read_ahead: Without a cache and ``open_at``, the option of ``mpwds.gopen``. If it reads a shard ahead,
            the next shards are opened while that one is read.
    """

    reads_shards = True
    samples_in = staticmethod(one_sample)
    handler: Handler = reraise_exception
    empty_check: bool = False
    cache: ShardCache | None = None
    open_at: OpenAt | None = None
    read_ahead: int | None = None

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return ShardStream(self, source, context)

    @abstractmethod
    def read(self, shard: Any, offset: int, on_error: OnError, open: OpenAt) -> Iterator[Read]:
        """The elements of a shard from an offset on: 0, or an offset that was yielded.

        ``open(url, offset)`` opens the shard. ``on_error`` is called with an error that concerns one element.
        If it returns, the element is skipped. A stream that is dropped closes its file, so the iterator must
        not refer to the stream.
        """

    @abstractmethod
    def place(self, url: str, offset: int) -> Description:
        """Describes the element at ``offset`` for error messages."""


class ShardStream(ErrorHandlingStream):
    """The elements of shards. An element's address is (the shard's address, byte offset)."""

    def __init__(self, stage: ShardReader, source: Stream[Any], context: Context) -> None:
        super().__init__(source, stage, stage.handler)
        cache, open, read_ahead = stage.cache, stage.open_at, stage.read_ahead
        self._reader = stage
        self._context = context
        self._cache = cache
        self._read_ahead = read_ahead if open is None else 0
        self._opened = _OpenedAhead(open or partial(open_at, read_ahead=read_ahead))
        self._open = self._opened.open if cache is None else cache.open
        self._prefetch: Callable[[str], object] = self._opened.begin if cache is None else cache.prefetch
        self._open_for_few = cache.open if cache is not None else open or partial(open_at, read_ahead=0)
        self._nbytes = 0  # that were read before this shard
        self._ahead: deque[tuple[Address, Any]] = deque()  # shards taken from the source ahead of time
        self._source_failed: Exception | None = None  # while shards were taken ahead
        self._missing = stage.empty_check  # nothing has been found yet, and that would be an error
        self._begun = 0  # shards, while that is so
        # A handler that counts is told of elements, not of the shards that the source gives.
        self._count: Callable[[], object] | None = None
        self._count_end: Callable[[], object] | None = None
        if isinstance(self._handler, CountingHandler):
            self._next = self._running_next = source.__next__
            self._count = self._handler.watch(str(stage), itertools.repeat(None).__next__)
            self._count_end = self._handler.watch(str(stage), iter(()).__next__)
        self._has_shard = False
        self._shard: Address | None = None  # the shard that is being read
        self._offset: int | None = 0  # of the next element in it; None after the last
        self._restored: tuple[Address, int] | None = None  # where a loaded state goes on
        self._failed: tuple[Address, int] | None = None  # where reading failed, until there is an element
        self._elements: Iterator[Read] = iter(())
        self.counts = SimpleNamespace(nbytes=0)
        self._fetching: tuple[Address, int, Iterator[Read]] | None = None

    def __next__(self) -> tuple[Address, Any]:
        while True:
            try:
                item = next(self._elements, None)
            except _Stopped:
                self._elements = iter(())
                self._stop()
                raise StopIteration from None
            except Exception as error:
                place = self._shard, self._offset
                self._shard, self._offset, self._elements = None, None, iter(())
                self._failed = place if place[1] is not None else None  # type: ignore[assignment]  # both are
                self._handle(error, place, None)
                self._failed = None  # the handler skips the rest
                continue
            if item is not None:
                offset, following, element = item
                self._offset, self._failed = following, None
                self.counts.nbytes += _nbytes(element) if following is None else following - offset
                self._missing = False
                if self._count is not None:
                    self._count()
                return (self._shard, offset), element  # type: ignore[return-value]  # a shard is open
            self._shard = None
            try:
                address, shard = self._take()
            except StopIteration:
                self._failed = None
                self._check_found()
                if self._count_end is not None:
                    self._count_end()
                raise
            self._begin(address, shard, 0)
            self._check_endless(address)

    def _take(self) -> tuple[Address, Any]:
        """The next shard. Those after it are taken ahead if they are fetched or opened ahead."""
        if self._ahead:
            item = self._ahead.popleft()
        elif self._source_failed is not None:
            error, self._source_failed = self._source_failed, None
            raise error
        else:
            item = self._next()
        last_bytes, self._nbytes = self.counts.nbytes - self._nbytes, self.counts.nbytes
        if self._cache is not None:
            ahead = self._cache.prefetch_shards
        else:
            ahead = shards_ahead(_url(item[1]), self._read_ahead, last_bytes if self._has_shard else None)
        while len(self._ahead) < ahead and self._source_failed is None:
            try:
                self._source.state_dict()
            except LookupError:  # without a state, its next shard may appear only after this one was read
                break
            try:
                self._ahead.append(self._next())
            except StopIteration:
                break
            except Exception as error:  # to be raised when that shard's turn comes
                self._source_failed = error
        return item

    def _begin(self, address: Address, shard: Any, offset: int) -> None:
        self._shard, self._offset, self._has_shard = address, offset, True
        if self._context.on_shard is not None:
            self._context.on_shard(url_of(shard))
        weak = weakref.ref(self)  # a cycle would keep a dropped stream's file open

        def on_error(error: Exception) -> None:
            if (stream := weak()) is not None:
                try:
                    stream._handle(error, (stream._shard, stream._offset), None)
                except StopIteration:
                    raise _Stopped from None

        self._elements = self._reader.read(shard, offset, on_error, self._open)
        self._handler = options_of(shard).get("handler", self._reader.handler)
        for _, following in self._ahead:
            self._prefetch(_url(following))

    def _stop(self) -> None:
        super()._stop()
        self._ahead.clear()
        self._opened.clear()
        self._source_failed = self._shard = self._failed = None
        self._missing = False

    def _check_found(self) -> None:
        if not self._missing:
            return
        self._missing = False
        context = self._context
        if context.worker and not self._has_shard:  # worker 0 gets a shard first
            context.on_idle()
            return
        raise ValueError(
            f"no samples found in {context.place}: its shards are empty, or there are fewer shards than "
            "nodes. Check the shards, make more of them, or allow it by WebDataset(..., empty_check=False)"
        ) from None  # not while handling the source's StopIteration

    def _check_endless(self, address: Address) -> None:
        """Raises ``ValueError`` if shards are drawn without end, and no one has a sample."""
        if not self._missing:
            return
        self._begun += 1
        if self._begun % _LOOK_EVERY == 0:
            listed = self._source.describe(address).listed
            if listed is not None and self._begun >= 30 * len(listed):
                self._has_shard, self._shard, self._elements = True, None, iter(())
                self._check_found()

    def fetch(self, address: Any) -> Any:
        shard, offset = address
        shard = as_address(shard)
        # Elements that are restored together usually lie side by side: continue where the last one ended.
        if self._fetching is not None and self._fetching[:2] == (shard, offset):
            elements = self._fetching[2]
        else:
            skip = ignore_and_continue  # an element that the first reading skipped
            elements = self._reader.read(self._source.fetch(shard), offset, skip, self._open_for_few)
        self._fetching = None
        found, following, element = next(elements, (None, None, None))
        if found != offset:
            url = url_of(self._source.fetch(shard))
            raise ShardError(f"no element begins at offset {offset} of {url}: the shard has changed since")
        if following is not None:
            self._fetching = shard, following, elements
        return element

    def _explain(self, error: Exception, address: Any, element: object) -> None:
        place = self.describe(address, element)
        add_incident(error, str(self._stage), place)
        if place.url is not None and place.url not in str(error):
            add_note(error, f"in {self._stage}, on {place}")
        if address == self._restored:
            add_note(error, "the loaded state goes on here: if the shard was written since, load no state")
        if isinstance(error, (FileNotFoundError, IsADirectoryError)) and self._handler is reraise_exception:
            _explain_missing(error, self._source.describe(as_address(address[0])))
        if self._cache is not None and isinstance(error, ShardError) and place.url is not None:
            kept = self._cache.path(place.url)
            if file_of(place.url) is None and os.path.exists(kept):
                add_note(error, f"it was read from the cache; to fetch it again, remove {kept}")

    def describe(self, address: Any, element: object = None) -> Description:
        shard, offset = address
        if offset is None:  # the shard as a whole
            return self._source.describe(as_address(shard))
        url = url_of(self._source.fetch(as_address(shard)))
        if isinstance(element, dict) and "__key__" in element:
            return Description.of_sample(element, Description("", url, offset=offset))
        return self._reader.place(url, offset)

    def state_dict(self) -> dict[str, Any]:
        shard, offset = self._failed or (self._shard, self._offset)
        open_shard = shard is not None and offset is not None
        return {
            **super().state_dict(),
            "shard": shard if open_shard else None,
            "offset": offset if open_shard else 0,
            "ahead": [address for address, _ in self._ahead],
            "missing": self._missing,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._shard, self._failed, self._elements, self._source_failed = None, None, iter(()), None
        self._opened.clear()
        ahead = [as_address(address) for address in state["ahead"]]
        self._ahead = deque([(address, self._source.fetch(address)) for address in ahead])
        self._missing = state["missing"]
        if state["shard"] is not None:
            shard = as_address(state["shard"])
            self._restored = shard, state["offset"]
            self._begin(shard, self._source.fetch(shard), state["offset"])


class _OpenedAhead:
    """Opens URLs by ``open(url, offset)``; in threads those that are read next, from their beginning.

    An error of a URL that was opened ahead is raised when its turn comes.
    """

    def __init__(self, open: OpenAt) -> None:
        self._open = open
        self._threads: Threads[str, BinaryIO] | None = None
        self._begun: dict[str, Future[BinaryIO]] = {}
        self._pid = os.getpid()

    def begin(self, url: str) -> None:
        if self._threads is None or self._pid != os.getpid():  # a fork has no threads
            from mpwds.storage.streams.ahead import Threads

            self._pid, self._begun = os.getpid(), {}
            self._threads = Threads(partial(_open_and_preload, self._open), _OPENED_AT_A_TIME)
        if url not in self._begun:
            self._begun[url] = self._threads.submit(url)

    def open(self, url: str, offset: int) -> BinaryIO:
        begun = self._begun.pop(url, None) if offset == 0 and self._pid == os.getpid() else None
        return self._open(url, offset) if begun is None else begun.result()

    def clear(self) -> None:
        self._begun.clear()


def _open_and_preload(open: OpenAt, url: str) -> BinaryIO:
    stream = open(url, 0)
    if isinstance(raw := unbuffered(stream), InputStream):
        raw.preload()
    return stream


class _Stopped(Exception):
    """The handler of an error inside a shard ends the stream."""


def _url(shard: Any) -> str:
    """A shard's URL; empty for what is no shard, which is an error when its turn comes."""
    try:
        return url_of(shard)
    except TypeError:
        return ""


def options_of(shard: Any) -> dict[str, Any]:
    """A shard's options of a dataset specification: see ``SpecSource.options``."""
    return (shard.get("options") if isinstance(shard, dict) else None) or {}


def file_of(url: str) -> str | None:
    """The path of the local file that a shard is read from; ``None`` for others and for standard input."""
    if url == "-":
        return None
    url = rewrite_url(url)
    return local_path(url) if is_local(url) else None


def _explain_missing(error: Exception, shard: Description) -> None:
    """Adds a note to the error about a local shard that does not exist, or is a folder."""
    if shard.url is None or (path := file_of(shard.url)) is None:
        return
    if os.path.isdir(path):
        add_note(error, f"it is a folder; to read the shards in it, add a slash to its name: {path + '/'!r}")
    elif shard.listed is not None and not os.path.exists(path):
        count = len(shard.listed)
        shards = "the only shard" if count == 1 else f"one of the {count} shards"
        add_note(error, f"it is {shards} of {listed(shard.listed)}; {_present(path, shard.listed)}")


def _present(missing: str, urls: Sequence[str]) -> str:
    """Which of the shards are in the folder of the missing file, or which archives are."""
    folder = os.path.dirname(missing)
    try:
        with os.scandir(folder or ".") as entries:
            present = {entry.name for entry in islice(entries, _MOST_FILES)}
    except OSError:
        return f"there is no folder {folder}"
    paths = map(file_of, islice(urls, _MOST_SHARDS))
    names = [os.path.basename(path) for path in paths if path and os.path.dirname(path) == folder]
    there = [name for name in names if name in present]
    archives = sorted(name for name in present if name.endswith(".tar"))
    if there:
        found = f"{_few(there)} of {'them' if len(urls) <= _MOST_SHARDS else f'the first {_MOST_SHARDS}'}"
    else:
        found = f"no such file, but {_few(archives)}" if archives else "no .tar file"
    return f"{folder or 'this folder'} holds {found}"


def _few(names: Sequence[str]) -> str:
    """Names; if there are more than four, only the first and the last."""
    if len(names) < 5:
        return ", ".join(names)
    return f"{names[0]}, {names[1]}, ... {names[-1]} ({len(names)} files)"
