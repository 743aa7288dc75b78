"""Ctrl-C while it must not act, and in finalizers."""

import signal

import pytest

from mpwds.interrupts import deferring, interrupts_deferred, raise_deferred


def test_an_interrupt_takes_effect_at_the_end_of_the_block_and_later_ones_at_once():
    before = signal.getsignal(signal.SIGINT)
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_deferred():
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    assert (done, signal.getsignal(signal.SIGINT)) == ([1], before)
    with interrupts_deferred():
        pass


def test_an_interrupt_in_a_finalizer_is_raised_once_where_the_program_can_be_interrupted():
    with deferring():
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        raise_deferred()
    raise_deferred()
