"""Look-ahead and retries of whole steps."""

import contextlib
import sys
import threading
import time
from unittest import mock

import pytest

from mpwds.errors import StreamError
from mpwds.storage.streams import ahead as streams_ahead
from mpwds.storage.streams.ahead import Threads, work_ahead
from mpwds.storage.streams.resuming import Interrupted, Retries, retrying


def ahead_threads():
    return [each for each in threading.enumerate() if each.name == "mpwds ahead"]


@pytest.mark.parametrize("threads", [1, 3, 50])
def test_results_come_in_the_order_of_the_items_and_no_thread_remains(threads):
    before = len(ahead_threads())
    done = [(item, future.result()) for item, future in work_ahead(lambda n: n * n, range(20), threads)]
    assert done == [(n, n * n) for n in range(20)]
    for thread in ahead_threads()[before:]:
        thread.join(600)


def test_items_are_taken_only_as_far_ahead_as_is_asked_for():
    taken = []
    work = work_ahead(abs, (taken.append(n) or n for n in range(100)), 3)
    next(work)
    assert len(taken) == 6
    next(work)
    assert len(taken) == 7
    work.close()


def test_an_error_comes_in_its_turn_and_later_items_after_it():
    results = []
    for _, future in work_ahead(lambda n: 6 // n, [1, 0, 2], 2):
        try:
            results.append(future.result())
        except ZeroDivisionError:
            results.append("error")
    assert results == [6, "error", 3]


def test_closing_drops_what_is_not_begun_and_does_not_wait_for_the_rest():
    begun, gate, before = [], threading.Event(), set(ahead_threads())

    def work(item):
        begun.append(item)
        gate.wait(600)

    with contextlib.closing(work_ahead(work, range(100), 1)) as ahead:
        next(ahead)
        while not begun:
            time.sleep(0.001)
    threads = set(ahead_threads()) - before
    gate.set()
    for thread in threads:
        thread.join(600)
        assert not thread.is_alive()
    assert begun == [0]


def test_what_runs_in_the_middle_of_a_submission_may_submit():
    """As garbage collection does, which closes streams."""
    threads = Threads(abs, 1)
    futures = [threads.submit(0)]

    def trace(frame, event, argument):
        if frame.f_code.co_filename in (streams_ahead.__file__, threading.__file__):
            futures.append(threads.submit(-len(futures)))
            return trace
        return None

    sys.settrace(trace)
    try:
        threads.submit(0)
    finally:
        sys.settrace(None)
    assert [future.result(60) for future in futures] == list(range(len(futures)))
    assert len(futures) > 3


def test_an_idle_thread_takes_the_next_item_before_another_is_started():
    threads = Threads(abs, 8)
    for number in range(5):
        assert threads.submit(-number).result() == number
        while threads._idle.empty():
            time.sleep(0.001)
    assert threads._running == 1
    threads.close()


def step(*results):
    return mock.Mock(side_effect=results)


def test_a_step_is_tried_again_after_pauses_that_grow(pauses):
    fails = step(OSError("one"), ConnectionError("two"), StreamError("three", "x"), "done")
    assert retrying(fails, Retries(tries=4, first_s=1.0, longest_s=2.0)) == "done"
    assert fails.call_count == 4
    assert all(low <= pause <= 2 * low for pause, low in zip(pauses, (0.5, 1, 1), strict=True))


@pytest.mark.parametrize("tries", [1, 3])
def test_the_last_error_is_raised(pauses, tries):
    fails = step(*(OSError(str(n)) for n in range(9)))
    with pytest.raises(OSError, match=f"^{tries - 1}$"):
        retrying(fails, Retries(tries=tries))
    assert (fails.call_count, len(pauses)) == (tries, tries - 1)


def interrupted():
    error = StreamError("gave up", "x")
    error.__cause__ = Interrupted("the server is silent")
    return error


@pytest.mark.parametrize("error", [FileNotFoundError("x"), ValueError("x"), interrupted()])
def test_an_error_that_another_try_would_not_mend_is_raised_at_once(pauses, error):
    fails = step(error)
    with pytest.raises(type(error)):
        retrying(fails, Retries())
    assert (fails.call_count, pauses) == (1, [])


def test_no_try_is_begun_when_the_time_is_over(pauses):
    fails = step(*[OSError("x")] * 9)
    with pytest.raises(OSError, match="x"):
        retrying(fails, Retries(tries=9, first_s=10.0, within_s=4.0))
    assert (fails.call_count, pauses) == (1, [])
