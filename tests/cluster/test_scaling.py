"""How many servers a fleet has, by what trainers tell: simulated trainers, readings instead of seconds."""

import math
from typing import ClassVar

import pytest

from mpwds.cluster.actors import CLIENT_KEYS, SERVER_KEYS, Directory, TrainerFigures
from mpwds.cluster.scaling import Scaling

URLS = [f"tcp://server-{number}:1" for number in range(100)]


class Trainers:
    """Trainers that need ``need`` servers' work; each reading is five seconds later."""

    def __init__(self, need, count=1):
        self.need = need
        self.count = count
        self._figures = TrainerFigures(0.0, 0.0, 0.0, 0.0, ())

    def read(self, servers, used=None):
        waiting = max(0.0, 1 - servers / self.need)
        idle = max(0.0, 1 - self.need / servers)
        steps = (5 * waiting, 5.0, 5 * servers * idle, 5.0 * servers)
        total = (before + step for before, step in zip(self._figures, steps, strict=False))
        self._figures = TrainerFigures(*total, tuple(URLS[: used or servers]))
        return {f"rank {number}": self._figures for number in range(self.count)}


def run(scaling, trainers, servers, readings=400):
    """The number of servers at each reading."""
    numbers = []
    for _ in range(readings):
        servers = scaling.decide(servers, trainers.read(servers))
        numbers.append(servers)
    return numbers


@pytest.mark.parametrize("need", [0.3, 1.0, 1.04, 1.5, 2.0, 7.9, 40.0])
@pytest.mark.parametrize("begin", [1, 3, 50])
def test_it_settles_at_what_trainers_need_with_a_little_to_spare(need, begin):
    numbers = run(Scaling(), Trainers(need), begin, readings=1000)
    settled = numbers[-1]
    assert set(numbers[-200:]) == {settled}
    assert need / 1.06 <= settled <= max(1, math.ceil(need / 0.8) + 1)


def test_it_follows_a_need_that_changes():
    scaling, trainers = Scaling(), Trainers(2.0)
    few = run(scaling, trainers, 1)[-1]
    trainers.need = 8.0
    many = run(scaling, trainers, few)[-1]
    trainers.need = 2.0
    assert few < many > run(scaling, trainers, many)[-1] <= 3


def test_one_reading_changes_nothing():
    scaling, trainers = Scaling(readings=3), Trainers(4.0)
    assert run(scaling, trainers, 1, readings=3) == [1, 1, 1]
    trainers.need = 1.0
    assert run(scaling, trainers, 1, readings=1) == [1]
    trainers.need = 4.0
    assert run(scaling, trainers, 1, readings=3) == [1, 1, 2]


def test_a_reading_without_news_counts_for_nothing():
    scaling, trainers = Scaling(readings=3), Trainers(4.0)
    numbers = []
    for _ in range(4):
        told = trainers.read(1)
        numbers += [scaling.decide(1, told), scaling.decide(1, told)]
    assert numbers == [1, 1, 1, 1, 1, 1, 2, 1]


def test_nothing_changes_while_servers_have_no_work_yet():
    scaling, trainers = Scaling(), Trainers(4.0)
    assert [scaling.decide(2, trainers.read(2, used=1)) for _ in range(20)] == [2] * 20


def test_servers_without_a_trainer_go_while_no_trainer_waits():
    scaling, trainers = Scaling(readings=3), Trainers(2.0)
    servers = 6
    for _ in range(100):
        servers = scaling.decide(servers, trainers.read(servers, used=2), idle=max(0, servers - 3))
    assert servers == 3


def test_nothing_changes_while_nobody_trains():
    scaling, trainers = Scaling(), Trainers(4.0)
    trainers.read(1)
    assert [scaling.decide(3, {}) for _ in range(20)] == [3] * 20
    still = trainers.read(1)
    assert [scaling.decide(1, still) for _ in range(20)] == [1] * 20


def test_servers_that_have_yet_to_start_may_go_once_the_others_suffice():
    scaling, trainers = Scaling(readings=3), Trainers(4.0)
    run(scaling, trainers, 1, readings=4)
    assert not scaling.is_enough
    trainers.need = 1.0
    enough = []
    for _ in range(4):
        scaling.decide(1, trainers.read(1))
        enough.append(scaling.is_enough)
    assert enough == [False, False, True, True]


