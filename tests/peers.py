"""Where the packages are that tests compare with, and that are not installed beside ours."""

import sys
from pathlib import Path

PEERS = str(Path(sys.prefix) / "peers")
