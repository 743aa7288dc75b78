"""Interactive sessions: what is redefined, edited or reloaded there counts in workers that run already."""

import os
import subprocess
import sys
import textwrap

import jupyter_client
import jupyter_core.utils
import pytest

LINE = "mpwds: the dataset, or code that it uses, has changed: its workers start again\n"


class Kernel:
    """A notebook's kernel, which runs cells."""

    def __init__(self, folder):
        variables = {**os.environ, "IPYTHONDIR": str(folder), "JUPYTER_RUNTIME_DIR": str(folder)}
        self.manager, self.client = jupyter_client.manager.start_new_kernel(
            kernel_name="python3", startup_timeout=600, cwd=str(folder), env=variables
        )

    def run(self, cell):
        """What the cell prints to stdout and stderr."""
        printed = {"stdout": "", "stderr": ""}

        def collect(message):
            content = message["content"]
            if message["msg_type"] == "stream":
                printed[content["name"]] += content["text"]
            assert message["msg_type"] != "error", "\n".join(content["traceback"])

        self.client.execute_interactive(textwrap.dedent(cell), timeout=600, output_hook=collect)
        return printed["stdout"], printed["stderr"]

    def end(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module", autouse=True)
def _event_loop():
    """Kept by jupyter for the rest of the process: made before a test looks at what there is."""
    jupyter_core.utils.ensure_event_loop()


@pytest.fixture
def kernel(tmp_path):
    running = Kernel(tmp_path)
    yield running
    running.end()


pytestmark = pytest.mark.slow

DEFINE = """
    import mpwds

    def scaled(number):
        return factor * number

    factor = 2
    dataset = mpwds.DataPipeline(range(3)).map(scaled)
"""


@pytest.mark.parametrize(
    "make",
    [
        "mpwds.MultiLoader(dataset, workers=1, output='numpy')",
        "mpwds.MultiLoader(dataset, workers=1, output='numpy', start_method='fork')",
        "mpwds.DataLoader(dataset, None, num_workers=1, persistent_workers=True)",
    ],
)
def test_a_variable_that_a_cell_redefines_counts_in_workers_that_run(kernel, make):
    kernel.run(DEFINE + f"    loader = {make}")
    iterate = "print([int(number) for number in loader])"
    assert kernel.run(iterate) == ("[0, 2, 4]\n", "")
    assert kernel.run(iterate) == ("[0, 2, 4]\n", "")
    kernel.run("factor = 5")
    assert kernel.run(iterate) == ("[0, 5, 10]\n", LINE)
    assert kernel.run(iterate) == ("[0, 5, 10]\n", "")
    kernel.run("loader.close()")


@pytest.mark.parametrize("make", ["fork", "spawn"])
def test_a_function_that_a_cell_defines_again_is_warned_of_until_the_dataset_has_it(kernel, make):
    define = DEFINE + f"    loader = mpwds.MultiLoader(dataset, 1, output='numpy', start_method={make!r})"
    iterate = "print([int(number) for number in loader])"
    kernel.run(define)
    assert kernel.run(iterate) == ("[0, 2, 4]\n", "")
    kernel.run("def scaled(number):\n    return -number")
    output, errors = kernel.run(iterate)
    assert output == "[0, 2, 4]\n"
    assert "UserWarning: the dataset uses earlier definitions of scaled: run the code that makes" in errors
    assert iterate in errors
    kernel.run(define)
    assert kernel.run(iterate) == ("[0, 2, 4]\n", "")
    kernel.run(define)
    assert kernel.run(iterate) == ("[0, 2, 4]\n", "")
    kernel.run("loader.close()")


MODULE = """
def scaled(number):
    return {factor} * number
"""


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        ("mpwds.DataLoader(dataset, None, num_workers=1)", ""),
        ("mpwds.MultiLoader(dataset, workers=1, output='numpy')", LINE),
    ],
)
def test_a_module_that_autoreload_finds_changed_counts_in_workers(kernel, tmp_path, make, expected):
    path = tmp_path / "scaling.py"
    path.write_text(MODULE.format(factor=2))
    kernel.run(f"%load_ext autoreload\n%autoreload 2\nimport sys\nsys.path.insert(0, {str(tmp_path)!r})")
    kernel.run(
        "import mpwds, scaling\ndataset = mpwds.DataPipeline(range(3)).map(lambda n: scaling.scaled(n))"
    )
    kernel.run(f"older = iter(mpwds.DataLoader(dataset, None, num_workers=1)); loader = {make}")
    iterate = "print([int(number) for number in loader])"
    assert kernel.run(iterate) == ("[0, 2, 4]\n", "")
    path.write_text(MODULE.format(factor=500))
    assert kernel.run("print(scaling.scaled(1))") == ("500\n", "")
    assert kernel.run(iterate) == ("[0, 500, 1000]\n", expected)
    assert kernel.run(iterate) == ("[0, 500, 1000]\n", "")
    assert kernel.run("print([int(number) for number in older])") == ("[0, 2, 4]\n", "")
    kernel.run("loader.close()")


SESSION = """
import mpwds
def scaled(number):
    return factor * number

factor = 2
loader = mpwds.MultiLoader(mpwds.DataPipeline(range(3)).map(scaled), workers=1, output="numpy")
list(map(int, loader))
factor = 5
list(map(int, loader))
list(map(int, loader))
"""


def test_a_variable_that_is_redefined_at_the_prompt_counts_in_workers_that_run():
    python = [sys.executable, "-q", "-i"]
    ended = subprocess.run(python, input=SESSION, capture_output=True, text=True, timeout=600)
    assert ended.stdout == "[0, 2, 4]\n[0, 5, 10]\n[0, 5, 10]\n"
    assert ended.stderr.replace(">>> ", "").replace("... ", "").strip() == LINE.strip()


def test_a_variable_that_a_program_redefines_does_not_count_until_workers_start_again(tmp_path):
    program = SESSION.replace("list(map(int, loader))", "print(list(map(int, loader)))")
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(tmp_path / "program.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (ended.stdout, ended.stderr) == ("[0, 2, 4]\n" * 3, "")
