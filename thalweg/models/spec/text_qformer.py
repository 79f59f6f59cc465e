"""The Q-Former of InstructBLIP (Dai et al. 2023, https://arxiv.org/abs/2305.06500): its queries attend to a text, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.qformer import QFormerSpec
from thalweg.models.weights import Source, Weight, Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQFormerSpec(QFormerSpec):
    """Queries and words attend to each other. Only queries attend to the window. Words have a separate feed-forward part, and
    none in the last layer, where no output depends on them."""

    vocab: int
    """Rows of the table of words."""
    places: int
    """Words of the longest text."""

    def weights(self, outputs: int) -> Weights:
        """outputs: size of the language model's vectors."""
        result: dict[str, Any] = dict(QFormerSpec.weights(self, outputs))
        at, n = f"{self.root}qformer.embeddings.", self.hidden
        result["enter"] = self.norm("layernorm").weights(at)
        result["words"] = Weight((Source(f"{at}word_embeddings.weight", (self.vocab, n)),))
        result["places"] = Weight((Source(f"{at}position_embeddings.weight", (self.places, n)),))
        result["layers"] = {
            i: {**layer, "text": self._text_part(f"{self.root}qformer.encoder.layer.{i}.")} if i < self.layers - 1 else layer
            for i, layer in result["layers"].items()
        }
        return result

    @property
    def unread(self) -> tuple[str, ...]:
        """Prefixes of tensors on which no output depends."""
        at = f"{self.root}qformer.encoder.layer.{self.layers - 1}."
        return f"{at}intermediate.", f"{at}output."

    def _text_part(self, at: str) -> Weights:
        return {
            "up": linear({f"{at}intermediate.dense": self.inner}, self.hidden, shard=0, bias=True),
            "down": linear({f"{at}output.dense": self.hidden}, self.inner, shard=0, bias=True),
            "norm": self.norm("output.LayerNorm").weights(at),
        }
