"""The digits as ``mpwds serve mpwds.cli.demo.served:dataset`` serves them."""

from __future__ import annotations

from mpwds.cli.demo import digits

BATCH_SIZE = 64

dataset = digits.digits_task(digits.default_cache_dir().absolute(), BATCH_SIZE).train
