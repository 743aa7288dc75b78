"""An error in the user's code shows the user's frames, and few of this package's around them."""

import contextlib
import gc
import pickle
import subprocess
import sys
import traceback
import weakref
from pathlib import Path

import pytest

import mpwds
from mpwds import errors
from mpwds.errors import ShardError

PACKAGE = str(Path(mpwds.__file__).parent)


def divide(number):
    return 1 // number


def crop(element):
    return divide(element - element)


def numbers():
    return mpwds.DataPipeline(range(3))


HERE = {
    "pipeline": lambda: numbers().map(crop).batched(2),
    "loader without workers": lambda: mpwds.MultiLoader(numbers().map(crop).batched(2), workers=0),
    "stage behind a loader": lambda: mpwds.MultiLoader(numbers(), workers=1).map(crop).shuffle(3).batched(2),
    "stage behind a DataLoader": lambda: mpwds.WebLoader(numbers(), batch_size=None).map(crop),
    "DataLoader without workers": lambda: mpwds.DataLoader(numbers().map(crop), batch_size=None),
}
IN_WORKERS = {
    "MultiLoader": lambda: mpwds.MultiLoader(numbers().map(crop).batched(2), workers=1),
    "DataLoader": lambda: mpwds.DataLoader(numbers().map(crop), batch_size=None, num_workers=1),
    "several epochs": lambda: mpwds.MultiLoader(numbers().map(crop), workers=1).repeat(2),
}


def raised_by(iterable, kind=ZeroDivisionError):
    with pytest.raises(kind) as caught:
        list(iterable)
    return caught.value


def frames(error):
    """Of each frame: the function, or ``mpwds`` for those of this package."""
    return [
        "mpwds" if frame.filename.startswith(PACKAGE) else frame.name
        for frame in traceback.extract_tb(error.__traceback__)
    ]


@pytest.mark.parametrize("make", HERE.values(), ids=HERE)
def test_an_error_of_the_users_function_shows_its_frames_behind_the_iterators(make):
    shown = frames(raised_by(make()))
    assert shown[-2:] == ["crop", "divide"]
    assert shown.count("mpwds") <= 2


@pytest.mark.parametrize("make", IN_WORKERS.values(), ids=IN_WORKERS)
def test_an_error_in_a_worker_shows_the_users_frames_alone_in_its_cause(make):
    error = raised_by(make())
    cause = str(error.__cause__)
    assert "in crop" in cause
    assert "in divide" in cause
    assert "in map(crop), on element 0" in cause
    assert PACKAGE not in cause
    assert frames(error).count("mpwds") <= 2


@pytest.mark.parametrize("workers", [0, 1])
def test_all_frames_are_there_if_the_environment_asks_for_them(workers, monkeypatch):
    monkeypatch.setenv("MPWDS_FULL_TRACEBACK", "1")
    error = raised_by(mpwds.MultiLoader(numbers().map(crop), workers=workers))
    text = "".join(traceback.format_exception(error))
    assert text.count(PACKAGE) > 8


def test_an_error_of_our_own_says_where_it_was_raised_in_few_frames(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"\xff" * 1024)
    error = raised_by(mpwds.WebDataset(f"{tmp_path}/x.tar").decode(), ShardError)
    assert frames(error)[1:] == ["mpwds", "mpwds"]
    assert error.__traceback__.tb_next.tb_next.tb_frame.f_globals["__name__"].startswith("mpwds.storage.tar")


MISTAKES = {
    "an argument of a loader": lambda: mpwds.MultiLoader(numbers(), workers=-1),
    "an argument of a dataset": lambda: mpwds.WebDataset("nothing-*.tar"),
    "an argument of a stage": lambda: numbers().batched(-1),
    "an unknown argument": lambda: numbers().batched(1, number=2),
    "an address": lambda: mpwds.RemoteLoader("tcp"),
    "no stage": lambda: numbers().compose(3),
    "a state": lambda: mpwds.MultiLoader(numbers()).load_state_dict({}),
    "a state of stages": lambda: mpwds.MultiLoader(numbers()).shuffle(2).load_state_dict({}),
    "a state of a DataLoader": lambda: mpwds.DataLoader([1]).load_state_dict({}),
}


