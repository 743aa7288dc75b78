"""The work of ``mpwds proc``: one job for each shard to write, done alike in any process."""

from __future__ import annotations

import ast
import inspect
import os
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from typing import Any, NamedTuple

import typer

from mpwds.cli.jobs import add_up, noted
from mpwds.cli.journal import digest, resume_or_start
from mpwds.cli.options import Distributed, ShardByShard
from mpwds.cli.outputs import is_own, shard_names
from mpwds.cli.shards import shard_urls
from mpwds.loader.resume.description import fingerprint
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.error_context import add_note, notes_of
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.iterable_sources import iter_elements
from mpwds.pipeline.quarantine import quarantine
from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.pipeline.stream import Stage
from mpwds.storage.tar.names import is_meta
from mpwds.storage.writing.encoders import encode_once
from mpwds.storage.writing.tar_writer import TarWriter
from mpwds.viewing.wording import printable

_WORKERS = 4


class Job(NamedTuple):
    """A shard to write: that of input ``shard`` in round ``round``."""

    shard: int
    round: int
    output: str


class Processing:
    """What a command does with its shards. Called with a job, it writes the shard.

    A job is a worker of a dataset of all inputs that has as many workers as inputs. So its random numbers
    depend on seed, input and round alone. ``stages`` are the user's: stages, or a function of a dataset. What
    they add to ``counts`` is part of the figures.
    """

    def __init__(
        self, stages: Any, to: ShardByShard, counts: Counter[str], repeat: int = 1, seed: int = 0
    ) -> None:
        self.to = to
        self.urls = shard_urls(to.shards)
        self.rounds = repeat
        self.seed = seed
        self._counts = counts
        handler = make_handler(to.on_error)
        self._handler = handler if handler is reraise_exception else _CountingHandler(handler, counts)
        with noted("in building a dataset with these stages"):
            self.dataset = build(stages, self.urls, self._handler)

    def __call__(self, job: Job) -> Iterator[dict[str, int]]:
        context = Context(job.round, self.seed, worker=job.shard, workers=len(self.urls), owns_process=True)
        samples = size = 0
        before = dict(self._counts)
        with TarWriter(job.output, encoder=_encoded, keep_meta=True, mtime=0, replace=False) as sink:
            for sample in iter_elements(self.dataset.stream(context)):
                try:
                    size += sink.write(_of_round(sample, job.round))
                    samples += 1
                except ValueError as error:
                    add_note(error, f"in writing {job.output} from {self.urls[job.shard]}")
                    if sink.discarded or not self._handler(error):
                        raise
        more = {name: count - before.get(name, 0) for name, count in self._counts.items()}
        yield {"samples": samples, "bytes": size, **more}

    def run(self, over: Distributed, code: list[str]) -> Counter[str]:
        """Writes the shards that are left and this process's, and adds up their figures.

        If the ``code`` of the stages has changed, it is another run.
        """
        to, workers, engine = self.to, self.to.jobs, over.on
        if workers is None:
            workers = 0 if engine else _WORKERS
        if any(map(is_own, (to.output, *self.urls))):
            workers, engine = 0, None
        given = {"shards": self.urls, "rounds": self.rounds, "seed": self.seed}
        run = {**given, "stages": fingerprint(self.dataset), "code": digest(code)}
        inputs = self.urls * self.rounds
        names = shard_names(to.output, len(inputs))
        count = len(self.urls)
        jobs = [Job(number % count, number // count, name) for number, name in enumerate(names)]
        how: dict[str, Any] = {"in_order": False, "on_worker_death": "restart", "start_method": "forkserver"}
        with resume_or_start(
            to.output, names, run, to.force, to.journal, part=over.part, inputs=inputs
        ) as done:
            return add_up(over.own(jobs), done, self, workers, engine, **how)


class _CountingHandler:
    """A handler that counts the errors it gets as ``skipped``."""

    __name__ = "skip"  # what notes call it: the user gave --on-error skip or a file

    def __init__(self, handler: Handler, counts: Counter[str]) -> None:
        self._handler = handler
        self._counts = counts

    def __call__(self, error: Exception) -> Any:
        self._counts["skipped"] += 1
        return self._handler(error)


def make_handler(on_error: str) -> Handler:
    if on_error.endswith(".jsonl"):
        return quarantine(on_error, budget=None)
    if on_error not in ("stop", "skip"):
        raise typer.BadParameter(f"--on-error {on_error}: expected stop, skip or the name of a .jsonl file")
    return reraise_exception if on_error == "stop" else _tell_and_skip


def _tell_and_skip(error: Exception) -> bool:
    text = ", ".join([f"skipped: {error!r}", *notes_of(error)])
    os.write(sys.stderr.fileno(), f"{printable(' '.join(text.split()))}\n".encode())  # whole, beside others
    return True


def own_code(module: str) -> list[str]:
    """The code of an imported module, and of the modules of its folder that it imports, also in functions.

    Comments and the layout of the source do not count, and neither do installed packages.
    """
    start = os.path.realpath(sys.modules[module].__file__ or "")
    root = os.path.dirname(start)
    for _ in range(module.count(".") + os.path.basename(start).startswith("__init__.")):
        root = os.path.dirname(root)
    is_installed = root in map(os.path.realpath, map(sysconfig.get_path, ("purelib", "platlib", "stdlib")))
    code: dict[str, str] = {}
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path in code or not path.endswith(".py") or not os.path.isfile(path):
            continue
        with open(path, "rb") as file:
            source = file.read()
        code[path] = repr(source)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # importing it has told them
                tree = ast.parse(source)
        except (SyntaxError, ValueError):  # only an import that may fail names such a file
            continue
        code[path] = ast.dump(tree)
        for folder, name in _imports(tree, root, os.path.dirname(path)):
            first, *_ = names = name.split(".")
            if first == "mpwds" or (is_installed and first != module.partition(".")[0]):
                continue
            for end in range(1, len(names) + 1):
                place = os.path.join(folder, *names[:end])
                waiting += [f"{place}.py", os.path.join(place, "__init__.py")]
    return [code[path] for path in sorted(code)]


def _imports(tree: ast.AST, root: str, folder: str) -> Iterator[tuple[str, str]]:
    """The names that a module in ``folder`` imports, each with the folder in which it would be."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((root, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = os.path.join(folder, *[".."] * (node.level - 1)) if node.level else root
            for alias in node.names:
                yield os.path.normpath(above), ".".join(filter(None, (node.module, alias.name)))


def build(stages: Any, urls: list[str], handler: Handler) -> DataPipeline:
    """The dataset of the shards with the user's stages.

    The ``handler`` decides about samples. A shard that is damaged, or cannot be read, is always an error: the
    rest of its samples would be missing.
    """
    dataset = WebDataset(urls, empty_check=False)
    built: Any
    stages = stages.pipeline if isinstance(stages, DataPipeline) else stages
    if isinstance(stages, Stage) or inspect.isgeneratorfunction(stages):
        stages = [stages]
    if isinstance(stages, (list, tuple)):
        built = dataset.compose(*stages)
    elif callable(stages):
        try:
            built = stages(dataset)
        except Exception as error:
            raise ValueError(
                f"stages(dataset) failed with {error!r}; if it is a function of a sample, write "
                "stages = [mpwds.map(f)]"
            ) from error
    else:
        raise ValueError(f"stages must be a list of stages or a function of a dataset, got {stages!r}")
    if not isinstance(built, DataPipeline):
        raise ValueError(f"stages(dataset) returned {type(built).__name__}, expected a dataset")
    if handler is reraise_exception:
        return built
    handled = built.compose()
    handled.pipeline = [
        given if part.reads_shards else _handled(given, handler)
        for given, part in zip(built.pipeline, built.parts, strict=True)
    ]
    return handled


def _handled(part: Any, handler: Handler) -> Any:
    """A stage that uses this handler, unless the user gave it one."""
    if is_dataclass(part) and getattr(part, "handler", None) is reraise_exception:
        return replace(part, handler=handler)  # type: ignore[type-var]
    return part


def _encoded(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample's fields as bytes. What no stage has decompressed is not compressed again."""
    return {
        name: value if name == "__key__" else encode_once(name, value)
        for name, value in sample.items()
        if name == "__key__" or not is_meta(name)
    }


def _of_round(sample: Any, number: int) -> dict[str, Any]:
    if not isinstance(sample, dict):
        raise ValueError(f"stages must yield samples, dicts with __key__, got {type(sample).__name__}")
    if number and isinstance(sample.get("__key__"), str):
        return {**sample, "__key__": f"{sample['__key__']}-{number}"}
    return sample
