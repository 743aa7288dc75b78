"""The life of a loader's workers, and what trainer and worker say to each other.

Between the trainer and each worker there are

* a **channel** (``messages.channel``): a socket pair, so it has no name and leaves no file;
* a **handover**: a second one for descriptors of memory segments, so that Ctrl-C cannot interrupt receiving;
* a **bell** (``sharedmem.arena.EventFd``): the trainer rings it when a block of the arena is free again;
* a **lifeline**: a pipe of which only the trainer holds the writing end. Nothing is ever written. When
  the trainer is gone, however it went, the kernel kills the worker (``processes.processes``);
* a **status page** (``stats.counters``): the worker's counters, its shard and, on request, its Python stack.
  The trainer reads it at any time; no message is about statistics.

*Start.* The trainer makes these and starts the processes, side by side. Each gets the dataset through a
memory segment that all workers map (a fork of the trainer has it already), sends ``ready``, and waits for
commands. A worker that cannot begin, as a rule because of its dataset, sends an ``error`` that belongs to no
generation instead.

*Run.* ``start`` names the epoch and a generation, a number that grows with every ``start``. The worker
iterates its dataset and sends a ``batch`` for each element: small ones whole, in the payload; others as
the number of a block that holds them. Before the first block of a memory segment comes a
``segment``, whose descriptor is handed over. Sequence numbers count an epoch's batches, from 0.

*State.* If the dataset is a pipeline with addresses, some batches come with the state of its stream after
them, in the field ``state`` (bytes, ``resume.progress.pack_state``): about once a second, for at most 1 % of
the worker's time. A string in that field says, once, why there is none. The trainer keeps for each worker the
last state whose batch was delivered, and the number delivered (``resume.progress``), for its ``state_dict``.

*Streams.* ``start`` names the streams that the worker carries, in the order of their turns: by default one,
of the worker's own number. Batches count by stream, and each stream has its ``end``. Where a worker has one
stream at a time, the next ``start`` of the same generation gives it another. With ``after_end``, ``start``
says what follows a stream's end: its batches go on, with a field ``repeats``.

*Resume.* ``start`` says where each stream begins: its state, the number of batches before that (``at``; the
epoch's start is 0 and no state), and the number of the first batch to send (``first``). The worker makes the
batches from ``at`` to ``first`` and drops them. ``end`` counts all batches of the stream. Where stages in the
trainer held parts of batches, ``first`` is the earliest of these: the trainer keeps those it needs and drops
the others that were ``delivered`` before (``loader.stages``). Streams send these before they take turns.

*Restart.* With ``on_worker_death="restart"`` the trainer first reads all that a dead worker had sent. Then it
starts a new process, with another channel, arena and status page. That gets a ``start`` of the running
generation with the last state, and ``first`` after the last batch received, so no batch is delivered twice.
Views of the dead worker's arena stay valid because they hold its mapping.

*Tasks.* The workers of a ``DataLoader`` (``dataloader.task_worker``) do not iterate by themselves: each
``task`` names what to fetch, an index or a batch of them, and is answered by a ``batch`` or, if fetching
fails, by ``failed``, which carries the exception and ends nothing. Tasks that do not fit into the channel are
queued in the trainer. The next ``start`` or ``stop`` drops those that were not begun. A worker whose iterable
dataset is exhausted sends ``end`` in place of an answer, and does not answer later tasks.

*Drain.* ``end`` carries the number of batches sent, for the trainer to compare, and tells whether the worker
was ``idle``, without a shard, of which the trainer warns once. The worker keeps its arena.

*Stop.* The trainer leaves an epoch early by sending ``stop``. The worker looks for it every few milliseconds
between batches (or tasks) and while it waits for a block. The trainer does not wait for that: the next epoch
discards messages of older generations and hands their blocks back. Only the newest command counts: one that
does not fit into the channel, because the worker waits for the trainer to read, is replaced by the next.

*Fail.* ``error`` carries an exception of the dataset; it is the last message of its generation. The trainer
closes all workers, then raises it; a ``DataLoader`` raises it first. An error of an epoch that was left early
only causes a warning.

*Close.* The trainer closes the channels. A worker that waits, sends or finishes a batch finds its channel
closed, closes its iterator and exits. The trainer kills a worker that still runs after ``GRACE_S``.

*Pinned memory.* A device may still read a block that the trainer no longer holds (``sharedmem.lease``).
Dropping the last view made a fence; once the device has passed it, the next receive hands the block back.
While the trainer waits for messages, it checks this every millisecond: the worker may need just this block.

*Die.* The trainer waits on a worker's channel **and** on its process. When the process ends it reads what
the worker had sent; if that does not finish the epoch, the worker died. Its exit status is unknown if
something else in the trainer has reaped it. The fork server (``launching.forkserver``) reaps its workers and
reports their exit statuses; they end if it does.

Who may block on what: a worker blocks on its channel (reading when idle, writing when the trainer lags) and
on its bell *together with* its channel. The trainer blocks on a worker's channel together with its process,
and on a device that still reads one of that worker's blocks; on the fork server's answers; on other ranks
inside a round (``loader.even``); and for about ``GRACE_S`` when it closes. A block's finalizer blocks on
nothing. The end of a pinned segment waits for devices that read it, ``PATIENCE_S`` at the most
(``sharedmem.cuda``). While workers are started or closed, Ctrl-C waits; where a finalizer closes them, and
Python would swallow it, it is kept and raised at the next batch.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Iterator
from types import FunctionType, MemberDescriptorType
from typing import Any

from mpwds import pickling
from mpwds.errors import FULL, MpwdsError, WorkerTraceback, shorten
from mpwds.nest import PLAIN_OR_INT
from mpwds.pipeline.error_context import notes_of

GRACE_S = 0.5
"""How long a worker may take to end before it is killed."""

INLINE_NBYTES = 32 << 10
"""Batches up to this size ride in the payload: a block's round trip costs more than the copy."""

