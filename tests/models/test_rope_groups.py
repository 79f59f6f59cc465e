"""Every key of every group of rotary settings is known, or refused by name: for each family, wherever its files have groups."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hearing
import pytest
import seeing
import test_sizes
import torch
import transformers
from transformers.configuration_utils import ALLOWED_ATTN_LAYER_TYPES
from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import HunYuanDenseV1RotaryEmbedding
from zoo import ALL, ENCODERS

from thalweg.checkpoint.config import read_config
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import decoder
from thalweg.models.families.groups import LAYER_TYPES
from thalweg.models.layers.rotary import cos_sin_table
from thalweg.models.registry import _reader, family

ODD = "odd_scale"
HEADER = ("id2label", "label2id", "quantization_config")
DYNAMIC = {"type": "dynamic", "alpha": 50.0, "rope_theta": 1e4}


def places(config: dict[str, Any], path: tuple[str, ...] = (), inside: bool = False) -> Iterator[tuple[str, ...]]:
    """Paths of all groups of rotary settings, and of groups in them."""
    for key, value in config.items():
        if isinstance(value, dict) and value and key not in HEADER:
            rotary = inside or key in ("rope_parameters", "rope_scaling")
            if rotary:
                yield (*path, key)
            yield from places(value, (*path, key), rotary)


def planted(config: dict[str, Any], path: tuple[str, ...], value: Any = 1.3) -> dict[str, Any]:
    made = copy.deepcopy(config)
    group = made
    for key in path:
        group = group.setdefault(key, {})
    group[ODD] = value
    return made


def spellings(config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[tuple[str, ...]]]]:
    """A configuration and where its groups are: as transformers 5 writes it, as transformers 4 did, with both, and with a
    group of a layer type that it does not have."""
    yield config, list(places(config))
    said = config.get("rope_parameters")
    if not isinstance(said, dict) or not said:
        return
    if any(isinstance(each, dict) for each in said.values()):
        spare = {**config, "rope_parameters": {**said, "chunked_attention": {"rope_type": "default", "rope_theta": 1e4}}}
        yield spare, [("rope_parameters", "chunked_attention")]
        return
    older = {key: value for key, value in config.items() if key != "rope_parameters"}
    older |= {"rope_theta": said.get("rope_theta", 1e4), "rope_scaling": said}
    yield older, [("rope_scaling",)]
    yield {**older, "rope_parameters": dict(said)}, [("rope_parameters",), ("rope_scaling",)]


def read(config: dict[str, Any]) -> Any:
    return family(config)(config)


@pytest.mark.parametrize("name", sorted(ALL | ENCODERS))
def test_a_key_that_nobody_knows_is_refused_by_name_in_every_group_of_rotary_settings(name: str) -> None:
    config = test_sizes.config(name)
    for spelling, found in spellings(config):
        read(spelling)
        for path in found:
            with pytest.raises(UnsupportedModelError, match=rf"{': '.join(path)}: '{ODD}' is not known.*--hf-overrides"):
                read(planted(spelling, path))
            read(planted(spelling, path, None))


def whole(name: str) -> dict[str, Any]:
    """config.json of a model that sees or hears."""
    heard = hearing.FAMILIES.get(name)
    made = (heard or seeing.FAMILIES[name]).config()
    if heard:
        return {**made.to_dict(), "architectures": [heard.architecture]}
    kinds = transformers.AutoModelForImageTextToText._model_mapping
    named = made.architectures or ([kinds[type(made)].__name__] if type(made) in kinds else None)
    said = {**made.to_dict(), "architectures": named}  # None: `published` names it
    return seeing.FAMILIES[name].published(said)


@pytest.mark.parametrize("name", sorted(seeing.FAMILIES | hearing.FAMILIES))
@pytest.mark.sampled(11)
def test_the_groups_of_models_that_see_and_hear_are_read_as_closely(name: str, tmp_path: Path) -> None:
    config = whole(name)
    file = tmp_path / "config.json"

    def stored(config: dict[str, Any]) -> dict[str, Any]:
        file.write_text(json.dumps(config))
        return read_config(tmp_path)

    read(stored(config))
    for path in places(config):
        made = stored(planted(config, path))
        fix = "--language-model-only" if path[0] in ("vision_config", "audio_config") else ""
        with pytest.raises(UnsupportedModelError, match=rf"{path[-1]}: '{ODD}' is not known.*{fix}"):
            read(made)
        if path[0] in ("vision_config", "audio_config"):
            read({**made, "language_model_only": True})


def test_a_scaling_by_alpha_is_a_larger_base_and_drops_no_key() -> None:
    """Transformers reads only `alpha` of the group: the other known keys, which published files have, change nothing."""
    config = {**test_sizes.config("hunyuan"), "rope_parameters": None, "head_dim": 64}
    said = {**DYNAMIC, "beta_fast": 32, "factor": 8.0, "mscale": 3.0, "mscale_all_dim": 1.0, "attention_factor": 2.0}
    theirs = HunYuanDenseV1RotaryEmbedding(transformers.HunYuanDenseV1Config(head_dim=64, rope_scaling=dict(said)))
    cos, sin = theirs(torch.zeros(1), torch.arange(100)[None])
    (found,) = read({**config, "rope_scaling": said}).ropes
    table = cos_sin_table(found.parameters, 64, found.trained, 100)
    torch.testing.assert_close(table, torch.cat([cos[0, :, :32], sin[0, :, :32]], -1), atol=2e-6, rtol=0)
    for odd in ("short_mscale", "alphas"):
        with pytest.raises(UnsupportedModelError, match=rf"'{odd}' is not known"):
            read({**config, "rope_scaling": {**DYNAMIC, odd: 1.3}})
    with pytest.raises(UnsupportedModelError, match="'alpha' is not known"):
        read({**config, "rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 50.0}})


@pytest.mark.parametrize("name", ["gemma3", "modernbert", "mimo-v2-flash"])
def test_a_group_of_no_layer_type_is_refused_by_name(name: str) -> None:
    config = test_sizes.config(name)
    said = {**config["rope_parameters"], "slidng_attention": {"rope_theta": 1e4}}
    with pytest.raises(UnsupportedModelError, match=r"rope_parameters: 'slidng_attention' is not known"):
        read({**config, "rope_parameters": said})


def test_a_scaling_for_all_layers_is_not_lost_where_layer_types_have_settings() -> None:
    linear = {"rope_type": "linear", "factor": 2.0}
    with pytest.raises(UnsupportedModelError, match=r"rope_scaling: not supported with rope_parameters per layer type"):
        read({**test_sizes.config("gemma3"), "rope_scaling": linear})
    config = {**test_sizes.config("mimo-v2-flash"), "rope_parameters": None}
    read(config)
    for key in ("rope_scaling", "rope_parameters"):
        with pytest.raises(UnsupportedModelError, match=rf"{key}: this family has a scaling per layer type"):
            read({**config, key: linear})


def test_one_scaling_of_older_files_of_modernbert_is_that_of_every_layer_type() -> None:
    linear = {"rope_type": "linear", "factor": 2.0}
    config = {**test_sizes.config("modernbert"), "rope_parameters": None, "rope_scaling": linear}
    theirs = transformers.ModernBertConfig(rope_scaling=dict(linear)).rope_parameters
    assert sorted(rope.parameters["rope_theta"] for rope in read(config).ropes) == sorted(
        each["rope_theta"] for each in theirs.values()
    )
    assert all(rope.parameters["factor"] == 2.0 for rope in read(config).ropes)


def test_the_layer_types_of_transformers_are_known() -> None:
    assert set(ALLOWED_ATTN_LAYER_TYPES) <= LAYER_TYPES


def test_a_family_from_elsewhere_reads_keys_of_its_own_as_it_says() -> None:
    """What `rope` lets through for a family is known in every group."""
    from thalweg.models.families.common import attention, mlp, pre_norms, rope
    from thalweg.models.spec import Layer

    def known(config: Any) -> Any:
        heads = attention(config, head_dim=12, rope=rope(config, 12, keys=(ODD,)))
        return decoder(config, [Layer(heads, mlp(config), pre_norms(config))])

    config = planted(test_sizes.config("llama"), ("rope_parameters",))
    (found,) = _reader(known, None)(config).ropes
    assert found.parameters[ODD] == 1.3
    with pytest.raises(UnsupportedModelError, match=ODD):
        read(config)
