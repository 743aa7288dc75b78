"""``python -m mpwds`` is the command ``mpwds``."""

from __future__ import annotations

import sys

from mpwds.cli.main import main

sys.exit(main())
