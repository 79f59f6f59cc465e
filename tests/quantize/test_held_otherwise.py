"""Checkpoints whose matrices lie as this version does not write them are refused before anything is read."""

from __future__ import annotations

import pytest
from zoo import make_checkpoint

from thalweg.errors import ConfigError
from thalweg.quantize.formats import FORMATS
from thalweg.quantize.plan import build_plan


@pytest.mark.parametrize("name", ["granite-moe", "gpt2"])
def test_several_matrices_in_one_tensor_are_refused(name, tmp_path):
    path = make_checkpoint(name, tmp_path, tokenizer=False)
    with pytest.raises(ConfigError, match=r"holds several matrices, or one on its side.*serve it with --quantization"):
        build_plan(path, FORMATS["W8A8"], (), False)


def test_calibration_takes_no_heads_that_alternate(tmp_path):
    path = make_checkpoint("gpt-neox", tmp_path, tokenizer=False)
    assert build_plan(path, FORMATS["W8A8"], (), False).roles
    with pytest.raises(ConfigError, match="alternate in one tensor; use --method rtn"):
        build_plan(path, FORMATS["W8A8"], (), True)
