"""Jobs of several ranks, which run one after the other; their datasets; and batches and states to compare."""

import itertools
import json
import random

import numpy as np

from mpwds import DataPipeline, merge_states

STREAMS = 12
RANKS = (1, 2, 3, 4, 6, 12)
MODES = ("drop", "pad", "wrap")


def noisy(number):
    return number + (random.random() + float(np.random.random())) / 2


def left_out_at_random(numbers):
    return (number for number in numbers if random.random() < 0.9)


def of_other_lengths(*stages):
    """Streams of 5 to 13 batches, of a pipeline whose length is not known."""
    numbers = DataPipeline(range(300)).flatmap(lambda n: [n] * (1 + n % STREAMS % 3))
    return numbers.select(lambda n: n % 7 != 3).shuffle(20).compose(*stages).batched(4)


def as_lists(elements, most=None):
    """The elements of an epoch, or the first of them, so that they can be compared."""
    return list(map(_as_list, itertools.islice(elements, most)))


def _as_list(element):
    if isinstance(element, (list, tuple)):
        return list(map(_as_list, element))
    return np.asarray(element).tolist()


def as_json(state):
    return json.loads(json.dumps(state))


def continued(loader, state):
    """The loader, which goes on where the state was saved."""
    loader.load_state_dict(state)
    return loader


def in_turn(parts):
    """The batches of a job, of those of its ranks."""
    return [part[number] for number in range(max(map(len, parts))) for part in parts if number < len(part)]


def run_ranks(make, ranks, steps=None, state=None, workers=0):
    """What each rank of a job delivers in so many steps, and the ranks' states.

    ``make(rank, ranks, workers)`` makes a loader.
    """
    parts, states = [], []
    for rank in range(ranks):
        with make(rank, ranks, workers) as loader:
            if state is not None:
                loader.load_state_dict(state)
                assert json.dumps(loader.state_dict())  # also before it is iterated
            parts.append(as_lists(loader, steps[rank] if isinstance(steps, list) else steps))
            states.append(loader.state_dict())
    return parts, states


def disturbed(make, whole, draw, numbers_of_ranks=RANKS, round_trip=as_json):
    """An epoch that goes on with other ranks and workers after random batches; and the state at its end.

    The state of a rank may be missing. ``whole`` is what comes if there is no change.
    """
    got, state = [], None
    while len(got) < len(whole):
        left = len(whole) - len(got)
        ranks = draw.choice([n for n in numbers_of_ranks if len(got) % n == 0 and left % n == 0])
        steps = draw.choice([0, min(left, draw.randrange(1, 40)) // ranks, left // ranks])
        workers = draw.choice([0, 0, 0, 1, min(3, STREAMS // ranks)])
        parts, states = run_ranks(make, ranks, steps, state, workers)
        got += in_turn(parts)
        if ranks > 1 and draw.random() < 0.3:
            states.pop(draw.randrange(ranks))
        state = round_trip(merge_states(states))
    return got, state
