"""File locks: one holder at a time, of the file that has the name now."""

import os
import threading

from mpwds.storage.caches import locks


def test_a_file_has_one_holder_at_a_time_and_its_end_frees_it(tmp_path):
    path = str(tmp_path / "file")
    assert locks.lock(path) is None
    held = locks.lock(path, create=True)
    assert locks.lock(path) is None
    threading.Timer(0.05, locks.release, [held]).start()
    waited = locks.lock(path, timeout_s=60)
    assert waited is not None
    locks.release(waited)


def test_a_file_that_is_removed_or_replaced_before_it_is_locked_is_not_locked(tmp_path, monkeypatch):
    path = str(tmp_path / "file")
    open_file = os.open
    for replaced in (False, True):

        def open_too_early(*arguments, replaced=replaced):
            descriptor = open_file(*arguments)
            os.unlink(path)
            if replaced:
                os.close(open_file(path, os.O_CREAT))
            return descriptor

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", open_too_early)
            assert locks.lock(path, create=True) is None
