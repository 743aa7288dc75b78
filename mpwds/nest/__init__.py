"""Nested batches to (structure, arrays) and back, and the envelope that carries a structure.

A *structure* is a batch without its arrays. Plain values stand for themselves, everything else is a node
``[tag, ...]`` of msgpack's types (``mpwds.nest.nodes``). The arrays follow in depth-first order, so the node
of an array needs no number. An *envelope* is a msgpack map with a version, which carries the structure and
further fields.
"""

from __future__ import annotations

from mpwds.nest.decode import unflatten, unpack
from mpwds.nest.encode import flatten, pack
from mpwds.nest.nodes import MAX_DEPTH, VERSION, Structure

__all__ = ["MAX_DEPTH", "VERSION", "Structure", "flatten", "pack", "unflatten", "unpack"]
