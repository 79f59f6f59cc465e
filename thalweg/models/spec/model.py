"""A layer, a model, and the parts around the layers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from thalweg.models.spec.adapter import Adapter, StackedAdapter
from thalweg.models.spec.altup import AltUp, Laurel, Streams
from thalweg.models.spec.audio import AudioSpec
from thalweg.models.spec.block_transcriber import BlockTranscriberSpec
from thalweg.models.spec.causal_audio import CausalAudioSpec
from thalweg.models.spec.code2wav import Code2WavSpec
from thalweg.models.spec.conformer import ConformerSpec
from thalweg.models.spec.conformer_transcriber import ConformerTranscriberSpec
from thalweg.models.spec.depth import CodeRows, DepthSpec, PositionText, TextTable
from thalweg.models.spec.disentangled import Distances
from thalweg.models.spec.fastconformer import FastConformerSpec
from thalweg.models.spec.gated_streams import GatedResidual, GatedStreams
from thalweg.models.spec.hyper import HyperConnection, HyperStreams
from thalweg.models.spec.loop_input import LoopInput
from thalweg.models.spec.memory import MemoryPart, MemoryStreams
from thalweg.models.spec.memory_encoder import MemoryEncoderSpec
from thalweg.models.spec.mimi import MimiSpec
from thalweg.models.spec.mimi_encoder import MimiEncoderSpec
from thalweg.models.spec.norm import AnyNorm, Norms
from thalweg.models.spec.part import FFN, Mixer
from thalweg.models.spec.patch_source import PatchSource
from thalweg.models.spec.perlayer import LayerEnding, LayerInputs
from thalweg.models.spec.residual_blocks import DepthAttention, ResidualBlocks
from thalweg.models.spec.residual_gate import ResidualGate
from thalweg.models.spec.residual_scaling import ResidualScaling
from thalweg.models.spec.rope import Rope
from thalweg.models.spec.sam import SamSpec
from thalweg.models.spec.speech import SpeechEncoder
from thalweg.models.spec.stream_skip import StreamSkip
from thalweg.models.spec.swin_source import SwinSource
from thalweg.models.spec.text_encoder import TextEncoder
from thalweg.models.spec.tile_source import TileSource
from thalweg.models.spec.vision import VisionSpec
from thalweg.models.spec.vits import VitsSpec
from thalweg.models.spec.vq_encoder import VqEncoderSpec
from thalweg.models.spec.wav2vec import Wav2VecSpec
from thalweg.models.spec.window_conformer import WindowConformerSpec
from thalweg.models.tail import Pooling
from thalweg.models.weights import Source, TensorView, Weight, Weights, attach_views, matrices, table_source, vector

if TYPE_CHECKING:
    from thalweg.models.spec.mtp import MTPSpec

Around = (
    LayerEnding | AltUp | HyperConnection | GatedResidual | ResidualGate | MemoryPart | StreamSkip | DepthAttention
    | LoopInput | ResidualScaling
)  # fmt: skip
ENTRY = ("embed", "speech", "text", "learned", "inputs", "streams", "embed_norm", "embed_projection", "vision", "audio")
"""Keys of parameters that only the first stage has."""
TAIL = ("norm", "head", "classes", "lexical", "dense")
"""Keys of parameters that only the last stage has."""
EXPERT = re.compile(r"\.experts\.(\d{1,9})\.")


@dataclass(frozen=True, slots=True)
class Layer:
    """x + mixer(x), then x + ffn(x), normalised as `norms` says. Either may be missing, but not both."""

    mixer: Mixer | tuple[Mixer, ...] | None
    """Several read the same x, and their outputs are added."""
    ffn: FFN | None
    norms: Norms
    parallel: bool = False
    """Both parts see the same x, and both are added to it. Without a separate norm the ffn reads the mixer's input."""
    multiplier: float = 1.0
    """Factor of both parts' additions to the residual stream."""
    mixer_scales: tuple[tuple[float, float], ...] = ()
    """Factors of each mixer's input and output; () = 1."""
    ffn_scale: float = 1.0
    """Factor of the ffn's output."""
    laurel: Laurel | None = None
    around: Around | None = None
    """The layer's wrapper."""

    def __post_init__(self) -> None:
        if not self.mixers and self.ffn is None:
            raise ValueError("Layer: it has neither a mixer nor a feed-forward part")
        if len(self.mixer_scales) not in (0, len(self.mixers)):
            raise ValueError(f"Layer: {len(self.mixer_scales)} scales for {len(self.mixers)} mixers")
        lacks = [k for k in Norms.KEYS if getattr(self.norms, k) and (self.ffn is None if "ffn" in k else not self.mixers)]
        if lacks or (self.parallel and (not self.mixers or self.ffn is None)):
            raise ValueError(f"Layer: {', '.join(lacks) or 'parallel'} of a part that it has not")
        if self.laurel is not None and (self.parallel or self.norms.mixer_sum):
            raise ValueError("Layer: laurel is added between the parts, to the stream itself")
        if self.parallel and (self.norms.mixer_sum or self.norms.ffn_sum):
            raise ValueError("Layer: parallel parts are added once, so there is no sum between them to normalise")
        if self.ffn is None and (self.parallel or self.norms.ffn or self.norms.ffn_out or self.norms.ffn_sum):
            raise ValueError("Layer: there is no feed-forward part to normalise, or to be parallel to")

    def weights(self, at: str, hidden: int) -> Weights:
        norms = {k: n.weights(at) for k in Norms.KEYS if (n := getattr(self.norms, k)) is not None}
        built: dict[str, Any] = {"norms": norms}
        if isinstance(self.mixer, tuple):
            built["mixer"] = {i: each.weights(at, hidden) for i, each in enumerate(self.mixer)}
        elif self.mixer is not None:
            built["mixer"] = self.mixer.weights(at, hidden)
        for key in ("ffn", "laurel", "around"):
            if (part := getattr(self, key)) is not None:
                built[key] = part.weights(at, hidden)
        return built

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        if self.mixer is None:
            return ()
        return self.mixer if isinstance(self.mixer, tuple) else (self.mixer,)


