"""webdataset.dataset of 0.0 and 0.1: ``Dataset`` with its hooks, ``Processor``, and further names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from random import SystemRandom
from types import SimpleNamespace
from typing import Any, TypeAlias

from mpwds.compat.sample_options import SampleOptions, decoding
from mpwds.compat.tar_stages import opened, tar_file_expander
from mpwds.pipeline.coercion import OwnStage, Splitter, stage_of
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.sources.samples import TarSamples
from mpwds.pipeline.sources.shards import ShardList, Urls, split_by_node, split_by_worker
from mpwds.pipeline.stages.map import map
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.patterns import listed, shard_names
from mpwds.storage.tar.names import split_name

_QUOTED_DOT = "\0"  # no name in a tar file contains it
_PASSED_AT_ONCE = 256 * 1024


_AS_0_1_37: Any = object()


def _hook(name: str) -> Any:
    return property(
        lambda self: getattr(self._hooks, name),
        lambda self, hook: self._set(**{name: hook or getattr(_ShardHooks, name)}),
    )


class Dataset(DataPipeline):
    """A dataset of tar shards with the options of webdataset's first releases.

    For programs written for those; new ones use ``mpwds.WebDataset``. It takes the options of all releases up
    to 0.1.40, also those that methods replaced. Hooks can also be set as attributes until it is iterated.
    Unlike then, shards are divided among nodes too, methods return copies, and shuffles are reproducible.

    Args:
        urls: A URL or path with braces, or several.
        size: Result of ``len()``: the number of samples, or a function from a shard's URL to its number.
        length: Result of ``len()``.
        epochs: How often one iteration reads all shards.
        keys: Splits a member's name into the sample's key and the field's name, ``(None, None)`` for a member
            to leave out. By default the field's name begins after the first dot of the last component.
        suffixes: The fields to read; all by default.
        opener: A function from a URL to a stream of bytes; or a shell command with ``{}`` for the URL, whose
            output is the shard.
        open_fn: The same.
        handler: What to do about an error.
        tarhandler: What to do about a shard that cannot be read; ``handler`` by default.
        shuffle: Above 0, shards are shuffled; above 1, samples too, through a buffer of that size.
        prepare_for_worker: ``False`` lets every worker read all shards; a function is called in each worker
            at the beginning of an epoch.
        initial_pipeline: Functions of an iterator, instead of ``[group_by_keys(keys, suffixes=suffixes)]``.
            The first one gets a shard's members as pairs of name and bytes.
        node_selection: Hook: chooses this node's shards, a function from a list of URLs to a list of URLs.
            By default every n-th.
        shard_selection: Hook: chooses this worker's among them; by default every n-th.
        shard_shuffle: Hook: orders this worker's shards.
        seed: Determines, with the epoch, all random choices; 0 by default.
        options: Those of :class:`~mpwds.compat.sample_options.SampleOptions`.

    Raises:
        ValueError: There are no shards, or an option is invalid.
        TypeError: An option is unknown.

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
        self._urls = shard_names(_piped(urls, opener) if isinstance(opener, str) else urls)
        open_at = partial(_opened_by, opener) if callable(opener) else None
        self._open = open_at or gopen
        self._hooks = _ShardHooks(
            prepare_for_worker if callable(prepare_for_worker) else _nothing,
            node_selection or _node_urls,
            shard_selection or (all_urls if prepare_for_worker is False else worker_urls),
            shard_shuffle or all_urls,
            shuffled=shuffle > 0,
        )
        head = self._hooks.parts(self._urls)
        self._head = len(head)
        self.tarhandler = tarhandler = handler if tarhandler is None else tarhandler
        if initial_pipeline is None:
            wanted = work.suffixes() if suffixes is None else set(suffixes)
            reader: Any = TarSamples(
                tarhandler,
                select_files=None if wanted is None else partial(_is_wanted, wanted),
                rename_files=None if keys is None else partial(_renamed, keys),
                open_at=open_at,
            )
            grouping: list[Any] = [] if keys is None else [map(_unquoted)]
        else:
            reader = partial(_members, open=self._open, handler=tarhandler)
            grouping = list(initial_pipeline)
        super().__init__(*head, reader, *grouping, *work.stages(handler), seed=seed)
        self._call = f"Dataset({listed(self._urls)})"
        self._made = self._head + 1 + len(grouping)
        if epochs != 1:
            self.repeat(epochs)
        if size is not None and length is None:
            length = sum(size(url) for url in self._urls) if callable(size) else size
        self.given_length = length

    node_selection = _hook("node_selection")
    shard_selection = _hook("shard_selection")
    shard_shuffle = _hook("shard_shuffle")
    reseed_hook = _hook("before")

    def shuffle(self, size: int | None = None, *args: Any, **options: Any) -> Dataset:
        """Shuffles samples through a buffer of ``size``, and the shards."""
        extended = super().shuffle(size, *args, **options)
        if size is None or size >= 1:
            extended._set(shuffled=True)
        return extended

    def decode(self, *handlers: Any, decoder: Any = _AS_0_1_37, **options: Any) -> Dataset:
        """Decodes samples.

        Args:
            handlers: Several handlers, pairs ``("jpg", f)``, or functions ``f(extension, data)``: see
                ``mpwds.decode``. One image specification (``"rgb"`` by default), a dict of functions by
                extension, a function of a sample, or ``None``: see ``decoder`` in
                :class:`~mpwds.compat.sample_options.SampleOptions`.
            decoder: The same as that one.
            options: Those of ``mpwds.decode``.
        """
        if decoder is _AS_0_1_37:
            if len(handlers) > 1 or any(isinstance(each, tuple) or _takes_two(each) for each in handlers):
                return super().decode(*handlers, **options)
            (decoder,) = handlers or ("rgb",)
        handler = options.pop("handler", reraise_exception)
        return self.compose(*decoding(decoder, handler, **options))

    @property
    def urls(self) -> list[str]:
        """The URLs of all shards."""
        return list(self._urls)

    def shard_fn(self) -> list[str]:
        """The URLs of the shards that the next ``iter()`` reads in this process, as the hooks choose them."""
        shards = DataPipeline(*self.pipeline[: self._head], seed=self.given_seed)
        return [shard["url"] for _, shard in shards.stream(self._context())]

    def raw_samples(self, urls: list[str]) -> Iterator[tuple[str, bytes]]:
        """Yields the members of shards as pairs of a name and bytes."""
        return _members(({"url": url} for url in urls), self._open, self.tarhandler)

    def samples(self, urls: str | list[str]) -> Iterator[Any]:
        """Iterates what the stages make of other shards, all of which this process reads."""
        shards = ShardList(urls, nodesplitter=None, splitter=None)
        return iter(DataPipeline(shards, *self.pipeline[self._head :], seed=self.given_seed))

    def reseed_rng(self) -> None:
        """Chooses another seed at random."""
        self.given_seed = SystemRandom().getrandbits(32)

    def _set(self, **hooks: Any) -> None:
        self._hooks = replace(self._hooks, **hooks)
        head = self._hooks.parts(self._urls)
        self.pipeline[: self._head] = head
        self._made += len(head) - self._head
        self._head = len(head)


