"""Dataset: tar shards with the options of webdataset's first releases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mpwds.compat.tariterators import handled, tar_file_expander, url_opener
from mpwds.compat.webdataset_v0.sample_options import SampleOptions
from mpwds.compat.webdataset_v0.shard_hooks import ShardHooks, UrlHook, all_urls
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.sources.grouping import split_name
from mpwds.pipeline.sources.samples import TarSamples
from mpwds.pipeline.sources.shards import Urls, given_urls, listed
from mpwds.pipeline.stages.map import map
from mpwds.pipeline.stream import Stage
from mpwds.storage.streams.urls import expand_urls

_QUOTED_DOT = "\0"  # which no name in a tar file holds
_PASSED_AT_ONCE = 256 * 1024


class Dataset(DataPipeline):
    """A dataset of tar shards, as webdataset had it before there was ``WebDataset``.

    For programs that were written for it; new ones use ``mpwds.WebDataset``. It takes the options of all
    releases up to 0.1.40, also those that methods replaced, and has their hooks, which can also be set as
    attributes until it is iterated. Otherwise than then, shards are divided among nodes too, methods return
    copies, and shuffles are reproducible.

    Args:
        urls: A URL or path with braces, or several.
        size: Number of samples, or a function from a shard's URL to its number: what ``len()`` returns.
        length: What ``len()`` returns.
        epochs: How often one iteration goes through all shards.
        keys: Splits a member's name into the sample's key and the field's name, ``(None, None)`` for a member
            to leave out. By default the field's name begins behind the first dot of the last component.
        suffixes: The fields to read; all by default.
        opener: A function from a URL to a stream of bytes; or a shell command with ``{}`` for the URL, whose
            output is the shard.
        open_fn: The same.
        handler: What to do about an error.
        tarhandler: What to do about a shard that cannot be read, where that is something else.
        shuffle: Above 0, shards are shuffled; above 1, samples too, through a buffer of that size.
        prepare_for_worker: ``False`` lets every worker read all shards; a function is called in each worker
            at the beginning of an epoch.
        initial_pipeline: Functions of an iterator, the first of which gets a shard's members as pairs of name
            and bytes. They take the place of ``[group_by_keys(keys, suffixes=suffixes)]``.
        node_selection: Hook: chooses this node's shards, a function from a list of URLs to a list of URLs.
        shard_selection: Hook: chooses this worker's among them.
        shard_shuffle: Hook: orders this worker's shards.
        seed: Determines, with the epoch, all random choices; 0 by default.
        options: ``container``, ``decoder``, ``associate``, ``extensions``, ``transforms``, ``pipeline``,
            ``errors``, ``verbose`` and ``allow_pickle``: see
            :class:`~mpwds.compat.webdataset_v0.sample_options.SampleOptions`.

    Raises:
        ValueError: There are no shards, or an option does not fit.
        TypeError: An option is unknown; for those that are gone the message says what to write instead.

    Source:
        ``webdataset.Dataset`` of 0.1, and ``webdataset.WebDataset`` of 0.0.

    Example:
        >>> dataset = Dataset("digits-{000..011}.tar", extensions="png;jpg cls", decoder="rgb8", shuffle=100)
        >>> dataset.batched(64)
        Dataset('digits-{000..011}.tar')
            .decode('rgb8')
            .to_tuple('png;jpg', 'cls')
            .shuffle(100)
            .batched(64)
    """

    def __init__(
        self,
        urls: Urls,
        size: int | Callable[[str], int] | None = None,
        *,
        length: int | None = None,
        epochs: int = 1,
        keys: Callable[[str], tuple[str | None, str | None]] | None = None,
        suffixes: Iterable[str] | None = None,
        opener: str | Callable[[str], Any] | None = None,
        open_fn: str | Callable[[str], Any] | None = None,
        handler: Handler = reraise_exception,
        tarhandler: Handler | None = None,
        shuffle: int = 0,
        prepare_for_worker: bool | Callable[[], Any] = True,
        initial_pipeline: Iterable[Any] | None = None,
        node_selection: UrlHook | None = None,
        shard_selection: UrlHook | None = None,
        shard_shuffle: UrlHook | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        work = SampleOptions(shuffle=shuffle, **options)
        handler = work.handler(handler)
        opener = opener if open_fn is None else open_fn
        self._urls = given_urls(_piped(urls, opener) if isinstance(opener, str) else urls)
        open_at = _OpenedBy(opener) if callable(opener) else None
        if prepare_for_worker is False and shard_selection is None:
            shard_selection = all_urls
        self._hooks = ShardHooks(
            before=prepare_for_worker if callable(prepare_for_worker) else None,
            node_selection=node_selection,
            shard_selection=shard_selection,
            shard_shuffle=shard_shuffle,
            shuffled=shuffle > 0,
        )
        head = self._hooks.parts(self._urls)
        self._head = len(head)
        tarhandler = handler if tarhandler is None else tarhandler
        if initial_pipeline is None:
            wanted = work.suffixes() if suffixes is None else set(suffixes)
            reader: Any = TarSamples(
                tarhandler,
                select_files=None if wanted is None else _Wanted(frozenset(wanted)),
                rename_files=None if keys is None else _Keyed(keys),
                open_at=open_at,
            )
            grouping: list[Any] = [] if keys is None else [map(_unquoted)]
        else:
            reader = _Members(open_at, tarhandler)
            grouping = list(initial_pipeline)
        super().__init__(*head, reader, *grouping, *work.stages(handler), seed=seed)
        self._shown_from = self._head + len(grouping)
        if epochs != 1:
            self.repeat(epochs)
        if size is not None and length is None:
            length = sum(size(url) for url in expand_urls(self._urls)) if callable(size) else size
        self._length = length

    @property
    def node_selection(self) -> UrlHook | None:
        """Hook that chooses this node's shards from a list of URLs; ``None`` takes every n-th."""
        return self._hooks.node_selection

    @node_selection.setter
    def node_selection(self, hook: UrlHook | None) -> None:
        self._set(node_selection=hook)

    @property
    def shard_selection(self) -> UrlHook | None:
        """Hook that chooses this worker's shards from those of its node; ``None`` takes every n-th."""
        return self._hooks.shard_selection

    @shard_selection.setter
    def shard_selection(self, hook: UrlHook | None) -> None:
        self._set(shard_selection=hook)

    @property
    def shard_shuffle(self) -> UrlHook | None:
        """Hook that orders this worker's shards; ``None`` leaves them in their order."""
        return self._hooks.shard_shuffle

    @shard_shuffle.setter
    def shard_shuffle(self, hook: UrlHook | None) -> None:
        self._set(shard_shuffle=hook)

    @property
    def reseed_hook(self) -> Callable[[], Any] | None:
        """Called without arguments in every worker, before an epoch's first shard is chosen."""
        return self._hooks.before

    @reseed_hook.setter
    def reseed_hook(self, hook: Callable[[], Any] | None) -> None:
        self._set(before=hook)

    def shuffle(self, size: int, *args: Any, **options: Any) -> Dataset:
        """Shuffles samples through a buffer of ``size``, and the shards.

        Example:
            >>> Dataset("digits-{000..011}.tar").shuffle(100)
            Dataset('digits-{000..011}.tar')
                .shuffle(100)
        """
        extended = super().shuffle(size, *args, **options)
        if size >= 1:
            extended._set(shuffled=True)
        return extended

    def _set(self, **hooks: Any) -> None:
        self._hooks = replace(self._hooks, **hooks)
        head = self._hooks.parts(self._urls)
        self.pipeline[: self._head] = head
        self._shown_from += len(head) - self._head
        self._head = len(head)

    def _beginning(self) -> tuple[str, tuple[Stage, ...]]:
        return f"Dataset({listed(self._urls)})", self.stages[self._shown_from :]


