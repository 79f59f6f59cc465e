"""Models that cannot be divided among ranks are refused by a table, before their layers are built."""

from __future__ import annotations

from pathlib import Path

import pytest
from zoo import make_checkpoint

from thalweg.checkpoint.config import read_config
from thalweg.errors import ConfigError
from thalweg.hal.comm import Communicator, Mesh
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.platform import Place
from thalweg.models.build import build
from thalweg.models.refusals import TENSOR, refusals_of
from thalweg.models.registry import family


class Two(Communicator):
    size = 2

    def all_reduce(self, x):
        return x

    def all_gather(self, x, dim=-1):
        return x


def refused(path: Path, mesh: Mesh) -> str:
    device = load("reference").open(Place())
    with pytest.raises(ConfigError) as e:
        build(
            read_config(path), binder=Binder(()), attention=device.attention, mesh=mesh, dtype="float32", max_len=64,
            block_tokens=4,
        )  # fmt: skip
    return str(e.value)


ROWS = {
    "bloom": "slopes of heads",
    "olmo2": "cover all heads of",
    "stablelm-12b": "a tensor for each head",
    "gemma3n": "gates are cut",
    "minimax": "linear attention",
}


@pytest.mark.parametrize("name", ROWS)
def test_a_model_is_refused_by_its_row_of_the_table_and_by_no_other(name: str, tmp_path: Path) -> None:
    path = make_checkpoint(name, tmp_path, tokenizer=False)
    config = read_config(path)
    (row,) = refusals_of(family(config)(config))
    assert ROWS[name] in row.why
    assert refused(path, Mesh(Two())) == f"tensor_parallel_size: {row.why}: leave it at 1"


def test_every_row_but_the_fallback_is_tested_and_a_plain_model_has_none(tmp_path: Path) -> None:
    assert [r.layer for r in TENSOR if not any(words in r.why for words in ROWS.values())] == ["fallback"]
    config = read_config(make_checkpoint("llama", tmp_path, tokenizer=False))
    assert refusals_of(family(config)(config)) == []


@pytest.mark.parametrize("axis", ["expert", "stage", "data"])
def test_no_model_is_divided_along_an_axis_that_no_layer_reads(axis: str, tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    assert f"{axis}: models are divided by tensor parallelism only" in refused(path, Mesh(**{axis: Two()}))
