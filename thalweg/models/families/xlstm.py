"""xLSTM: matrix LSTMs instead of attention, gated MLPs, capped gates and logits."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import decoder, hidden_size, layer_count
from thalweg.models.spec import MLP, Layer, MatrixLSTM, ModelSpec, Norm, Norms


def xlstm(config: Config) -> ModelSpec:
    for key, usual in (("use_bias", False), ("add_out_norm", True)):
        if flag(config, key, usual) != usual:
            raise UnsupportedModelError(f"config.json: {key}: this version serves xLSTM with {str(usual).lower()}")
    if (mode := text(config, "weight_mode", "single")) not in ("single", "fused"):
        raise UnsupportedModelError(f"config.json: weight_mode: unknown {mode!r:.80}; supported: single, fused")
    hidden, e, fused = hidden_size(config), real(config, "norm_eps", 0, 1, default=1e-6), mode == "fused"
    heads = integer(config, "num_heads", high=1 << 16, default=8)
    keys, values = (int(hidden * _factor(config, key, n)) for key, n in (("qk_dim_factor", 0.5), ("v_dim_factor", 1.0)))
    if keys % heads or values % heads or not keys or not values:
        raise CheckpointError(f"config.json: num_heads: {heads} do not divide keys of {keys} values and values of {values}")
    mixer = MatrixLSTM(
        heads=heads, key_dim=keys // heads, value_dim=values // heads, cap=_factor(config, "gate_soft_cap", 15.0),
        eps=real(config, "eps", 0, 1, default=1e-6), norm_eps=e, fused=fused,
    )  # fmt: skip
    multiple = integer(config, "ffn_round_up_to_multiple_of", default=64)
    inner = int((hidden * _factor(config, "ffn_proj_factor", 2.667) + multiple - 1) // multiple) * multiple
    ffn = MLP(
        inner=inner, name="ffn", gate="proj_up_gate", up="proj_up", down="proj_down", fused="proj_up_gate_z" if fused else ""
    )
    layer = Layer(mixer, ffn, Norms(mixer=Norm("norm_mlstm", hidden, e), ffn=Norm("norm_ffn", hidden, e)))
    return decoder(
        config, [layer] * layer_count(config), norm=Norm("out_norm", hidden, e), root="backbone.", layer="blocks.{}.",
        embed="embeddings", logit_softcap=_factor(config, "output_logit_soft_cap", 30.0),
    )  # fmt: skip


def _factor(config: Config, key: str, absent: float) -> float:
    return real(config, key, 1e-3, 1e4, default=absent)