def _takes_two(handler: Any) -> bool:
    """True if an object is a function that can be called with two arguments, as far as can be told."""
    try:
        inspect.signature(handler).bind("extension", b"data")
    except ValueError:  # built-in
        return True
    except TypeError:
        return False
    return True


def _piped(urls: Urls, command: str) -> Urls:
    """For each URL, one that reads the output of a command."""
    return [f"pipe:{command.format(url)}" for url in shard_names(urls)]


def _opened_by(opener: Callable[[str], Any], url: str, offset: int = 0) -> Any:
    """Opens a URL at a byte, by a function of the URL alone."""
    stream = opener(url)
    if not hasattr(stream, "read"):
        context = ExitStack()
        stream = SimpleNamespace(read=context.enter_context(stream).read, close=context.close)
    while offset > 0 and (passed := stream.read(min(offset, _PASSED_AT_ONCE))):
        offset -= len(passed)
    return stream


def _members(
    shards: Iterator[dict[str, Any]], open: Callable[[str], Any], handler: Handler
) -> Iterator[tuple[str, bytes]]:
    """Yields the members of shards as pairs of a name and bytes."""
    streams = opened(shards, handler, lambda url: {"stream": open(url)}, "Dataset()")
    for member in tar_file_expander(streams, handler, eof_value=None):
        yield member["fname"], member["data"]


