"""The chips that kernels are lowered for: one of them in `make check`, all in `make test`."""

from __future__ import annotations

import pytest

CHIPS = ["TPU v5 lite", *(pytest.param(c, marks=pytest.mark.slow) for c in ("TPU v6 lite", "TPU7x"))]
