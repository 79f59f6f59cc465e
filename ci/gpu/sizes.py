"""Sizes at which products are compared and compiled: of weights that people serve, and of batches around every border."""

from __future__ import annotations

WEIGHTS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (5120, 2048), (2048, 2048), (128256, 4096))
"""(outputs, inputs): the products of an 8B model, two of smaller ones, and a vocabulary."""
ROWS = (*range(1, 18), 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 1000, 2048, 4097)
"""Rows of a product: every small number, both sides of each power of two, and prompts."""