def _is_wanted(suffixes: Container[str], name: str) -> bool:
    return split_name(name)[1].lower() in suffixes


def _renamed(keys: Callable[[str], tuple[str | None, str | None]], name: str) -> str:
    """A member's name changed so that it splits as ``keys`` splits it; a name without a dot is left out."""
    key, field = keys(name)
    if key is None or field is None:
        return "left-out"
    folder, slash, last = key.rpartition("/")
    return f"{folder}{slash}{last.replace('.', _QUOTED_DOT)}.{field}"


def _unquoted(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "__key__": sample["__key__"].replace(_QUOTED_DOT, ".")}


UrlHook: TypeAlias = Callable[[list[str]], Sequence[str]]
"""From a list of URLs to those to read, in the order to read them."""


def all_urls(urls: list[str]) -> list[str]:
    """Hook that chooses all shards: as ``shard_selection``, every worker reads all of its node's."""
    return urls


def _node_urls(urls: list[str]) -> list[str]:
    context = Context.current()
    return urls[context.rank :: context.world_size]


def worker_urls(urls: list[str]) -> list[str]:
    """Hook that chooses the shards of this worker: the default ``shard_selection``."""
    context = Context.current()
    return urls[context.worker :: context.workers]


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class _ShardHooks:
    """The hooks of ``Dataset``, which choose and order its shards."""

    before: Callable[[], Any] = _nothing
    node_selection: UrlHook = _node_urls
    shard_selection: UrlHook = worker_urls
    shard_shuffle: UrlHook = all_urls
    shuffled: bool = False

    def parts(self, urls: Urls) -> list[Any]:
        """The list of shards and the stages after it."""
        node, worker = self.node_selection, self.shard_selection
        shards = ShardList(
            urls,
            self.shuffled,
            nodesplitter=split_by_node if node is _node_urls else _by(node),
            splitter=split_by_worker if worker is worker_urls else _by(worker),
        )
        parts: list[Any] = [shards]
        if self.before is not _nothing or self.shard_shuffle is not all_urls:
            parts.append(_by(self.shard_shuffle, self.before))
        return parts


def _by(hook: UrlHook, before: Callable[[], Any] = _nothing) -> Splitter:
    return Splitter(partial(_chosen, hook, before))


def _chosen(hook: UrlHook, before: Callable[[], Any], shards: Iterator[Any]) -> Iterator[Any]:
    before()
    for url in hook([shard["url"] for shard in shards]):
        yield {"url": url}


class Processor(OwnStage):
    """A stage that is called with a dataset and returns the dataset with that stage appended.

    ``Processor(f, *args, **keywords)(source)`` is ``DataPipeline(source).pipe(f, *args, **keywords)``, and so
    is ``Processor(source, f, *args, **keywords)``, as the first generation wrote it. A processor is a stage
    as well: ``DataPipeline(source, Processor(f))``.

    Example:
        >>> from mpwds.pipeline.stages.batched import batched
        >>> def repeated(elements, times):
        ...     for element in elements:
        ...         yield from [element] * times
        >>> list(Processor(repeated, times=2)(["a", "b"]))
        ['a', 'a', 'b', 'b']
        >>> dataset = Processor(batched, 2, collation_fn=None)(range(3))
        >>> list(Processor(dataset, repeated, 2))
        [[0, 1], [0, 1], [2], [2]]
    """

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        if arguments and (isinstance(arguments[0], Iterable) or not callable(arguments[0])):
            source, *rest = arguments  # the first is neither a function nor a stage
            return DataPipeline(source, stage_of(*rest, **keywords))
        return super().__new__(cls)

    def __init__(self, f: Any, *args: Any, **keywords: Any) -> None:
        super().__init__(stage_of(f, *args, **keywords))

    def __call__(self, source: Any) -> Any:
        """The dataset of ``source``, anything that ``DataPipeline`` takes, with the stage appended."""
        return DataPipeline(source, self.given)
