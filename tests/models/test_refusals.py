"""Models that cannot be divided among ranks are refused by a table, before their layers are built."""

from __future__ import annotations

from pathlib import Path

import pytest
from zoo import make_checkpoint

from thalweg.checkpoint.config import read_config
from thalweg.errors import ConfigError
from thalweg.hal.comm import Communicator, Mesh, StageLinks
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.platform import Place
from thalweg.models.build import build
from thalweg.models.refusals import STAGE, TENSOR, check_ranks, refusals_of
from thalweg.models.registry import declare, family


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


def test_the_fallback_is_refused_and_families_are_not(tmp_path: Path) -> None:
    path = make_checkpoint("olmo2", tmp_path, tokenizer=False)
    config = read_config(path)
    assert refusals_of(family(config)(config)) == []
    config = {**config, "model_impl": "transformers"}
    (row,) = refusals_of(declare(config, path)[1])
    assert row in TENSOR
    with pytest.raises(ConfigError, match=f"^tensor_parallel_size: {row.why}: leave it at 1$"):
        check_ranks(declare(config, path)[1], {"tensor": 2})


def test_whole_experts_are_for_mixtures_on_the_ranks_of_the_tensor_axis(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    two = Two()
    assert "enable_expert_parallel: this model has no experts" in refused(path, Mesh(two, expert=two))
    assert "expert: experts are placed on the ranks of the tensor axis" in refused(path, Mesh(expert=two))


def test_no_model_is_divided_along_the_axis_of_data(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    assert "so no model is divided along this axis" in refused(path, Mesh(data=Two()))


@pytest.mark.parametrize(("name", "layers"), [("gemma3n", {"perlayer", "altup", "attention"}), ("longcat-flash", {"shortcut"})])
def test_what_later_stages_would_lack_is_refused(name: str, layers: set[str], tmp_path: Path) -> None:
    path = make_checkpoint(name, tmp_path, tokenizer=False)
    config = read_config(path)
    rows = refusals_of(declare(config, path)[1], STAGE)
    assert {r.layer for r in rows} == layers
    said = refused(path, Mesh(stage=StageLinks(0, 2)))
    assert all(f"pipeline_parallel_size: {r.why}: leave it at 1" in said for r in rows)
