"""Shared by every test: the zoo of tiny models is importable as `zoo`, and torch stays on one thread."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent / "models"))