BEFORE_ANY = 0
"""The generation of an error that comes before the first epoch; epochs count from 1."""

START = "start"
STOP = "stop"
TASK = "task"

READY = "ready"
SEGMENT = "segment"
BATCH = "batch"
FAILED = "failed"
END = "end"
ERROR = "error"

ARRAY, TENSOR, TENSOR_WITH_GRADIENT = b"atg"
"""Kinds of arrays in the field ``kinds`` of a batch; without it, all become the loader's ``output``."""


def describe_error(error: BaseException) -> dict[str, Any]:
    """The fields of a message with ``error``; attributes that cannot be pickled are left out."""
    shorten(error, keep_first=False)
    text = "".join(traceback.format_exception(error))
    if sys.version_info < (3, 11):  # which does not print notes
        text += "".join(f"{note}\n" for note in notes_of(error))
    summary = "".join(traceback.format_exception_only(error)).strip()
    arguments = list(error.args)
    if isinstance(error, OSError) and len(arguments) == 2 and error.filename is not None:
        arguments.append(error.filename)  # which args leaves out
    is_plain = set(map(type, arguments)) <= PLAIN_OR_INT and all(map(_fits, arguments))
    return {
        "exception": _pickled(error),
        "summary": summary,
        "traceback": text,
        "type": type(error).__qualname__ if is_plain else "",
        "arguments": arguments if is_plain else [],
        "notes": [str(note) for note in notes_of(error)],
    }


def _fits(argument: Any) -> bool:
    """True if msgpack can hold a plain value: an integer has 64 bits."""
    return type(argument) is not int or -(2**63) <= argument < 2**64


def revive_error(fields: dict[str, Any], where: str) -> BaseException:
    """The exception that was passed to :func:`describe_error`, with its traceback in ``where`` as its cause.

    If its type or arguments cannot be pickled, it is a plain :class:`MpwdsError` with the same text.
    """
    error = _unpickled(fields["exception"]) or MpwdsError(fields["summary"])
    return with_cause(error, fields, where)


def with_cause(error: BaseException, fields: dict[str, Any], where: str) -> BaseException:
    """An error with the worker's traceback, from the fields of its message, as its cause."""
    error.__cause__ = WorkerTraceback(f"in {where}; {FULL}=1 shows all frames:\n\n{fields['traceback']}")
    return error


def _pickled(error: BaseException) -> bytes | None:
    def dumps(value: Any) -> bytes | None:
        try:
            data = pickling.dumps(value)
            pickle.loads(data)
        except Exception:
            return None
        return data

    if type(error).__reduce__ is not BaseException.__reduce__:
        return dumps(error)
    held = vars(error), {name: getattr(error, name) for name in _slots(type(error)) if hasattr(error, name)}
    attributes, slots = (
        {name: value for name, value in each.items() if dumps(value) is not None} for each in held
    )
    return dumps((type(error), error.args, attributes, slots))


def _slots(kind: type) -> Iterator[str]:
    for each in kind.__mro__:
        if "__slots__" in vars(each):
            yield from (name for name, value in vars(each).items() if isinstance(value, MemberDescriptorType))


def _unpickled(data: bytes | None) -> BaseException | None:
    try:
        content = pickle.loads(data) if data is not None else None
        if isinstance(content, tuple):
            cls, arguments, attributes, slots = content
            # Not as pickle would: a user's __init__ may take other arguments than it hands on to its base.
            own_init = isinstance(cls.__init__, FunctionType)
            content = cls.__new__(cls, *arguments) if own_init else cls(*arguments)
            vars(content).update(attributes)
            for name, value in slots.items():
                object.__setattr__(content, name, value)
            str(content)  # which may need what could not be pickled
    except Exception:
        return None
    return content if isinstance(content, BaseException) else None
