"""``mpwds shuffle`` on many machines: in two rounds of groups, each of which one machine shuffles.

A group of the first round reads some of the shards, and deals its samples to the groups of the second round
at random. A group of the second round reads what it got, shuffles it, and writes some of the output's shards.
In between are temporary shards beside the output. With n shards, a round has about the square root of n
groups. Every order of the samples is equally likely, as in a shuffle on one machine.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mpwds.cli.jobs import add_up
from mpwds.cli.journal import digest, hidden_beside, resume_or_start, versions_of
from mpwds.cli.options import Distributed, Part, Resharding, Spilling
from mpwds.cli.outputs import is_stream, refuse_own_input, shard_names, which_exist
from mpwds.cli.reshard.ordering import bucket_shuffle, temporary_directory
from mpwds.cli.reshard.raw_samples import OpenFiles, RawSample, read_raw_samples
from mpwds.cli.reshard.sink import ShardSink
from mpwds.cli.shards import shard_urls
from mpwds.errors import MpwdsError, ShardError, WrongArgument
from mpwds.storage.streams.urls import is_local, local_path, without_credentials


class ShardGroup(NamedTuple):
    """Shards whose samples are shuffled together. Each of the ``outputs`` gets an equal share of them.

    In the first round a group of the second is named as often as it has shards to write.
    """

    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]


@dataclass(frozen=True)
class GroupShuffle:
    """Called with a group, it writes the outputs. Other runs of the group write the same bytes."""

    to: Resharding
    memory: int
    directory: str
    seed: int

    def __call__(self, group: ShardGroup) -> Iterator[dict[str, int]]:
        read = samples = nbytes = 0
        draw = random.Random(f"{self.seed}/{group.name}").random

        def ranked() -> Iterator[tuple[float, RawSample]]:
            nonlocal read
            for sample in read_raw_samples(group.inputs, files):
                read += 1
                yield draw(), sample

        def output_of(ranked: tuple[float, RawSample]) -> str:
            return group.outputs[int(ranked[0] * len(group.outputs))]

        with OpenFiles() as files:
            in_order = bucket_shuffle(ranked(), self.memory, self.directory)
            shares = itertools.groupby(in_order, output_of)
            share = next(shares, None)
            for output in dict.fromkeys(group.outputs):
                with ShardSink(replace(self.to, output=output, force=True), sync=True) as sink:
                    if share is not None and share[0] == output:
                        for _, sample in share[1]:
                            sink.add(sample)
                        share = next(shares, None)
                samples += sink.samples
                nbytes += sink.bytes
        if samples != read:
            raise ShardError(f"{read} samples were read, but {samples} written")
        yield {"samples": samples, "bytes": nbytes}


class Rounds(NamedTuple):
    """The groups of both rounds, the shards between them, and those of the output."""

    first: Sequence[ShardGroup]
    second: Sequence[ShardGroup]
    between: Sequence[str]
    outputs: Sequence[str]


def plan_rounds(urls: Sequence[str], output: str, run: str) -> Rounds:
    """Plans a shuffle to as many shards as it reads; ``run`` distinguishes its temporary shards.

    Example:
        >>> rounds = plan_rounds(["a.tar", "b.tar", "c.tar", "d.tar", "e.tar"], "out-%d.tar", "7")
        >>> [group.inputs for group in rounds.first]
        [['a.tar', 'd.tar'], ['b.tar', 'e.tar'], ['c.tar']]
        >>> [group.outputs for group in rounds.second]
        [['out-0.tar', 'out-1.tar'], ['out-2.tar', 'out-3.tar'], ['out-4.tar']]
        >>> rounds.second[2].inputs[0]
        '.out-.tar.7-000000-000002.tar'
    """
    outputs = shard_names(output, len(urls))
    size = max(1, math.isqrt(len(urls)))
    written = [outputs[begin : begin + size] for begin in range(0, len(outputs), size)]
    parts = [Part(number, len(written)).of(urls) for number in range(len(written))]
    between = [
        [hidden_beside(output, f".{run}-{giver:06d}-{taker:06d}.tar") for taker in range(len(written))]
        for giver in range(len(parts))
    ]
    first, second = [], []
    for number, (part, names, shards) in enumerate(zip(parts, between, written, strict=True)):
        as_often = [name for name, of_taker in zip(names, written, strict=True) for _ in of_taker]
        first.append(ShardGroup(f"first/{number}", part, as_often))
        second.append(ShardGroup(f"second/{number}", [row[number] for row in between], shards))
    return Rounds(first, second, [name for names in between for name in names], outputs)


def shuffle_in_rounds(to: Resharding, spilling: Spilling, seed: int, over: Distributed) -> Counter[str]:
    """Shuffles shards on several machines, as far as it is this process's part; returns the figures.

    A part asks for the versions of all shards, not of its own alone as those of other commands do: in the
    second round it reads temporary shards that were made of all. Their names depend on all versions, so none
    is taken that was left by a run with other contents.
    """
    urls = shard_urls(to.shards)
    refuse_own_input(urls, to.output)
    if to.maxcount or to.maxsize:
        raise WrongArgument("--maxcount and --maxsize: --part and --on write as many shards as they read")
    if any(map(is_stream, urls)):
        raise WrongArgument("--part and --on read each shard by itself, and a stream has none: name shards")
    given = {"seed": seed, "duplicates": to.duplicates.value}
    run = {"shards": list(urls), "inputs": digest(versions_of(urls)), **given}
    rounds = plan_rounds(urls, to.output, digest(sorted(run.items()))[:8])
    work = GroupShuffle(to, spilling.memory, spilling.tmp or temporary_directory(to.output), seed)
    goes_on = functools.partial(resume_or_start, to.output, rounds.outputs, run, part=over.part)

    def shuffle(groups: Sequence[ShardGroup], done: set[str], what: str) -> Counter[str]:
        """Shuffles those of the groups that are this process's and whose outputs are not complete."""
        outputs = operator.attrgetter("outputs")
        return add_up(over.own(groups), done, work, 0, over.on, what, outputs)

    with goes_on(force=to.force):
        if len(list(which_exist(rounds.outputs))) < len(rounds.outputs):
            shuffle(rounds.first, set(which_exist(rounds.between)), "round 1 of 2")
            there = set(which_exist(rounds.between))
            if missing := len(rounds.between) - len(there):
                raise MpwdsError(
                    f"the first round is not complete: {missing} of its {len(rounds.between)} temporary "
                    "shards are missing. Repeat this command when all other parts have ended"
                )
    with goes_on(force=False):  # parts that began at the same moment may have another seed
        done = set(which_exist(rounds.outputs))
        figures = shuffle(rounds.second, done, "round 2 of 2")
        if len(list(which_exist(rounds.outputs))) == len(rounds.outputs):
            _remove(rounds.between)
    return figures


def _remove(names: Sequence[str]) -> None:
    """Removes temporary shards; names those that are not local on standard error."""
    for name in filter(is_local, names):
        with contextlib.suppress(FileNotFoundError):  # another part removes them, too
            os.unlink(local_path(name))
    if left := list(which_exist([name for name in names if not is_local(name)])):
        first, last = without_credentials(left[0]), without_credentials(left[-1])
        print(f"{first} to {last} are not needed any more: remove them", file=sys.stderr)
