"""Few descriptors or processes, closed or moved ones: everything works, or says clearly why it cannot."""

import os
import textwrap

import pytest

from tests.loader.faults.programs import with_loader

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("start_method", "closed"),
    [
        ("spawn", "0<&-"),
        ("spawn", "0<&- 1>&-"),
        ("fork", "0<&- 1>&- 2>&-"),
        ("forkserver", "0<&- 1>&- 2>&-"),
        ("DataLoader", "0<&- 1>&-"),
    ],
)
def test_closed_standard_streams_do_not_matter(program, start_method, closed, tmp_path):
    # The directory is not one of the program's own, for the file is left there.
    done = tmp_path / "done"
    text = with_loader(f"    run(loader()).close()\n    open({str(done)!r}, 'w').close()\n")
    status, output, errors = program(text, start_method, within=f"exec {closed}").finish()
    assert (status, output, errors) == (0, "", "")
    assert done.exists()


def test_a_dataset_whose_module_prints_does_without_standard_streams(program, tmp_path):
    module = """
        from tests.loader.dataloader.data_loader_datasets import Numbers

        print("imported")

        class Printing(Numbers):
            pass
    """
    (tmp_path / "prints.py").write_text(textwrap.dedent(module))
    done = tmp_path / "done"
    text = f"""
        import sys
        import mpwds
        sys.path.insert(0, {str(tmp_path)!r})
        from prints import Printing

        assert len(list(mpwds.DataLoader(Printing(), num_workers=1))) == len(Printing())
        open({str(done)!r}, "w").close()
    """
    assert program(text, within="exec 0<&- 1>&- 2>&-").finish().status == 0
    assert done.exists()


def test_standard_streams_that_a_program_closes_itself_do_not_matter(program):
    text = with_loader("    sys.stdin.close(), sys.stdout.close()\n    run(loader()).close()\n")
    assert program(text, "fork").finish() == (0, "", "")


def test_many_epochs_workers_and_loaders_do_with_256_descriptors(program):
    text = with_loader("""
    run(loader(workers=20)).close()
    with nothing_left():
        loaders = [loader() for _ in range(5)]
        for _ in range(40):
            for loading in loaders:
                run(loading)
        for loading in loaders:
            loading.close()
""")
    assert program(text, "fork", within="ulimit -n 256").finish() == (0, "", "")


def test_epochs_of_a_dataloader_do_with_256_descriptors(program):
    text = with_loader("    for _ in range(3):\n        run(loader(workers=10))\n")
    quiet = {"PYTHONWARNINGS": "ignore"}  # of torch: many workers
    running = program(text, "DataLoader", within="ulimit -n 256", environment=quiet)
    assert running.finish() == (0, "", "")


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver", "DataLoader"])
def test_too_few_descriptors_to_start_workers_are_a_clear_error_and_leave_nothing(program, start_method):
    text = with_loader("""
    import resource
    import warnings
    warnings.simplefilter("ignore")  # torch's: many workers
    run(loader()).close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with nothing_left():
        loading = loader(workers=50)
        for most in range(8, 60, 13):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
            try:
                next(iter(loading))
            except (OSError, mpwds.MpwdsError) as error:
                assert "Too many open files" in str(error) or "descriptor" in str(error), error
            else:
                print("no error")
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        del loading
    run(loader()).close()
""")
    assert program(text, start_method).finish() == (0, "", "")


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver", "DataLoader"])
def test_what_was_opened_for_workers_that_cannot_start_is_closed_at_once(program, start_method):
    text = with_loader("""
    import gc, itertools, resource

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    loading = loader()
    assert sum(1 for _ in loading) == 12
    loading.close()
    gc.collect()
    gc.disable()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    for most in itertools.count(before):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
        try:
            assert sum(1 for _ in loading) == 12
            break
        except (OSError, mpwds.MpwdsError):
            pass
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert descriptors() <= before, (most, before, descriptors())
    assert most > before + 10
    loading.close()
""")
    assert program(text, start_method).finish() == (0, "", "")


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, who may have few processes")
def test_too_few_processes_to_start_workers_are_a_clear_error_and_leave_nothing(program):
    text = with_loader("""
    import resource
    run(loader()).close()
    with nothing_left():
        resource.setrlimit(resource.RLIMIT_NPROC, (4, 4))
        os.setresuid(54_321, 54_321, -1)
        try:
            next(iter(loader(workers=20)))
        except OSError as error:
            print(error)
        os.setresuid(0, 0, -1)
""")
    status, output, errors = program(text, "fork").finish()
    assert (status, errors) == (0, "")
    assert "20 workers cannot start; use fewer, or raise the limit of processes (ulimit -u" in output


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_a_trainer_that_closes_descriptors_not_its_own_gets_errors_and_no_hang(program, start_method):
    text = with_loader("""
    iterator = iter(loader())
    next(iterator)
    os.closerange(3, 1000)
    try:
        for _ in range(20):
            next(iterator)
    except (OSError, mpwds.MpwdsError):
        print("told", flush=True)
    os._exit(0)
""")
    status, output, errors = program(text, start_method).finish()
    assert (status, output, errors) == (0, "told\n", "")


def test_a_worker_that_closes_descriptors_not_its_own_dies_and_that_is_told(program):
    text = with_loader("""
    class Closing:
        def __iter__(self):
            yield 1
            os.closerange(3, 1000)
            yield from range(100_000)

    try:
        list(mpwds.MultiLoader(Closing(), workers=1, output="numpy"))
    except (OSError, mpwds.MpwdsError) as error:
        print("told")
""")
    status, output, _ = program(text, "spawn").finish()
    assert (status, output) == (0, "told\n")


@pytest.mark.parametrize("start_method", ["spawn", "DataLoader"])
def test_streams_that_were_redirected_by_dup2_are_those_of_the_workers(program, start_method, tmp_path):
    text = with_loader("""
    def speak(number):
        os.write(1, b"a worker\\n")
        return number

    file = os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    if sys.argv[1] == "DataLoader":
        list(mpwds.DataLoader([1, 2], None, num_workers=2, collate_fn=speak))
    else:
        list(mpwds.MultiLoader(mpwds.DataPipeline([1, 2]).map(speak), workers=2, start_method=sys.argv[1]))
""")
    said = tmp_path / "said"
    assert program(text, start_method, str(said)).finish() == (0, "", "")
    assert said.read_text() == "a worker\n" * 2
