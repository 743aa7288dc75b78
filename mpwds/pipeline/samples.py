"""Samples of tar shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mpwds.errors import ShardError
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.grouping import Sample, read_samples, split_name
from mpwds.pipeline.handled import Handled
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import add_incident, arguments, options
from mpwds.pipeline.place import Place
from mpwds.pipeline.stream import Address, Stream, as_address
from mpwds.storage.tar import read_members

_Read = tuple[int, "int | None", Sample]


@dataclass(frozen=True)
class TarSamples(Filter):
    """Stage that yields the samples of the tar shards that its source names.

    Successive members whose names agree up to the first dot of the base name form a sample, a dict
    of ``__key__`` (that part of the name), ``__url__`` (the shard) and the members' contents
    as bytes under the rest of their names, in lower case. Members without a dot and those under names
    like ``__meta__`` are skipped. A sample's address is (its shard's address, byte offset of its first
    header).

    Args:
        handler: What to do about a shard that cannot be read: going on means with the next shard, and
            with a sample that has a member twice, without the second.

    Raises:
        ShardError: While iterating, a shard is damaged or has a name twice in a sample.
        TypeError: While iterating, the source gives anything but ``{"url": ...}``.
    """

    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        check_handler("tarfile_to_samples", self.handler)

    def __str__(self) -> str:
        return f"tarfile_to_samples({arguments(**options(handler=(self.handler, reraise_exception)))})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Sample]:
        return _TarStream(self, source, context.on_shard)


class _TarStream(Handled):
    def __init__(
        self, stage: TarSamples, source: Stream[Any], on_shard: Callable[[str], None] | None
    ) -> None:
        super().__init__(source, stage, stage.handler)
        self._on_shard = on_shard
        self._shard: Address | None = None  # the shard that is being read
        self._url = ""
        self._offset: int | None = 0  # of the next sample in it; None behind the last
        self._samples: Iterator[_Read] = iter(())
        self._fetching: tuple[Address, int, Iterator[_Read]] | None = None

    def __next__(self) -> tuple[Address, Sample]:
        while True:
            try:
                item = next(self._samples, None)
            except Exception as error:
                self._end_shard_at(error)
                continue
            if item is not None:
                offset, self._offset, sample = item
                return (self._shard, offset), sample  # type: ignore[return-value]  # a shard is open
            self._shard = None
            address, shard = self._next()
            self._begin(address, url_of(shard), 0)

    def _begin(self, shard: Address, url: str, offset: int) -> None:
        self._shard, self._url, self._offset = shard, url, offset
        if self._on_shard is not None:
            self._on_shard(url)
        self._samples = read_samples(url, offset)

    def _end_shard_at(self, error: Exception) -> None:
        shard, offset = self._shard, self._offset
        self._shard, self._offset, self._samples = None, None, iter(())
        self._handle(error, shard if offset is None else (shard, offset), None)

    def fetch(self, address: Any) -> Sample:
        shard, offset = address
        shard = as_address(shard)
        url = url_of(self._source.fetch(shard))
        # Those restored after another usually lie one behind the other: read on where the last one ended.
        if self._fetching is not None and self._fetching[:2] == (shard, offset):
            samples = self._fetching[2]
        else:
            samples = read_samples(url, offset)
        self._fetching = None
        found, following, sample = next(samples, (None, None, {}))
        if found != offset:
            raise ShardError(
                f"no sample begins at offset {offset} of {url}: the shard changed since the address was made"
            )
        if following is not None:
            self._fetching = shard, following, samples
        return sample

    def _explain(self, error: Exception, address: Any, element: object) -> None:
        add_incident(error, str(self._stage), self.describe(address, element))

    def describe(self, address: Any, element: object = None) -> Place:
        if not isinstance(address, (tuple, list)):
            return self._source.describe(address)
        shard, offset = address
        url = url_of(self._source.fetch(as_address(shard)))
        place = Place(f"the sample at offset {offset} of {url}", url, offset=offset)
        if isinstance(element, dict) and "__key__" in element:
            return Place.of_sample(element, place)
        try:
            for member in read_members(url, offset):
                key, _ = split_name(member.name)
                return Place(f'sample "{key}" of {url}', url, key, offset)
        except Exception:  # this describes another error, which must not be hidden by one of reading again
            pass
        return place

    def state_dict(self) -> dict[str, Any]:
        open_shard = self._shard is not None and self._offset is not None
        return {
            **super().state_dict(),
            "shard": self._shard if open_shard else None,
            "offset": self._offset if open_shard else 0,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._shard, self._samples = None, iter(())
        if state["shard"] is not None:
            shard = as_address(state["shard"])
            self._begin(shard, url_of(self._source.fetch(shard)), state["offset"])


def url_of(shard: Any) -> str:
    """The URL in what a list of shards yields: ``{"url": ...}``, or the URL itself.

    Raises:
        TypeError: It is neither.

    Example:
        >>> url_of({"url": "x.tar"}), url_of("x.tar")
        ('x.tar', 'x.tar')
    """
    url = shard.get("url") if isinstance(shard, dict) else shard
    if not isinstance(url, str):
        raise TypeError(f'shards are given as {{"url": "x.tar"}} or "x.tar", got {shard!r}')
    return url
