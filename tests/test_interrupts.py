"""Signals while they must not act."""

import ctypes
import signal
import threading

import pytest

from mpwds.interrupts import deferring, interrupts_deferred, raise_deferred, uninterrupted


def test_an_interrupt_takes_effect_at_the_end_of_the_block_and_later_ones_at_once():
    before = signal.getsignal(signal.SIGINT)
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_deferred():
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    assert (done, signal.getsignal(signal.SIGINT)) == ([1], before)


def test_an_interrupt_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_in_a_finalizer_is_raised_once_where_the_program_can_be_interrupted():
    with deferring():
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        raise_deferred()
    raise_deferred()


def test_a_call_that_a_signal_would_end_halfway_runs_to_its_end():
    system, heard = ctypes.CDLL(None), []

    def wait():
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        returned.append(system.poll(None, 0, 200))

    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
    try:
        returned = []
        wait()
        uninterrupted(wait)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (returned, heard) == ([-1, 0], [1, 1])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_signals_that_end_a_program_end_such_a_call():
    system, over, returned = ctypes.CDLL(None), threading.Event(), []

    def interrupt():
        while not over.wait(0.02):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    before = signal.signal(signal.SIGINT, lambda *_: None)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        uninterrupted(lambda: returned.append(system.poll(None, 0, 60_000)))
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert returned == [-1]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
