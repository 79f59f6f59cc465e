"""SEW-D (Wu et al. 2021, https://arxiv.org/abs/2109.06870): SEW's convolutions, and layers whose attention is DeBERTa's."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.entrances import scale_shift
from thalweg.models.spec.wav2vec import Wav2VecSpec
from thalweg.models.weights import Source, Weight, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class DisentangledClipSpec(Wav2VecSpec):
    """No norm precedes the first layer. Vectors of distances, behind a norm, are projected as queries and keys are (He et al.
    2021, https://arxiv.org/abs/2006.03654)."""

    places_reach: int
    """Distances on each side that have a vector: buckets, if there are any."""
    buckets_each: int
    """Buckets of distances on each side. 0: each distance is one."""
    longest: int
    """The distance that the last bucket ends at."""

    def weights(self, hidden: int) -> Weights:
        """As of `Wav2VecSpec`."""
        result = dict(Wav2VecSpec.weights(self, hidden))
        del result["norm"]
        at = f"{self.root}encoder."
        result["far"] = Weight((Source(f"{at}rel_embeddings.weight", (2 * self.places_reach, self.hidden)),))
        result["far_norm"] = scale_shift(f"{at}LayerNorm", self.hidden)
        return result
