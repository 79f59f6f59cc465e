"""Modules for multi-token prediction in two common forms: a layer after the last, as of DeepSeek V3 and GLM-4.5, and tensors
under "mtp.", as of Qwen3-Next."""

from __future__ import annotations

from dataclasses import replace

from thalweg.models.spec import Layer, ModelSpec, MTPSpec, Names, Norm


def attach_module(spec: ModelSpec, layer: Layer, eps: float, folder: str = "", cache: int | None = None) -> ModelSpec:
    """spec with its first module, which has this layer. The module's copies of the embedding and the output matrix are not
    read. folder: subfolder with its files. "": they are the model's. cache: as `MTPSpec.cache`."""
    root, hidden = f"{spec.root}{spec.layer.format(len(spec.layers))}", spec.hidden
    root = f"{folder}/{root}" if folder else root
    module = MTPSpec(
        vocab=spec.vocab, hidden=hidden, layers=(layer,), norm=Norm("shared_head.norm", hidden, eps),
        token_norm=Norm("enorm", hidden, eps), hidden_norm=Norm("hnorm", hidden, eps), proj="eh_proj", hidden_first=False,
        root=root, folder=folder, cache=cache, names=Names(skip=(f"{root}embed_tokens.", f"{root}shared_head.head.")),
    )  # fmt: skip
    return replace(spec, mtp=module)


MODULE = "mtp."
"""Prefix of a module's tensors in the second form."""


def attach_mtp(spec: ModelSpec, layer: Layer, eps: float, offset: float = 0.0) -> ModelSpec:
    """spec with its first module, which has this layer. offset: of the weights of its norms."""
    hidden = spec.hidden
    module = MTPSpec(
        vocab=spec.vocab, hidden=hidden, layers=(layer,), norm=Norm("norm", hidden, eps, offset=offset),
        token_norm=Norm("pre_fc_norm_embedding", hidden, eps, offset=offset),
        hidden_norm=Norm("pre_fc_norm_hidden", hidden, eps, offset=offset), proj="fc", hidden_first=False, root=MODULE,
        layer="layers.{}.",
    )  # fmt: skip
    return replace(spec, mtp=module)
