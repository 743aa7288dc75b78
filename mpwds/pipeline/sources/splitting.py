"""Choose among shards with a user's function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mpwds.errors import SecurityError
from mpwds.mistakes import shown
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.iterator_streams import UnseekableStream
from mpwds.pipeline.notes import arguments
from mpwds.pipeline.stream import Address, Derived, Description, Stream
from mpwds.storage.streams.patterns import check_url


@dataclass(frozen=True)
class Splitter(Filter):
    """Stage that yields the shards that ``function(shards)`` yields, each under its own address.

    For functions such as webdataset's ``split_by_node``, which yield some of the dicts ``{"url": ...}`` that
    they get, or return a list of them. The stage finds a shard's address by its dict, or by its URL if the
    function makes a new dict. A URL that was not among the shards is its own address. A restored stream runs
    the function again, and expects the same shards. With ``as_list`` the function gets a list, which it may
    slice, instead of an iterator.
    """

    function: Callable[..., Iterable[Any]]
    as_list: bool = False
    divides_among = ("ranks", "workers")  # perhaps neither: the function decides

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"a splitter must be a function that takes shards, got {shown(self.function)}")

    def __str__(self) -> str:
        return arguments(self.function)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Chosen(self, source, context)


class _Chosen(Derived[Any]):
    def __init__(self, stage: Splitter, source: Stream[Any], context: Context) -> None:
        super().__init__(source)
        self._stage = stage
        self._context = context
        try:
            self._source_at_start = source.state_dict()
        except LookupError:  # the source has no state, so this stream has none either
            self._source_at_start = {}
        self._begin()

    def _begin(self) -> None:
        self._taken: list[Any] = []  # keeps the dicts, so that no two have the same id
        self._addresses: dict[int | str, Address] = {}
        self._chosen = UnseekableStream(self._choose, self._stage, self._context)
        self._count = 0
        self._made: set[str] = set()  # URLs of the function's own

    def _choose(self) -> Iterable[Any]:
        shards = self._shards()
        return self._stage.function(list(shards) if self._stage.as_list else shards)

    def _shards(self) -> Iterator[Any]:
        for address, shard in self._source:
            self._taken.append(shard)
            self._addresses[id(shard)] = address
            self._addresses.setdefault(_url(shard), address)
            yield shard

    def __next__(self) -> tuple[Address, Any]:
        _, shard = next(self._chosen)
        self._count += 1
        return self._address(shard), shard

    def _address(self, shard: Any) -> Address:
        address = self._addresses.get(id(shard))
        if address is None:
            url = _url(shard)
            address = self._addresses.get(url, url)
            if address == url:
                self._made.add(url)
        return address

    def fetch(self, address: Any) -> Any:
        if not isinstance(address, str):
            return self._source.fetch(address)
        if address not in self._made:  # another machine may have sent the state that names it
            try:
                check_url(address, trusted=False, where=f"a state of {self._stage}")
            except SecurityError as error:
                raise SecurityError(
                    f"a state names the shard {shown(address)}, which {self._stage} has not yielded in this "
                    "run, and which runs a command: begin the epoch again, without the state"
                ) from error
        return {"url": address}

    def describe(self, address: Any, element: object = None) -> Description:
        if isinstance(address, str):
            return Description(f"shard {address}", address)
        return self._source.describe(address, element)

    def state_dict(self) -> dict[str, Any]:
        if not self._source_at_start:
            self._source.state_dict()  # raises, and names the stage without a state
        return {"count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(self._source_at_start)
        self._begin()
        for _, shard in islice(self._chosen, state["count"]):
            self._address(shard)
            self._count += 1
        if self._count < state["count"]:
            raise RuntimeError(
                f"{self._stage} chose {self._count} shards, but {state['count']} were read before: it "
                "chooses other shards each time it runs, so the pipeline cannot be restored"
            )


def _url(shard: Any) -> str:
    url = shard.get("url") if isinstance(shard, dict) else shard
    if not isinstance(url, str):
        raise TypeError(f'a splitter must yield shards, {{"url": "x.tar"}}, got {shown(shard)}')
    return url
