"""The scripts of ci/gpu as modules: they find each other in their own folder, as they do when they are run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "ci" / "gpu"


def script(name: str) -> Any:
    """One module per name and process, so that parts of one script are those of another. Its folder is on sys.path only
    meanwhile: another folder of ci has a module of one of these names."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
