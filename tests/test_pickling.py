"""What arrives in another process is what was sent."""

import pickle

import pytest
import torch

from mpwds.pickling import dumps

ONES = torch.ones(2, 2)
TENSORS = {
    "dense": ONES,
    "transposed": torch.arange(6).view(2, 3).T,
    "bfloat16": ONES.bfloat16(),
    "float8": ONES.to(torch.float8_e5m2),
    "sparse": ONES.to_sparse(),
    "sparse bfloat16": ONES.bfloat16().to_sparse(),
    "without memory": torch.ones(2, device="meta"),
    "conjugated": torch.tensor([1j, 2]).conj(),
    "negated": torch.tensor([1j, 2]).conj().imag,
    "with a gradient": ONES.clone().requires_grad_(),
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


def test_functions_that_share_a_variable_still_share_it():
    shared = []

    def put():
        shared.append(1)

    def get():
        return shared

    there, back = pickle.loads(dumps((put, get)))
    there()
    assert (back(), shared) == ([1], [])
