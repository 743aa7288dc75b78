"""Pickles in shards: loaded only by permission, never in secure mode; tensors without either."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from mpwds.errors import DecodeError, SecurityError
from mpwds.pipeline.decoding import fields
from mpwds.pipeline.decoding.decoders import Decoder, handle_extension
from mpwds.pipeline.decoding.fields import torch_loads, unpickle_loads
from mpwds.storage.writing.encoders import encode_field


@pytest.mark.parametrize("field", ["pyd", "pickle", "x.pkl", "pyd.gz", "npy", "npz", "pth"])
def test_pickles_need_permission_in_code(field):
    value = np.array([Special()])
    data = encode_field(field, {"a": value} if field == "npz" else value)
    with pytest.raises(
        DecodeError, match=r"loading it would run .* pass allow_pickle=True to decode\(\)"
    ) as caught:
        Decoder()({"__key__": "k", field: data})
    assert caught.value.field == field
    Decoder(allow_pickle=True)({"__key__": "k", field: data})


class Special:
    pass


def test_a_pickle_that_nobody_decodes_is_no_error():
    data = pickle.dumps(7)
    sample = {"pyd": data, "cls": b"7"}
    assert Decoder(only="cls")(sample) == {"pyd": data, "cls": 7}
    assert Decoder(post=[])(sample) == sample
    assert Decoder(handle_extension("pyd", len))(sample) == {"pyd": len(data), "cls": 7}


def test_nothing_is_run_before_permission_is_looked_at(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    value = {"a": Evil()}
    for field, data in {
        **{name: pickle.dumps(value) for name in ("pyd", "pickle", "pkl")},
        "pth": encode_field("pth", value),
        "npy": encode_field("npy", np.array([value])),
        "npz": encode_field("npz", {"a": np.array([value])}),
    }.items():
        with pytest.raises(DecodeError):
            Decoder()({field: data})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["pyd", "pth", "npy", "npz"])
def test_the_secure_mode_overrules_permission(monkeypatch, field):
    value = np.array([None])
    data = encode_field(field, {"a": value} if field == "npz" else value)
    decode = Decoder(allow_pickle=True)
    decode({field: data})
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(DecodeError, match="secure mode"):
        decode({field: data})


def test_permission_is_asked_for_by_the_functions_themselves():
    with pytest.raises(DecodeError, match="allow_pickle=True"):
        unpickle_loads(pickle.dumps(7))
    assert unpickle_loads(memoryview(pickle.dumps(7)), allow_pickle=True) == 7


def test_a_file_of_torch_needs_permission_whatever_it_holds():
    data = encode_field("pth", torch.arange(3))
    with pytest.raises(DecodeError, match=r"a file of torch.save, .* pass allow_pickle=True to decode\(\)"):
        Decoder()({"pth": data})
    assert Decoder(allow_pickle=True)({"pth": data})["pth"].tolist() == [0, 1, 2]


def test_torch_loads_takes_tensors_and_plain_values_without_permission():
    value = {"a": torch.arange(3), "b": [1, "x", (None, 2.5)]}
    loaded = torch_loads(memoryview(encode_field("pth", value)))
    assert torch.equal(loaded["a"], value["a"])
    assert loaded["b"] == value["b"]


def test_torch_loads_runs_the_code_of_a_file_only_with_permission():
    data = encode_field("pth", Special())
    with pytest.raises(DecodeError, match="a pickle of more than tensors and plain values"):
        torch_loads(data)
    assert isinstance(torch_loads(data, allow_pickle=True), Special)


def test_a_user_may_forbid_torch_more_than_weights_in_the_environment(monkeypatch):
    monkeypatch.setattr(fields, "pytorch_weights_only", True)
    with pytest.raises(pickle.UnpicklingError, match="Weights only"):
        torch_loads(encode_field("pth", Special()), allow_pickle=True)


def test_the_environment_is_where_that_is_said():
    program = "from mpwds.pipeline.decoding.fields import pytorch_weights_only; print(pytorch_weights_only)"
    environment = {**os.environ, "WDS_PYTORCH_WEIGHTS_ONLY": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert (done.stdout, fields.pytorch_weights_only) == (b"True\n", False)


def test_a_torch_whose_protection_has_a_hole_needs_permission(monkeypatch):
    data = encode_field("pth", torch.arange(3))
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(DecodeError, match=r"unsafe before torch 2.6 \(this is 2.5.1"):
        torch_loads(data)
    assert torch_loads(data, allow_pickle=True).tolist() == [0, 1, 2]


def test_the_secure_mode_refuses_tensors_too(monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(SecurityError, match=r"\(it is for torch.load\) in secure mode"):
        torch_loads(encode_field("pth", torch.arange(3)))


def test_a_damaged_file_is_said_to_be_damaged():
    with pytest.raises(RuntimeError, match="zip archive"):
        torch_loads(encode_field("pth", torch.arange(3))[:-100])
    with pytest.raises(DecodeError, match="it is damaged, or a pickle"):
        torch_loads(b"nothing")
