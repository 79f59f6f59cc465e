"""Audio processors: the longest clip, its placeholder text in the prompt, and the arrays for the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from thalweg.engine.messages import Input
from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import SamplingArrays, StepBatch
from thalweg.media.mel import HOP, RATE, spectrum

F32, I32 = np.float32, np.int32


class AudioProcessor(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Settings of one model. Its encoder reads a clip in chunks of frames, which it halves a few times."""

    rate: int = RATE
    """Samples per second of clips, as the encoder reads them."""
    token: int
    """The id that stands for one vector."""
    marker: str = ""
    """The placeholder in templates. "": the token's own text."""
    bins: int
    hidden: int
    """Of the encoder."""
    chunk: int
    """Frames that convolutions see together."""
    halvings: int
    window: int = 1
    """Chunks that layers see together."""
    group: int
    """Neighbours that become one vector."""
    most: float
    """Seconds of the longest clip."""
    least: int
    """Frames of the shortest clip. With `lengthen`, shorter clips are padded with silence; otherwise they are rejected."""
    lengthen: bool = False
    ends: Literal["silence", "zeros", "short"]
    """Padding of the last chunk: silence as the spectrum has it, zeros, or none unless earlier chunks exist."""
    whole: bool = False
    """The encoder reads the padding, too."""
    given: bool = True
    """The padding yields vectors, too."""
    sines: bool = False
    """Places are sines and cosines."""
    turned: int = 0
    """Values of each head that turn by their place in the chunk; 0 = none do."""
    theta: float = 1e4
    """Of that."""
    spun: int = 0
    """Values of a vector that turn by its chunk, and as many by its place in it; 0 = none do."""
    spin: tuple[float, float] = (1200.0, 0.04)
    """Rotary time embedding: the base, and seconds from one vector to the next."""
    numbered: str = ""
    """As of `MediaReader`."""
    edges: tuple[int, int] | None = None
    """Ids before and after a clip's vectors."""
    apart: bool = False
    """Each chunk has a separate spectrum."""
    prefix: int = 0
    """Of a causal encoder: frames of a vector, which depends on no later ones. 0: it may depend on all."""
    cut: bool = False
    """A last part of less than HOP samples is left out. Else silence follows it."""

    def frames(self, samples: int) -> int:
        """Frames of a clip with `samples` samples at `rate`."""
        if self.lengthen:
            samples = max(samples, self.least * HOP)
        return samples // HOP if self.cut else -(-samples // HOP)

    def problem(self, samples: int) -> str:
        """Why a clip of `samples` samples is rejected, as an error message for the client. "": accepted."""
        seconds = samples / self.rate
        if seconds > self.most:
            return f"lasts {seconds:.1f} seconds, and this model accepts {self.most:g} at once: send it in parts"
        if self.frames(samples) < self.least:
            return f"lasts {seconds:.3f} seconds; this model needs at least {self.least * HOP / RATE:g}"
        return ""

    def encoder_frames(self, frames: int) -> int:
        """Frames that the encoder's layers read for a clip of `frames` frames."""
        return -(-frames // self.chunk) * self.chunk if self.whole else frames

    def states(self, frames: int) -> int:
        """States after the convolutions, for `frames` frames of one chunk."""
        for _ in range(self.halvings):
            frames = -(-frames // 2)
        return frames

    def lengths(self, frames: int) -> list[int]:
        """States of each chunk of a clip after the convolutions."""
        frames = self.encoder_frames(frames)
        return [self.states(min(self.chunk, frames - at)) for at in range(0, frames, self.chunk)]

    def count(self, frames: int) -> int:
        """Vectors."""
        if not self.given:  # chunks before the last are full, and no vector is made of two
            return (frames // self.chunk * self.states(self.chunk) + self.states(frames % self.chunk)) // self.group
        return sum(self.lengths(frames)) // self.group

    def mel(self, sound: np.ndarray) -> np.ndarray:
        """f32[samples] at RATE -> f32[bins, frames]: the clip's frames, and those of padding that the encoder reads."""
        step = self.chunk * HOP if self.apart else sound.size
        parts = [self._mel(sound[at : at + step], self.chunk * HOP / RATE if self.apart else self.most)
                 for at in range(0, sound.size, step)]  # fmt: skip
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)

    def _mel(self, sound: np.ndarray, most: float) -> np.ndarray:
        """most: seconds of the longest."""
        if self.cut:
            missing = self.frames(sound.size) * HOP - sound.size
            return spectrum(np.pad(sound, (0, missing)) if missing > 0 else sound, self.bins)
        heard = self.encoder_frames(self.frames(sound.size))
        last = heard if self.whole else int(most * RATE) // HOP
        wanted = min(heard + 2, last) if self.ends == "silence" else heard
        # Shorter clips are padded with silence, as reflect padding would mirror the clip.
        wave = np.zeros(min(wanted + 2, last) * HOP, F32)
        wave[: sound.size] = sound
        return np.ascontiguousarray(spectrum(wave, self.bins)[:, :wanted])

    def arrange(self, item: Input, ids: Sequence[int]) -> Input:
        """As `MediaReader.arrange`. What follows the frames in `Input.size` is passed to `batch`."""
        return item

    def batch(self, mel: np.ndarray, frames: int) -> StepBatch:
        """A clip as a step: one sequence for each chunk that layers attend within. frames: of the clip itself."""
        heard, lengths = self.encoder_frames(frames), self.lengths(frames)
        short = len(lengths) == 1 and self.ends != "zeros"
        width = mel.shape[1] if short else self.chunk
        chunks, real = np.zeros((len(lengths), self.bins, width), F32), np.zeros((len(lengths), width), F32)
        for i in range(len(lengths)):
            part = mel[:, i * self.chunk : (i + 1) * self.chunk]
            chunks[i, :, : part.shape[1]] = part
            real[i, : heard - i * self.chunk] = 1
        place = np.concatenate([np.arange(n, dtype=I32) for n in lengths])
        row = np.concatenate([i * self.states(width) + np.arange(n, dtype=I32) for i, n in enumerate(lengths)])
        seen = np.array([sum(lengths[i : i + self.window]) for i in range(0, len(lengths), self.window)], I32)
        total = int(seen.sum())
        return StepBatch(
            tokens=np.zeros(total, I32), token_seq=np.repeat(np.arange(len(seen), dtype=I32), seen),
            positions=np.concatenate([np.arange(n, dtype=I32) for n in seen]), slots=np.arange(1, 1 + len(seen), dtype=I32),
            context=np.zeros(len(seen), I32), query=seen, last_row=np.cumsum(seen, dtype=I32) - I32(1),
            emit=np.zeros(len(seen), bool), block_tables=(np.zeros((len(seen), 1), I32),),
            sampling=SamplingArrays.greedy(len(seen)),
            parts=(
                Frames(
                    mel=chunks, real=real, row=row.astype(I32), place=place, sines=self._sines(place),
                    turn=self._turn(place), spin=self._spin(lengths),
                    keep=np.arange(self.count(frames) * self.group, dtype=I32),
                ),
            ),
        )  # fmt: skip

    def _sines(self, place: np.ndarray) -> np.ndarray:
        """f32[T, hidden]: sines, then cosines; of models with a learned table, none."""
        if not self.sines:
            return np.zeros((place.size, 0), F32)
        half = self.hidden // 2
        slower = np.exp(np.arange(half, dtype=F32) * F32(-np.log(10_000) / (half - 1)))
        angle = place[:, None].astype(F32) * slower
        return np.concatenate([np.sin(angle), np.cos(angle)], 1).astype(F32)

    def _turn(self, place: np.ndarray) -> np.ndarray:
        """f32[T, turned]: cosines, then sines."""
        every = 1 / F32(self.theta) ** (np.arange(0, self.turned, 2, dtype=F32) / F32(max(self.turned, 1)))
        angle = place[:, None].astype(F32) * every
        return np.concatenate([np.cos(angle), np.sin(angle)], 1).astype(F32)

    def _spin(self, lengths: Sequence[int]) -> np.ndarray:
        """f32[vectors, 2 * spun]: cosines, then sines. Time runs through both, on top of chunk and place."""
        each = [n // self.group for n in lengths]
        if not self.spun:
            return np.zeros((sum(each), 0), F32)
        base, step = self.spin
        chunk = np.repeat(np.arange(len(each)), each).astype(F32)
        place = np.concatenate([np.arange(n, dtype=F32) for n in each])
        time = (chunk * F32(self.states(self.chunk) // self.group) + place) * F32(step)
        every = 1 / F32(base) ** (np.arange(0, self.spun, 2, dtype=F32) / F32(self.spun))
        parts = [(chunk / F32(base))[:, None] * every, (place / F32(base) * F32(2 * np.pi))[:, None] * every]
        angle = np.concatenate(parts, 1) * (-time * F32(2 * np.pi))[:, None]
        return np.concatenate([np.cos(angle), np.sin(angle)], 1).astype(F32)
