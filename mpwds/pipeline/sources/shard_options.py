"""How the samples of one shard are read: what the stage says, and what rides on the shard itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mpwds.pipeline.handlers import Handler
from mpwds.pipeline.sources.grouping import split_name


@dataclass(frozen=True)
class ShardOptions:
    """What to read of a shard and what to add to its samples.

    Args:
        select: A function of a member's name: whether to read it.
        rename: A function of a member's name: the name to go by. It is called first.
        extra: Fields that each sample gets.
        handler: What to do about errors in this shard; the stage's where ``None``.
    """

    select: Callable[[str], Any] | None = None
    rename: Callable[[str], str] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    handler: Handler | None = None

    def of(self, shard: object) -> ShardOptions:
        """The options for a shard: these, and what a dataset specification has put under ``"options"``.

        Args:
            shard: What a list of shards yields.

        Example:
            >>> shard = {"url": "x.tar", "options": {"extensions": {"jpg": "nrm.jpg"}, "meta": {"source": 3}}}
            >>> options = ShardOptions().of(shard)
            >>> options.extra, options.rename("0017.nrm.jpg"), options.rename("0017.json")
            ({'source': 3}, '0017.jpg', '')
        """
        given = shard.get("options") if isinstance(shard, dict) else None
        if not given:
            return self
        select, rename = self.select, self.rename
        if "extensions" in given:
            rename = _Only(given["extensions"], select, rename)
            select = bool
        return ShardOptions(select, rename, {**self.extra, **given.get("meta", {})}, given.get("handler"))

    @property
    def reading(self) -> dict[str, Any]:
        """The arguments for ``read_samples``."""
        given = {"select": self.select, "rename": self.rename}
        return {name: function for name, function in given.items() if function is not None}


class _Only:
    """Renames the members that have one of some extensions; of others it makes an empty name."""

    def __init__(
        self,
        extensions: Mapping[str, str],
        select: Callable[[str], Any] | None,
        rename: Callable[[str], str] | None,
    ) -> None:
        self._new_names = {old: new for new, old in extensions.items()}
        self._select = select
        self._rename = rename

    def __call__(self, name: str) -> str:
        if self._rename is not None:
            name = self._rename(name)
        if self._select is not None and not self._select(name):
            return ""
        key, extension = split_name(name)
        new = self._new_names.get(extension) if key else None
        return f"{key}.{new}" if new is not None else ""
