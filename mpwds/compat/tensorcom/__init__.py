"""The package ``tensorcom``: write ``from mpwds import tensorcom`` in place of ``import tensorcom``.

Tensors travel as tenbin in plain ZeroMQ messages, without a handshake, acknowledgements, keys or an end of
data. Use it with programs that speak this protocol; docs/coming-from-tensorcom.md describes the differences.
"""

from __future__ import annotations

from mpwds import tenbin
from mpwds.compat.tensorcom import zcom
from mpwds.compat.tensorcom.feeding import TensorcomDataset, send_batches
from mpwds.compat.tensorcom.zcom import Connection

__all__ = ["Connection", "TensorcomDataset", "send_batches", "tenbin", "zcom"]
