"""What a layer may be made of: a mixer, several that read the same x, none; a feed-forward part or none."""

from __future__ import annotations

import pytest

from thalweg.models import sizes
from thalweg.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Norms

HEADS = Attention(heads=4, kv_heads=2, head_dim=8)
OTHER = Attention(heads=4, kv_heads=2, head_dim=8, name="other", window=4)
INNER, BEFORE, THEN = MLP(inner=24), Norm("n", 16, 1e-5), Norm("m", 16, 1e-5)


def model(*layers: Layer) -> ModelSpec:
    return ModelSpec(vocab=32, hidden=16, layers=layers, norm=None)


def test_every_mixer_has_a_cache_and_a_layer_without_one_has_none() -> None:
    spec = model(
        Layer(None, INNER, Norms(ffn=BEFORE)),
        Layer((HEADS, OTHER), None, Norms(mixer=BEFORE), mixer_scales=((1.0, 0.5), (2.0, 1.0))),
        Layer(HEADS, INNER, Norms(mixer=BEFORE, ffn=THEN)),
    )
    assert [i for i, _ in spec.mixers] == [1, 1, 2]
    kept = sizes.cache_specs(spec, "float32", "", 64)
    assert [k.kind for k in kept] == ["full", "window", "full"]
    assert [g.layers for g in sizes.kv_groups(kept, 4, 4)] == [(0, 2), (1,)]
    assert sizes.stand_in_group(spec, 4).layers == (0, 1, 2)
    assert [k.kv_dtype for k in sizes.cache_specs(spec, "float32", "int8", 64, skip=["1"])] == ["", "", "int8"]
    names = [s.name for w in sizes.parameters(spec) for s in w.sources]
    assert sum(n.startswith("model.layers.1.other.") for n in names) == 4
    assert not any(n.startswith(("model.layers.0.self_attn", "model.layers.1.mlp")) for n in names)
    assert sizes.step_sizes(spec, tokens=8, seqs=2, max_len=64, dtype="float32").inner == 24


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Layer(None, None, Norms()), "neither"),
        (lambda: Layer(None, INNER, Norms(mixer=BEFORE)), "mixer of a part"),
        (lambda: Layer(HEADS, None, Norms(ffn_out=BEFORE)), "ffn_out of a part"),
        (lambda: Layer(HEADS, None, Norms(), parallel=True), "parallel of a part"),
        (lambda: Layer((HEADS, OTHER), INNER, Norms(), mixer_scales=((1.0, 1.0),)), "1 scales for 2 mixers"),
    ],
)
def test_a_layer_that_contradicts_itself_is_refused(made, words) -> None:
    with pytest.raises(ValueError, match=words):
        made()