@dataclass(frozen=True, slots=True)
class LearnedEmbedding:
    """A learned table with one row added to each token's embedding."""

    name: str
    rows: int
    by: Literal["position", "type", "first"] = "position"
    """Which row: that of the token's position, or that of its type (of two texts in one sequence, which), or always the
    first."""
    first: int = 0
    """By position: the row of position 0. Those before it are of no use here (RoBERTa: its padding's, and one more)."""
    sines: int = 0
    """By position: no file has the table. Columns i and i + hidden / 2 are the sine and the cosine of
    row * 10000 ** (-i / sines). 0: it is learned."""

    @property
    def positions(self) -> int:
        """Of the longest sequence."""
        return self.rows - self.first

    def weights(self, at: str, hidden: int) -> Weights:
        if self.sines:
            return {"weight": Weight((table_source(f"{at}{self.name}", self.rows, hidden),))}
        return {"weight": Weight((Source(f"{at}{self.name}.weight", (self.rows, hidden)),), role="embedding")}


@dataclass(frozen=True, slots=True)
class EmbedProjection:
    """A linear layer with a bias, from narrower embeddings to the layers' width."""

    name: str
    width: int
    """Of embedded tokens, of what is added to them, and of their norm."""

    def weights(self, at: str, hidden: int) -> Weights:
        weight = Weight((Source(f"{at}{self.name}.weight", (hidden, self.width)),))
        return {"weight": weight, "bias": vector(f"{at}{self.name}.bias", hidden)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """How a checkpoint's names differ from those that the parts of a spec give."""

    replace: tuple[tuple[str, str], ...] = ()
    """Prefixes and their replacements; the first match counts. Bare decoders lack the `root`, which is added."""
    inside: tuple[tuple[str, str], ...] = ()
    """Parts of names, anywhere in them, and their replacements; all are applied."""
    experts: int = 0
    """Of a mixture: tensors of experts beyond so many hold nothing. 0 = all hold something."""
    skip: tuple[str, ...] = ()
    """Prefixes of tensors that hold nothing of this model, such as another modality's: as the checkpoint names them, or as
    they are known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """An embedding, layers, a last norm, and a tail: an output matrix for sampling, or pooling."""

    vocab: int
    hidden: int
    layers: tuple[Layer, ...]
    norm: AnyNorm | None
    """Of the last layer's output."""
    learned: tuple[LearnedEmbedding, ...] = ()
    """Added to embedded tokens."""
    distances: Distances | None = None
    """The table for layers with `DisentangledAttention`."""
    speech: SpeechEncoder | None = None
    """The encoder of audio, with the vectors that cross-attention reads."""
    text: TextEncoder | None = None
    """The encoder of a source text, likewise. It shares the embedding."""
    tile_source: TileSource | PatchSource | SwinSource | None = None
    """The encoder of an image, likewise. A sequence may lack one, if the encoder is a `TileSource`."""
    numbers: tuple[int, ...] = ()
    """Of each layer: its number in names of tensors. (): they are counted from 0."""
    embed_norm: AnyNorm | None = None
    """Of the first layer's input."""
    learned_after_norm: bool = False
    """`learned` is added to the output of `embed_norm`. False: to its input."""
    embed_projection: EmbedProjection | None = None
    """Of the first layer's input, after `embed_norm`."""
    inputs: LayerInputs | None = None
    """The separate input of each layer."""
    streams: Streams | HyperStreams | GatedStreams | MemoryStreams | ResidualBlocks | None = None
    """Residual streams, where there are several."""
    pooling: Pooling | None = None
    """None: the tail is the output matrix."""
    tied: bool = False
    """The embedding is also the output matrix."""
    embed_scale: float = 1.0
    """Of embedded tokens, rounded to the model's dtype."""
    logit_scale: float = 1.0
    head_bias: bool = False
    """Of the output matrix."""
    logit_bias: str = ""
    """The tensor [1, vocab] that is added to logits; "" = none."""
    head_normed: bool = False
    """Each row of the output matrix is divided by its length."""
    logit_softcap: float = 0.0
    """0 = off; else logits become cap * tanh(logits / cap)."""
    banned_tokens: tuple[int, ...] = ()
    """Tokens that only prompts contain. Their logits are the lowest float32."""
    root: str = "model."
    layer: str = "layers.{}."
    embed: str = "embed_tokens"
    """"" = no file has it: tokens are placeholders."""
    prompt_ids: tuple[tuple[int, int], ...] = ()
    """(id, unused token) of tokens behind the vocabulary, which only prompts contain. The row of the stored embedding at `id`
    replaces that of the unused token. Requires `table_rows`."""
    table_rows: int = 0
    """Rows of the stored embedding, of which the first `vocab` are loaded. 0 = as many."""
    table_more: tuple[str, int] | None = None
    """(tensor, rows) of the embedding's last rows, where they are a separate tensor. Its name is that of a parameter."""
    head: str = "lm_head"
    head_rows: int = 0
    """Rows of the output matrix, which only prompts contain the tokens behind; 0 = `vocab`."""
    head_stored: int = 0
    """Rows of the stored output matrix, of which the first `head_rows` count; 0 = it has no others."""
    names: Names = field(default_factory=Names)
    adapter: Adapter | StackedAdapter | None = None
    """The addition to its matrices."""
    overlays_added: bool = False
    """Vectors of a sequence are added to the embeddings of its tokens. False: they replace those of placeholders."""
    overlay_layers: tuple[int, ...] = ()
    """Layers to whose outputs the further vectors of a placeholder are added. (): the first ones."""
    overlays_last: bool = False
    """They replace the first layer's input: neither a position nor `embed_norm` is applied to them."""
    audio: (
        AudioSpec
        | BlockTranscriberSpec
        | CausalAudioSpec
        | ConformerSpec
        | ConformerTranscriberSpec
        | FastConformerSpec
        | MemoryEncoderSpec
        | MimiEncoderSpec
        | Wav2VecSpec
        | WindowConformerSpec
        | None
    ) = None
    """The audio encoder. Its vectors replace placeholders of a prompt."""
    vision: VisionSpec | SamSpec | VqEncoderSpec | None = None
    """The vision encoder; None: the model is text-only."""
    voice: VitsSpec | MimiSpec | Code2WavSpec | None = None
    """The network that turns utterances into samples. None: the model does not speak."""
    spoken_text: TextTable | PositionText | None = None
    """The embeddings of a text, where tokens are codes of speech."""
    prefix_lm: bool = False
    """All tokens of a prompt attend to each other. Its layers have `Attention.spans`."""
    states_before: int = 0
    """Hidden states of prompt tokens before this layer are returned on request. 0: none are."""
    code_rows: CodeRows | None = None
    """Tokens are these rows of the stored vocabulary, and `head_rows` is set."""
    depth: DepthSpec | None = None
    """The decoder of the codes of a frame after its first. None: a token is one code."""
    mtp: MTPSpec | None = None
    """A module of the checkpoint that drafts further tokens. Only the drafter `mtp` loads it."""
    span: tuple[int, int] | None = None
    """Of a pipeline stage: its layers, [first, end). The first stage has the embedding and the encoders, the last one the norm
    and the tail. None: all layers."""

    def __post_init__(self) -> None:
        if self.head_normed and self.tied:
            raise ValueError("ModelSpec: rows of an embedding have the lengths they have")
        if self.tied and self.embed_projection is not None:
            raise ValueError("ModelSpec: an embedding that is projected is not the output matrix")
        if (self.table_more or self.head_rows) and (self.tied or self.table_rows or self.head_bias or self.logit_bias):
            raise ValueError("ModelSpec: a vocabulary with more tokens than the output matrix has a plain matrix and table")
        if self.table_rows and (self.tied or self.table_rows < self.vocab):
            raise ValueError("ModelSpec: an embedding with more rows than the vocabulary is not the output matrix")
        if self.scaled_rope is not None and len(self.ropes) > 1:
            raise ValueError("ModelSpec: learned factors of frequencies are those of all rotary positions")
        for i, layer in enumerate(self.layers):
            reads = getattr(layer.mixer, "reads", None)
            if reads is None:
                continue
            forms = [
                each.cache_form() if (each := self.layers[j].mixer) and hasattr(each, "cache_form") else None
                for j in (i, reads)
            ]
            if not 0 <= reads < i or forms[0] != forms[1] or getattr(self.layers[reads].mixer, "reads", None) is not None:
                raise ValueError(f"ModelSpec: layer {i} cannot read the cache of layer {reads}, which keeps something else")

    def weights(self) -> Weights:
        """Every parameter, by the keys that loaded parameters have."""
        table = f"{self.root}{self.embed}"
        numbers = self.numbers or range(len(self.layers))
        built: dict[str, Any] = {
            "embed": {"weight": Weight(tuple(self._embedding(f"{table}.weight")), 1, "embedding")},
            "layers": {
                i: self.layers[i].weights(self.root + self.layer.format(numbers[i]), self.hidden) for i in self.layer_range
            },
        }
        for key, encoder in (("speech", self.speech), ("text", self.text), ("tile_source", self.tile_source)):
            if encoder is not None:
                built[key] = encoder.weights(self.root)
        if self.learned:
            built["learned"] = {i: each.weights(self.root, self.embed_width) for i, each in enumerate(self.learned)}
        for key, part in (
            ("distances", self.distances),
            ("inputs", self.inputs),
            ("streams", self.streams),
            ("embed_projection", self.embed_projection),
        ):
            if part is not None:
                built[key] = part.weights(self.root, self.hidden)
        if (scaled := self.scaled_rope) is not None:
            built["frequencies"] = {"log": vector(self.root + scaled.scaled, scaled.dim // 2, fill="zeros", dtype="float32")}
        for key, norm in (("embed_norm", self.embed_norm), ("norm", self.norm)):
            if norm is not None:
                built[key] = norm.weights(self.root)
        built |= self._tail_weights()
        for key, tower in (("vision", self.vision), ("audio", self.audio)):
            if tower is not None:
                built[key] = tower.weights(self.hidden)
        if self.voice is not None:
            built["voice"] = self.voice.weights()
        for key, spoken in (("spoken_text", self.spoken_text), ("depth", self.depth)):
            if spoken is not None:
                built[key] = spoken.weights(self.root)
        missing = {*(() if self.embeds else ENTRY), *(() if self.finishes else TAIL)}
        return {key: part for key, part in built.items() if key not in missing}

    def _embedding(self, name: str) -> Iterator[Source]:
        """Runs of rows of the stored embedding."""
        if self.code_rows is not None:
            yield from self.code_rows.embedding(name, self.embed_width)
            return
        begin = 0
        for row, id in sorted((unused, id) for id, unused in self.prompt_ids):
            if row > begin:
                yield Source(name, (row - begin, self.embed_width), begin, self.table_rows)
            yield Source(name, (1, self.embed_width), id, self.table_rows)
            begin = row + 1
        more, rows = self.table_more or ("", 0)
        if begin < self.vocab:
            yield Source(name, (self.vocab - rows - begin, self.embed_width), begin, self.table_rows, absent=not self.embed)
        if more:
            yield Source(f"{self.root}{more}", (rows, self.embed_width))

    def _tail_weights(self) -> dict[str, Any]:
        built: dict[str, Any] = {}
        if self.pooling is None:
            table = f"{self.root}{self.embed}"
            shape = {table if self.tied else self.head: self.head_rows or self.vocab}
            built["head"] = {"weight": matrices(shape, self.hidden, shard=0, role="tied" if self.tied else "head")}
            if self.head_stored:
                kept = replace(built["head"]["weight"].sources[0], rows=self.head_stored)
                built["head"]["weight"] = replace(built["head"]["weight"], sources=(kept,))
            if self.head_normed:  # under a name that no file has
                name = f"{self.head}.weight"
                source = Source(f"{name}.normed", (self.vocab, self.hidden))
                view = TensorView(name, source.shape, normed=True)
                built["head"]["weight"] = attach_views(replace(built["head"]["weight"], sources=(source,)), [view])
            if self.code_rows is not None:
                sources = self.code_rows.head(f"{self.head}.weight", self.hidden)
                built["head"]["weight"] = replace(built["head"]["weight"], sources=sources)
            if self.head_bias:
                built["head"]["bias"] = vector(f"{self.head}.bias", self.vocab, shard=0)
            if self.logit_bias:  # under a name that no file has
                name = f"{self.root}{self.logit_bias}"
                source = Source(f"{name}.row", (self.vocab,), within=TensorView(name, (1, self.vocab), at=0))
                built["head"]["bias"] = Weight((source,), 0)
            if self.banned_tokens:
                built["head"]["banned"] = Weight((table_source("logits of banned tokens", self.vocab),), dtype="float32")
        elif self.pooling.classes is not None:
            built["classes"] = self.pooling.classes.weights(self.root, self.hidden)
        if self.pooling is not None and self.pooling.lexical is not None:
            built["lexical"] = self.pooling.lexical.weights(self.root, self.hidden)
        if self.pooling is not None and self.pooling.dense:
            built["dense"] = {i: each.weights() for i, each in enumerate(self.pooling.dense)}
        return built

    @property
    def embed_width(self) -> int:
        """Values of an embedded token, before `embed_projection`."""
        return self.hidden if self.embed_projection is None else self.embed_projection.width

    @property
    def layer_range(self) -> range:
        """The layers of this stage."""
        return range(*self.span) if self.span else range(len(self.layers))

    @property
    def embeds(self) -> bool:
        """Is it the first stage?"""
        return self.layer_range.start == 0

    @property
    def finishes(self) -> bool:
        """Is it the last stage?"""
        return self.layer_range.stop == len(self.layers)

    @property
    def causal(self) -> bool:
        """Does every token only see those before it?"""
        return all(getattr(mixer, "causal", True) for _, mixer in self.mixers)

    @property
    def mixers(self) -> tuple[tuple[int, Mixer], ...]:
        """Every mixer with the index of its layer, in order. Each has a separate cache."""
        return tuple((i, mixer) for i, each in enumerate(self.layers) for mixer in each.mixers)

    @property
    def positions(self) -> int | None:
        """Tokens of the longest sequence that learned positions allow; None: the model has none."""
        return min((each.positions for each in self.learned if each.by == "position"), default=None)

    @property
    def source_encoder(self) -> SpeechEncoder | TextEncoder | TileSource | PatchSource | SwinSource | None:
        """The encoder whose vectors cross-attention reads."""
        return self.speech or self.text or self.tile_source

    @property
    def listens(self) -> bool:
        """Does it read audio among its tokens?"""
        return self.audio is not None

    @property
    def aligned_heads(self) -> int:
        """Heads of cross attention that align tokens with their source."""
        return sum(len(getattr(mixer, "aligned", ())) for _, mixer in self.mixers)

    @property
    def types(self) -> int:
        """Number of token types; 1 = none."""
        return max((each.rows for each in self.learned if each.by == "type"), default=1)

    @property
    def result(self) -> int:
        """Numbers that the tail gives of a sequence: logits, a vector, or one per class."""
        if self.pooling is None:
            return self.vocab
        if self.pooling.classes is not None:
            return len(self.pooling.classes.labels)
        if self.pooling.lexical is not None:
            return self.vocab
        return self.pooling.dense[-1].outputs if self.pooling.dense else self.hidden

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Each rotary table that some layer reads, once."""
        found: list[Rope] = []
        for _, mixer in self.mixers:
            if mixer.rope is not None and mixer.rope not in found:
                found.append(mixer.rope)
        return tuple(found)

    @property
    def scaled_rope(self) -> Rope | None:
        """The rotary positions with learned factors of frequencies."""
        return next((rope for rope in self.ropes if rope.scaled), None)

    @property
    def folders(self) -> tuple[str, ...]:
        """Subfolders of the model with further tensor files: FOLDER/NAME is the tensor NAME of such a file."""
        steps = () if self.pooling is None else self.pooling.dense
        more = () if self.adapter is None or not self.adapter.folder else (self.adapter.folder,)
        return (*(each.folder for each in steps if each.folder), *more)

    def rename(self, name: str) -> str | None:
        """A checkpoint's tensor name as the layers know it. None for redundant tensors: rotary tables, the output matrix of a
        tied model, and tensors skipped by `names`."""
        if self.folders and name.startswith(tuple(f"{folder}/" for folder in self.folders)):
            return name
        if name.startswith(self.names.skip) or name.endswith("rotary_emb.inv_freq"):
            return None
        if self.names.experts and (found := EXPERT.search(name)) and int(found[1]) >= self.names.experts:
            return None
        for old, new in self.names.replace:
            if name.startswith(old):
                name = new + name.removeprefix(old)
                break
        for old, new in self.names.inside:
            name = name.replace(old, new)
        if self.tied and name == f"{self.head}.weight":
            return None
        name = name if name.startswith((self.root, f"{self.head}.")) else self.root + name
        return None if name.startswith(self.names.skip) else name
