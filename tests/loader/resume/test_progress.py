"""Which states of a worker are kept, and where whoever continues begins."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.loader.resume.progress import EpochProgress, Position, StreamProgress


def counted(batches, keeps, every=1):
    worker = StreamProgress()
    worker.keeps = keeps
    for number in range(1, batches + 1):
        worker.received = worker.delivered = number
        if number % every == 0:
            worker.keep(b"%d" % number)
    return worker


@given(batches=st.integers(0, 50), every=st.integers(1, 60))
def test_a_new_worker_begins_behind_the_last_batch_from_the_newest_state(batches, every):
    newest = batches - batches % every
    state = b"%d" % newest if newest else None
    assert counted(batches, 1, every).position() == Position(batches, state, newest, batches)


@settings(deadline=None, max_examples=30)
@given(batches=st.integers(0, 1000), first=st.integers(0, 1000))
def test_what_is_older_is_made_again_from_a_state_not_long_before(batches, first):
    worker = counted(batches, 32)
    position = worker.position(min(first, batches))
    assert position.at <= position.first
    assert position.first - position.at <= 1 + batches - position.first
    assert len(worker.states) <= 32


def test_progress_of_an_epoch_says_what_is_to_be_made_again():
    progress = EpochProgress(3, [counted(5, 1, 4), counted(5, 1, 9)])
    assert (progress.delivered, progress.replayed) == (10, 1 + 5)
    assert [progress.position(0), progress.position(1)] == [Position(5, b"4", 4, 5), Position(5, None, 0, 5)]


def test_a_stream_goes_on_at_the_newest_state_also_of_batches_that_were_taken_ahead():
    progress = EpochProgress.at_start(0, 2)
    progress.count(1, b"after 1")
    progress.take_ahead()
    for stream, state in [(1, b"after 2"), (0, b"other"), (1, None), (1, b"after 4")]:
        progress.count(stream, state)
    progress.streams[1].received = 3
    assert progress.position(1) == Position(3, b"after 2", 2, 1)
    progress.streams[1].received = 4
    assert progress.position(1) == Position(4, b"after 4", 4, 1)