def _piped(urls: Urls, command: str) -> Urls:
    """The URLs that read the output of a command for each of ``urls``."""
    return [f"pipe:{command.format(url)}" for url in expand_urls(urls)]


@dataclass(frozen=True)
class _OpenedBy:
    """Opens a URL at a byte by a function of the URL alone."""

    function: Callable[[str], Any]

    def __call__(self, url: str, offset: int = 0) -> Any:
        stream = self.function(url)
        if not hasattr(stream, "read"):
            stream = _Entered(stream)
        while offset > 0 and (passed := stream.read(min(offset, _PASSED_AT_ONCE))):
            offset -= len(passed)
        return stream


class _Entered:
    """The stream that a context manager gives; to close it leaves the context."""

    def __init__(self, context: Any) -> None:
        self.read = context.__enter__().read
        self._context = context

    def close(self) -> None:
        self._context.__exit__(None, None, None)


@dataclass(frozen=True)
class _Members:
    """Generator function of shards: the members of each as pairs of a name and bytes."""

    open_at: Callable[[str], Any] | None
    handler: Handler

    def __call__(self, shards: Iterator[dict[str, Any]]) -> Iterator[tuple[str, bytes]]:
        opened = url_opener(shards, self.handler) if self.open_at is None else self._opened(shards)
        for member in tar_file_expander(opened, self.handler, eof_value=None):
            yield member["fname"], member["data"]

    def _opened(self, shards: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for shard in shards:
            try:
                opened = {**shard, "stream": self.open_at(shard["url"])}  # type: ignore[misc]  # it is not None
            except Exception as error:
                if not handled(error, self.handler, "Dataset()", f"shard {shard['url']}", shard["url"]):
                    return
            else:
                yield opened


@dataclass(frozen=True)
class _Wanted:
    """Whether a member is one of the fields to read."""

    suffixes: frozenset[str]

    def __call__(self, name: str) -> bool:
        return split_name(name)[1].lower() in self.suffixes


@dataclass(frozen=True)
class _Keyed:
    """A member's name such that it is split as ``keys`` splits it; a name without a dot is left out."""

    keys: Callable[[str], tuple[str | None, str | None]]

    def __call__(self, name: str) -> str:
        key, field = self.keys(name)
        if key is None or field is None:
            return "left-out"
        folder, slash, last = key.rpartition("/")
        return f"{folder}{slash}{last.replace('.', _QUOTED_DOT)}.{field}"


def _unquoted(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "__key__": sample["__key__"].replace(_QUOTED_DOT, ".")}