def test_those_that_are_left_when_a_server_is_lost_must_suffice_for_some_time():
    scaling, trainers = Scaling(readings=3), Trainers(1.0)
    run(scaling, trainers, 3, readings=6)
    assert scaling.is_enough
    scaling.decide(2, trainers.read(2))
    assert not scaling.is_enough


class TestDirectory:
    KEYS: ClassVar = {name: name.encode() for name in (*SERVER_KEYS, *CLIENT_KEYS)}

    def test_a_server_that_was_restarted_replaces_its_address(self):
        directory = Directory(self.KEYS, restarted=False)
        directory.report(0, "tcp://a:1")
        directory.report(1, "tcp://b:1")
        directory.report(0, "tcp://c:1")
        assert directory.addresses({}) == ["tcp://c:1", "tcp://b:1"]

    def test_it_knows_the_servers_without_a_trainer(self):
        directory = Directory(self.KEYS, restarted=False)
        directory.report(0, "tcp://a:1", is_idle=True)
        directory.report(1, "tcp://b:1", is_idle=True)
        directory.report(1, "tcp://b:1", is_idle=False)
        assert directory.idle() == {0}

    def test_a_server_that_is_to_leave_is_not_listed(self):
        directory = Directory(self.KEYS, restarted=False)
        directory.report(0, "tcp://a:1")
        directory.retire(0)
        directory.report(0, "tcp://a:1")
        assert directory.addresses({}) == []

    def test_one_that_was_restarted_knows_nothing_at_first(self):
        directory = Directory(self.KEYS, restarted=True)
        directory.report(0, "tcp://a:1")
        assert directory.addresses({}) is None

    def test_trainers_get_the_keys_of_clients(self):
        assert set(Directory(self.KEYS, restarted=False).client_keys()) == {"client.key_secret", "server.key"}

    def test_it_hands_on_what_trainers_tell(self):
        directory, figures = Directory(self.KEYS, restarted=False), TrainerFigures(1.0, 2.0, 0.0, 2.0, ())
        directory.addresses({"rank 0": figures})
        directory.addresses({})
        assert directory.figures() == {"rank 0": figures}


@pytest.fixture(name="clock")
def _clock(monkeypatch):
    """The time of a directory, which tests move on."""
    clock = [1000.0]
    monkeypatch.setattr("mpwds.cluster.actors.time.monotonic", lambda: clock[0])
    return clock


def test_a_server_that_is_silent_is_not_listed(clock):
    directory = Directory({}, restarted=False)
    for number in range(2):
        directory.report(number, URLS[number], is_idle=True)
    clock[0] += 4
    directory.report(1, URLS[1], is_idle=True)
    clock[0] += 4
    assert (directory.servers(), directory.idle()) == ({1: URLS[1]}, {1})


def test_a_trainer_that_is_silent_does_not_count(clock):
    directory, told = Directory({}, restarted=False), TrainerFigures(1.0, 2.0, 3.0, 4.0, ())
    directory.addresses({"gone": told})
    clock[0] += 8
    directory.addresses({"here": told})
    clock[0] += 8
    assert directory.figures() == {"here": told}


def decided(waiting, busy=1.0, servers=4, readings=100):
    """The number of servers after readings in which trainers wait for these shares of their time."""
    scaling = Scaling()
    for number in range(1, readings + 1):
        figures = {
            str(trainer): TrainerFigures(
                5.0 * number * share, 5.0 * number, 5.0 * number * (1 - busy), 5.0 * number, tuple(URLS[:4])
            )
            for trainer, share in enumerate(waiting)
        }
        after = scaling.decide(servers, figures)
        if after != servers:
            return after
    return servers


def test_the_trainer_that_waits_most_counts():
    assert decided([0.0, 0.5]) == decided([0.5, 0.0]) == 8


def test_between_enough_and_too_few_nothing_changes():
    assert [decided([waiting], busy=0.1) for waiting in (0.02, 0.03, 0.049, 0.06)] == [3, 4, 4, 5]
