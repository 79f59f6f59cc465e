"""Tests here share the rigs' oracle and world."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "rigs"))
