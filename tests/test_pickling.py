"""What arrives in another process is what was sent."""

import pickle
import subprocess
import sys

import pytest
import torch

from mpwds.pickling import dumps

ONES = torch.ones(2, 2)
TENSORS = {
    "dense": ONES,
    "transposed": torch.arange(6).view(2, 3).T,
    "bfloat16": ONES.bfloat16(),
    "float8": ONES.to(torch.float8_e5m2),
    "complex32": torch.view_as_complex(ONES.half()),
    "sparse": ONES.to_sparse(),
    "sparse bfloat16": ONES.bfloat16().to_sparse(),
    "without memory": torch.ones(2, device="meta"),
    "conjugated": torch.tensor([1j, 2]).conj(),
    "negated": torch.tensor([1j, 2]).conj().imag,
    "with a gradient": ONES.bfloat16().requires_grad_(),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_of_any_kind_arrives_as_it_is(kind):
    sent = TENSORS[kind]
    came = pickle.loads(dumps([sent]))[0]
    traits = [(each.dtype, each.layout, each.device, each.requires_grad) for each in (sent, came)]
    assert traits[0] == traits[1]
    assert str(came) == str(sent)


def test_a_tensor_keeps_its_attributes():
    sent = torch.ones(2)
    sent.unit = "m"
    assert pickle.loads(dumps(sent)).unit == "m"


def test_a_class_that_comes_back_keeps_what_it_was_given_since():
    class Local:
        size = 1

    sent = dumps(Local)
    Local.size = 2
    assert pickle.loads(sent) is Local
    assert Local.size == 2


def test_functions_that_share_a_variable_still_share_it():
    shared = []

    def put():
        shared.append(1)

    def get():
        return shared

    there, back = pickle.loads(dumps((put, get)))
    there()
    assert (back(), shared) == ([1], [])


CACHED = """
import functools
import mpwds

@functools.lru_cache(maxsize=3, typed=True)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

dataset = mpwds.DataPipeline(range(12)).map(lambda n: (fib(n), *fib.cache_parameters().values()))
print(list(mpwds.MultiLoader(dataset, workers=1, output="numpy")))
"""


def test_functions_of_a_program_that_keep_results_travel_with_their_options(tmp_path):
    (tmp_path / "program.py").write_text(CACHED)
    done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path)
    numbers = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]
    assert (done.stdout.strip(), done.stderr) == (str([(number, 3, True) for number in numbers]), "")
