"""The stream of every stage that takes elements apart: the parts of each, in order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from mpwds.pipeline.handled import Handled
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.stream import Address, Description, Stream, as_address, reached_end

Take = Callable[[int], Any]
"""Gives a part by its index, ``reached_end`` behind the last."""


class Parts(Handled):
    """The stream of the parts of each element; a part's address is (the element's address, its index).

    An element that cannot be taken apart goes to the handler, and so does one whose parts cannot be made
    from some part on: those before it have been given then.

    Args:
        source: Stream that gives the elements.
        stage: The stage; ``str(stage)`` names it in errors.
        name: What a part is called in errors: ``row``.
        handler: What to do about an exception.
    """

    random_access: ClassVar[bool] = True
    """Whether the parts of an element can be taken in any order; else only in ascending order."""

    def __init__(
        self, source: Stream[Any], stage: object, name: str, handler: Handler = reraise_exception
    ) -> None:
        super().__init__(source, stage, handler)
        self._name = name
        self._address: Address = ()
        self._element: Any = None
        self._take: Take | None = None
        self._index = 0
        self._fetched: tuple[Address, int, Take] | None = None

    @abstractmethod
    def _open(self, address: Address, element: Any) -> Take:
        """The parts of an element."""

    def __next__(self) -> tuple[Address, Any]:
        while True:
            if self._take is None:
                self._address, self._element = self._next()
                self._index = 0
            address, index = self._address, self._index
            try:
                if self._take is None:
                    self._take = self._open(address, self._element)
                part = self._take(index)
            except Exception as error:
                element = self._element
                self._close()
                self._handle(error, address, element)
                continue
            if part is not reached_end:
                self._index = index + 1
                return (address, index), part
            self._close()

    def fetch(self, address: Any) -> Any:
        whole, index = address
        whole = as_address(whole)
        fetched, self._fetched = self._fetched, None
        if fetched is not None and fetched[0] == whole and (self.random_access or fetched[1] < index):
            take = fetched[2]
        else:
            take = self._opened(whole, self._source.fetch(whole))
        try:
            part = take(index)
        except Exception as error:
            self._explain(error, whole, None)
            raise
        if part is reached_end:
            raise LookupError(f"in {self._stage}: there is no {self.describe(address)}")
        self._fetched = (whole, index, take)
        return part

    def describe(self, address: Any, element: object = None) -> Description:
        whole, index = address
        return self._source.describe(whole, element).row_of(f"{self._name} {index}")

    def state_dict(self) -> dict[str, Any]:
        under_way = self._take is not None
        return {
            **super().state_dict(),
            "held": [self._address] if under_way else [],
            "index": self._index if under_way else 0,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._close()
        if state["held"]:
            self._address = as_address(state["held"][0])
            self._element = self._source.fetch(self._address)
            self._take = self._opened(self._address, self._element)
            self._index = state["index"]

    def _close(self) -> None:
        self._take, self._element = None, None

    def _opened(self, address: Address, element: Any) -> Take:
        try:
            return self._open(address, element)
        except Exception as error:
            self._explain(error, address, element)
            raise
