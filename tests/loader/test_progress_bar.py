"""The live line: ``MultiLoader(progress=True)``."""

import contextlib
import io
import itertools
import pickle
import subprocess
import sys
import threading

import pytest
import tqdm

from mpwds import DataPipeline, MultiLoader
from mpwds.stats import progress_bar

pytestmark = pytest.mark.usefixtures("quick_workers")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal():
    """A context in which stderr is a terminal, whose text is what was written to it."""
    return contextlib.redirect_stderr(Terminal())


def last_line(text):
    return text.replace("\r", "\n").strip().rpartition("\n")[2]


@pytest.fixture
def loader(workers):
    batches = DataPipeline(range(96)).batched(4)
    with MultiLoader(batches, workers=workers, output="numpy", progress=True) as loader:
        yield loader


def test_an_epoch_that_is_over_leaves_a_line_about_it(loader):
    with terminal() as screen:
        assert len(list(loader)) == 24
        line = last_line(screen.getvalue())
        assert line.startswith("epoch 0: 100%")
        assert "24/24" in line
        assert "samples/s, waits" in line
        assert line.count("%") == 3  # of the epoch, of waiting, of a stage


def test_each_epoch_has_a_line(loader):
    with terminal() as screen:
        list(loader)
        list(loader)
        assert "epoch 1: 100%" in last_line(screen.getvalue())
        assert screen.getvalue().count("\n") == 2


def test_where_the_length_is_not_known_batches_are_counted():
    with terminal() as screen:
        loader = MultiLoader(lambda: iter(range(7)), workers=0, output="numpy", progress=True)
        list(loader)
        assert last_line(screen.getvalue()).startswith("epoch 0: 7 [")


def closed():
    """Whether all bars are."""
    return not tqdm.tqdm._instances


@pytest.mark.parametrize("redraw_s", [0, 3600])
def test_the_line_is_drawn_again_now_and_then_and_ends_where_the_loop_is_left(loader, redraw_s, monkeypatch):
    monkeypatch.setattr(progress_bar, "_REDRAW_TERMINAL_S", redraw_s)
    with terminal() as screen:
        for _ in itertools.islice(loader, 5):
            pass
        assert closed()
        assert [f"{number}/24" in screen.getvalue() for number in range(1, 5)] == [redraw_s == 0] * 4
        assert "5/24" in last_line(screen.getvalue())


def test_an_error_of_the_dataset_ends_the_line(workers):
    with terminal() as screen:
        loader = MultiLoader(
            DataPipeline(["1", "one"]).map(int), workers=workers, output="numpy", progress=True
        )
        with pytest.raises(ValueError, match="one"):
            list(loader)
        assert closed()
        assert screen.getvalue().endswith("\n")


def test_closing_the_loader_ends_the_line(loader):
    with terminal():
        iterator = iter(loader)
        next(iterator)
        assert not closed()
        loader.close()
        assert closed()


def test_another_bar_keeps_its_place(loader):
    with terminal() as screen:
        for _ in tqdm.tqdm(range(2), desc="epochs"):
            list(loader)
        assert closed()
        assert "epochs: 100%" in screen.getvalue()
        assert "epoch 1" in screen.getvalue()


def test_it_starts_no_thread(loader):
    with terminal():
        before = set(threading.enumerate())
        next(iter(loader))
        assert not set(threading.enumerate()) - before


def test_nothing_is_shown_unless_it_is_asked_for(capfd):
    with MultiLoader(range(10), workers=1, output="numpy") as loader:
        list(loader)
    assert capfd.readouterr() == ("", "")


def test_tqdm_is_not_imported_unless_it_is_needed():
    program = (
        "import sys, mpwds; l = mpwds.MultiLoader([1], workers=0, output='numpy'); list(l); l.stats(); "
        "print('tqdm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout == "False\n"


def test_without_tqdm_the_error_names_the_extra(monkeypatch):
    for module in ("tqdm", "tqdm.auto"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'mpwds\[progress\]'"):
        MultiLoader([1], progress=True)


def test_a_copy_shows_progress_too(loader):
    assert pickle.loads(pickle.dumps(loader)).progress