@pytest.mark.parametrize("make", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_shows_the_callers_line_and_where_it_was_found(make):
    with pytest.raises((TypeError, ValueError, FileNotFoundError)) as caught:
        make()
    assert frames(caught.value)[1:] == ["<lambda>", "mpwds"]


def test_a_dataset_that_cannot_be_sent_shows_the_users_frames_of_pickling_it():
    class Refusing:
        def __call__(self, element):
            return element

        def __reduce__(self):
            raise ValueError("not me")

    error = raised_by(
        mpwds.MultiLoader(numbers().map(Refusing()), workers=1, start_method="spawn"), TypeError
    )
    assert frames(error)[1:] == ["mpwds"]
    assert frames(error.__cause__) == ["dump", "__reduce__"]


def test_a_cause_and_a_context_keep_the_users_frames_and_lose_ours():
    def again(number):
        try:
            return list(numbers().map(crop))
        except ZeroDivisionError as error:
            raise ValueError(number) from error

    error = raised_by(numbers().map(again), ValueError)
    assert frames(error)[-1] == "again"
    assert frames(error.__cause__) == ["again", "crop", "divide"]
    error.__cause__.__cause__ = error  # a cycle, as `raise a from b` can make
    errors.shorten(error)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_the_members_of_an_exception_group_are_shortened():
    def fail(number):
        errors = []
        for _ in range(2):
            try:
                list(numbers().map(crop))
            except ZeroDivisionError as error:
                errors.append(error)
        raise ExceptionGroup("both", errors)  # noqa: F821  # new in Python 3.11

    group = raised_by(numbers().map(fail), ExceptionGroup)  # noqa: F821
    assert [frames(error)[-2:] for error in group.exceptions] == [["crop", "divide"]] * 2


def test_a_debugger_finds_the_users_frame_and_its_variables():
    error = raised_by(numbers().map(crop))
    *_, frame = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    assert frame.f_locals == {"number": 0}
    assert frame.f_back.f_code.co_name == "crop"


def test_what_an_error_held_is_gone_with_it():
    class Held:
        pass

    def fail(number):
        held = Held()
        alive.append(weakref.ref(held))
        raise ValueError(number)

    alive = []
    dataset = numbers().map(fail)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            list(dataset)
        assert [reference() for reference in alive] == [None]
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_program_that_fails_prints_no_more_than_its_own_frames_and_one_of_ours(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import mpwds\n"
        "def crop(number):\n"
        "    return 1 // 0\n"
        "with mpwds.MultiLoader(mpwds.DataPipeline([1]).map(crop), workers=1) as loader:\n"
        "    list(loader)\n"
    )
    printed = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False).stderr
    assert printed.count('File "') == 3
    assert printed.count(PACKAGE) == 1
    assert "in map(crop), on element 0" in printed


DETAILS = {
    errors.TenbinError: {"offset": None},
    errors.DecodeError: {"key": None, "url": None, "field": None},
    errors.WorkerDied: {"worker": -1, "pid": -1, "exitcode": None},
    errors.WorkerTimeout: {"worker": -1, "pid": -1},
    errors.StreamError: {"url": "", "position": None, "tries": 1},
    errors.QuarantineFull: {"path": "", "count": 0, "seen": None},
    errors.SpecError: {"file": None, "line": None, "key": ""},
}


@pytest.mark.parametrize("kind", DETAILS)
def test_an_error_prints_as_its_message_and_keeps_its_details_in_another_process(kind):
    given = dict.fromkeys(DETAILS[kind], 7)
    error = kind("bad", *given.values())
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert (str(each), vars(each), isinstance(each, errors.MpwdsError)) == ("bad", given, True)
    assert vars(kind("bad")) == DETAILS[kind]


def test_webdatasets_name_for_the_field_of_an_error_will_do():
    assert errors.DecodeError("bad", field="png").k == "png"
