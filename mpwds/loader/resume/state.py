"""A loader's state as users save it: made from the progress of an epoch, and checked when it is loaded."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from types import CodeType, FunctionType
from typing import Any, Protocol

from mpwds.loader.resume.progress import EpochProgress, field_of, wrong
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import ONCE, Epochs, is_repetition
from mpwds.pipeline.iterable_sources import iterates_itself
from mpwds.warn import warn

VERSION = 4

_DEPTH, _MOST_PARTS = 5, 100  # what is deeper or larger is data

_IDENTITY = re.compile(r" at 0x[0-9a-f]+")
_PATH = re.compile(r"(['\"])[^'\"]*/[^'\"]*\1")


class Resumable(Protocol):
    """The attributes of a loader that its position depends on; see ``MultiLoader``."""

    dataset: Any
    workers: int
    in_order: bool
    seed: int | None
    _epoch: int


class Epoch(Protocol):
    """An epoch that has begun: of a loader's workers (``EpochProgress``), or of stages after the loader."""

    epoch: int
    running: bool
    finished: bool

    def mark_delivered(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...


class LoaderPosition:
    """The last epoch of a loader or of stages after it, and a loaded state whose epoch has not begun yet.

    Methods take the loader rather than keep it: a loader that nothing else refers to ends its workers. With
    ``stages``, the descriptions of the stages after it, the position is theirs.
    """

    def __init__(self) -> None:
        self.last: Epoch = _nothing_begun()  # the epoch that began last
        self._loaded: dict[str, Any] | None = None

    def __reduce__(self) -> Any:
        return LoaderPosition, ()  # a copy of a pipeline begins again

    def begin(self, loader: Resumable, epoch: int, progress: EpochProgress | None) -> EpochProgress:
        """Begins an epoch of a loader at a progress: by default where a state was loaded, or at its start."""
        if progress is None:
            if is_repetition(epoch):  # another pass, to make an epoch even
                return _at_start(loader, epoch)
            loaded = self.take_loaded(epoch)
            progress = _at_start(loader, epoch) if loaded is None else EpochProgress.from_dict(loaded)
            progress.loaded = progress.delivered
        self._loaded, self.last = None, progress
        _warn_of_replay(loader, progress)
        return progress

    def delivered_before(self, epoch: int) -> int:
        """The number of an epoch's elements that the program got before it begins here."""
        loaded = self._loaded
        return 0 if loaded is None or loaded["epoch"] != epoch else loaded["delivered"] + loaded["repeated"]

    def set_epoch(self) -> None:
        """Forgets the last epoch, unless it still runs: the next one was set."""
        if not self.last.running:
            self.last = _nothing_begun()

    def state_dict(self, loader: Resumable, stages: list[str] | None = None) -> dict[str, Any]:
        """The state after the last element that the program got, or at the start of the next epoch."""
        if self._loaded is not None and self._loaded["epoch"] == loader._epoch:
            return dict(self._loaded)
        last, epoch = self.last, loader._epoch
        if not last.finished:
            epoch = last.epoch
            state = last.state_dict()
        elif stages is None:
            state = _at_start(loader, epoch).state_dict()
        else:
            state = {"delivered": 0, "repeated": 0}
        kind = "MultiLoader" if stages is None else "LoaderPipeline"
        return {"version": VERSION, "kind": kind, "facts": facts_of(loader, stages), **state, "epoch": epoch}

    def load(self, loader: Resumable, state: Any, stages: list[str] | None = None) -> int:
        """Loads a state, and returns the number of the epoch that it continues."""
        facts = facts_of(loader, stages)
        # Ranks that train together are at the same batch, and some trainers save the state of rank 0 for all.
        lasting = {name: fact for name, fact in facts.items() if name != "rank"}
        check(state, "MultiLoader" if stages is None else "LoaderPipeline", lasting)
        epoch: int = field_of(state, "epoch", int)
        delivered, repeated = field_of(state, "delivered", int), field_of(state, "repeated", int)
        workers = [] if stages is not None else EpochProgress.from_dict(state).workers
        if stages is None and len(workers) != facts["workers"]:
            raise wrong("workers", f"the progress of {facts['workers']} workers", len(workers))
        saved, here = state["facts"].get("rank"), facts["rank"]
        if saved != here:  # its counts are of use
            because = f"the state is that of rank {saved}, this is rank {here}"
            state = {**state, "facts": facts}
            if stages is not None:
                state |= {"delivered": delivered + repeated, "repeated": 0, "stages": None, "replay": because}
            elif delivered and not loader.in_order and facts["workers"] > 1:
                raise ValueError(f"{because}: with in_order=False each rank saves and loads its own")
            else:
                state["workers"] = [
                    {"delivered": worker.delivered, "states": [], "stateless": because} for worker in workers
                ]
        self._loaded, self.last = dict(state), _nothing_begun()
        return epoch

    def take_loaded(self, epoch: int) -> dict[str, Any] | None:
        loaded, self._loaded = self._loaded, None
        if loaded is None or loaded["epoch"] == epoch:
            return loaded
        if loaded["delivered"]:
            warn(
                f"epoch {epoch} begins, which drops the rest of epoch {loaded['epoch']} that load_state_dict "
                "was to continue",
                UserWarning,
            )
        return None


@contextlib.contextmanager
def beginning(loader: Resumable, *positions: LoaderPosition) -> Iterator[int]:
    """Inside, the loader's next epoch begins, whose number this yields; it counts once it has begun.

    If an exception keeps it from beginning, the positions stay as they were: the state is still that of the
    epoch before or the loaded one, and the next attempt begins the same epoch at the same place.
    """
    epoch, before = loader._epoch, [dict(vars(position)) for position in positions]
    loader._epoch = epoch + 1
    try:
        yield epoch
    except BaseException:
        loader._epoch = epoch
        for position, attributes in zip(positions, before, strict=True):
            vars(position).update(attributes)
        raise


class DeliveredCounter(Iterator[Any]):
    """The last step of an epoch whose earlier steps take batches ahead: counts a batch when it is yielded."""

    def __init__(self, source: Iterator[Any], epoch: Epoch) -> None:
        self._source = source
        self._epoch = epoch

    def __next__(self) -> Any:
        try:
            batch = next(self._source)
        except StopIteration:
            self._epoch.finished = True
            raise
        self._epoch.mark_delivered()
        return batch


def _nothing_begun() -> EpochProgress:
    return EpochProgress(0, [], finished=True)


def _at_start(loader: Resumable, epoch: int) -> EpochProgress:
    return EpochProgress.at_start(epoch, max(loader.workers, 1))


def _warn_of_replay(loader: Resumable, progress: EpochProgress) -> None:
    if not progress.replayed:
        return
    dataset, reason = loader.dataset, ""
    pipeline = isinstance(dataset, DataPipeline) and not iterates_itself(dataset)
    if pipeline and (unaddressed := dataset.non_resumable_part):
        reason = f"{unaddressed} gives elements without addresses"
    for worker in progress.workers:
        reason = reason or worker.stateless
    if reason:
        warn(
            f"{reason}: the epoch is continued by running it again from its start, without the "
            f"{progress.delivered} batches that were delivered",
            UserWarning,
        )


def facts_of(loader: Any, stages: list[str] | None) -> dict[str, Any]:
    """The facts that a state depends on: under others, samples would be lost or repeated."""
    here = Context.current()
    return {
        "workers": max(loader.workers, 1),  # no worker delivers the same as one
        "in_order": loader.in_order or loader.workers < 2,
        "rank": here.rank,
        "world_size": here.world_size,
        "seed": seed_of(loader),
        "dataset": described(loader.dataset),
        "stages": stages or [],
    }


def seed_of(loader: Any) -> int | None:
    """The seed that was given to the loader, or else to its pipeline."""
    dataset, seed = loader.dataset, loader.seed
    return dataset.given_seed if seed is None and isinstance(dataset, DataPipeline) else seed


def check(state: Any, kind: str, facts: Mapping[str, Any]) -> None:
    """Raises ValueError unless a state belongs to a loader of this kind, under these facts."""
    if not isinstance(state, Mapping):
        raise ValueError(f"a loader's state is the dict that state_dict() gave, got {state!r}")
    version = state.get("version")
    if version != VERSION:
        raise ValueError(
            f"a loader's state of version {version!r}, but this mpwds reads version {VERSION}: load it "
            "with the mpwds that saved it"
        )
    if state.get("kind") != kind:
        raise ValueError(f"the state of a {state.get('kind')}, loaded into a {kind}")
    saved = field_of(state, "facts", dict)
    for name, now in facts.items():
        before = saved.get(name)
        if before != now:
            raise ValueError(
                f"{name} of the loader changed since the state was saved ({_difference(before, now)}): load "
                "it into a loader with the same arguments, or begin the epoch again"
            )


def described(dataset: Any) -> list[str]:
    """A pipeline's source, with its number of shards or elements, and its stages.

    It is the same in another process, and has no paths: shards may have moved. A function is described by its
    name, so that it can be mended, and a lambda by its code.
    """
    if not isinstance(dataset, DataPipeline) or iterates_itself(dataset):
        name = getattr(dataset, "__qualname__", type(dataset).__name__)  # of a function that makes iterators
        return [_counted(name + _lambdas_in(dataset), dataset)]
    origin, *stages = dataset.parts
    return _origin(origin) + described_stages(stages, dataset.given_epochs)


def described_stages(stages: Sequence[Any], epochs: Epochs = ONCE) -> list[str]:
    """Stages as they print, without what differs between processes, and how often they run."""
    parts = [_lasting(str(stage)) + _lambdas_in(stage.configuration) for stage in stages]
    return parts if epochs == ONCE else [*parts, str(epochs)]


def _origin(origin: Any) -> list[str]:
    if hasattr(origin, "description"):  # of a dataset elsewhere
        return list(origin.description)
    if isinstance(origin, DataPipeline):
        return described(origin)
    if not origin.parts:
        elements = getattr(origin, "elements", origin)
        return [_counted(type(elements).__name__, getattr(origin, "urls", elements))]
    mixed = ["; ".join(_origin(part)) for part in origin.parts]
    rules = [f"{name}={getattr(origin, name, None)!r}" for name in ("weights", "stop", "order", "seed")]
    return [_lasting(f"{type(origin).__name__}({', '.join(rules)}) of {mixed}")]


def _counted(name: str, elements: Any) -> str:
    try:
        return f"{name} ({len(elements)})"
    except (TypeError, NotImplementedError):
        return name


def _lambdas_in(value: Any, depth: int = _DEPTH) -> str:
    """The digest of each lambda in a stage's attributes, which all print alike."""
    if isinstance(value, FunctionType):
        digest = hashlib.blake2b(repr(_facts_of_code(value.__code__)).encode(), digest_size=4)
        return f" [code {digest.hexdigest()}]" if value.__name__ == "<lambda>" else ""
    if isinstance(value, functools.partial):
        value = [value.func, *value.args, *value.keywords.values()]
    elif is_dataclass(value):
        value = getattr(value, "__dict__", {})
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return ""
    if depth == 0 or len(value) > _MOST_PARTS:
        return ""
    return "".join(_lambdas_in(part, depth - 1) for part in value)


def _facts_of_code(code: CodeType) -> tuple[Any, ...]:
    """Describes the code of a function, without where it was written."""
    constants: list[Any] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_facts_of_code(constant))
        else:
            constants.append(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
    return code.co_code, code.co_names, constants


def _lasting(text: str) -> str:
    return _PATH.sub("'...'", _IDENTITY.sub("", text))


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, list) and isinstance(now, list):
        for number, (old, new) in enumerate(zip(before, now, strict=False), 1):
            if old != new:
                return f"part {number} was {old}, is {new}"
    return f"it was {before!r}, is {now!r}"
