"""The package ``tensorcom``: write ``from mpwds import tensorcom`` in place of ``import tensorcom``.

Tensors travel as tenbin in plain ZeroMQ messages, without a handshake, acknowledgements, keys or an end of
data. Use it with programs that speak this protocol; docs/coming-from/tensorcom.md describes the differences.
"""
