"""Modules for multi-token prediction that files keep as a layer after the last, as DeepSeek V3 and GLM-4.5 do."""

from __future__ import annotations

from dataclasses import replace

from thalweg.models.spec import Layer, ModelSpec, MTPSpec, Names, Norm


def attach_module(spec: ModelSpec, layer: Layer, eps: float, folder: str = "") -> ModelSpec:
    """spec with its first module, which has this layer. The module's copies of the embedding and the output matrix are not
    read. folder: subfolder with its files. "": they are the model's."""
    root, hidden = f"{spec.root}{spec.layer.format(len(spec.layers))}", spec.hidden
    root = f"{folder}/{root}" if folder else root
    module = MTPSpec(
        vocab=spec.vocab, hidden=hidden, layers=(layer,), norm=Norm("shared_head.norm", hidden, eps),
        token_norm=Norm("enorm", hidden, eps), hidden_norm=Norm("hnorm", hidden, eps), proj="eh_proj", hidden_first=False,
        root=root, folder=folder, names=Names(skip=(f"{root}embed_tokens.", f"{root}shared_head.head.")),
    )  # fmt: skip
    return replace(spec, mtp=module)
