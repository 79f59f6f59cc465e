"""An MoE for tokens of text, and one for those of images (Ernie 4.5 VL)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.mlp import MLP
from thalweg.models.spec.moe import MoE
from thalweg.models.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ModalityMoE:
    """Tokens of some ids go to the experts of images, others to those of text. All go to the shared expert. Both mixtures
    compute every token, and one of the results is selected."""

    text: MoE
    image: MoE
    ids: tuple[int, ...]
    """Token ids of images: the placeholder, and the tokens around it."""
    shared: MLP | None = None
    """Its name is relative to this part's."""
    name: str = "mlp"

    @property
    def width(self) -> int:
        return self.text.width + self.image.width + (self.shared.width if self.shared else 0)

    def weights(self, at: str, hidden: int) -> Weights:
        result = {"text": self.text.weights(at, hidden), "image": self.image.weights(at, hidden)}
        return result | ({} if self.shared is None else {"shared": self.shared.weights(f"{at}{self.name}.", hidden)})
