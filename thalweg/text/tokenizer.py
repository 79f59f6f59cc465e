"""The tokenizer, read from tokenizer.json: text to ids and back, and properties of the vocabulary.

tokenizer.json takes precedence. Its post-processor sets the special tokens that `encode` adds, and add_bos_token in
tokenizer_config.json is ignored (as in transformers 5). It loads in milliseconds because it uses only the `tokenizers` library.
transformers is used only for models without a tokenizer.json. It knows no models, requests or devices.

Special tokens written out in a plain prompt become those tokens, as in other engines. `encode_with_data` is for prompts that
contain user data, where they stay text (see thalweg.template.chat).
"""

from __future__ import annotations

import copy
import json
import logging
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

import tokenizers

from thalweg.errors import CheckpointError, RequestError
from thalweg.text.added import FILE, MAP, add_missing_tokens, merge_settings, special_names
from thalweg.text.characters import FILE as CHARACTERS
from thalweg.text.characters import characters, is_characters
from thalweg.text.pieces import make_pieces
from thalweg.text.speech_pieces import is_speech_pieces, load_speech_pieces
from thalweg.text.world import end_ids, find_world, load_world

log = logging.getLogger(__name__)
_LONG = 2048
"""Characters. Longer texts go through the library's batch calls, which release the GIL."""
DEFAULT_TEMPLATE = "default"


class Tokenizer:
    """A tokenizer. Immutable after loading, so it is thread-safe."""

    def __init__(
        self, backend: tokenizers.Tokenizer, config: Mapping[str, Any] | None = None, templates: Mapping[str, str] | None = None
    ) -> None:
        """config: content of tokenizer_config.json. templates: name -> source. The backend's truncation and padding are
        disabled: the server rejects prompts that do not fit."""
        config = config or {}
        self.config = dict(config)
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        add_missing_tokens(backend, config)
        self.special_tokens = special_names(config)
        """bos_token, eos_token ... -> text, for chat templates."""
        self.chat_templates = dict(templates or {})
        """Name -> source. `thalweg.template.select` selects the one for a conversation."""
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, t in added.items() if t.special)
        control = {i: t.content for i, t in added.items() if t.special or _looks_special(t.content)}
        self.special_texts = tuple(control.values())
        """Texts without effect in user data: special tokens, and added tokens that look special but are not flagged."""
        self._control_ids = frozenset(control)
        self.added_tokens = {i: t.content for i, t in added.items()}
        """Every added token, special or not."""
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = 1 + max(vocab.values(), default=-1)
        """Largest id + 1, added tokens included."""
        self.bos_id = self.id_of(self.special_tokens.get("bos_token"))
        eos = self.id_of(self.special_tokens.get("eos_token"))
        self.eos_ids: tuple[int, ...] = () if eos is None else (eos,)
        """Ids from tokenizer_config.json only. generation_config.json may name more."""
        self.response_template = config.get("response_template")
        """The format of the model's turns, as transformers' chat_parsing. None: the files have none."""
        self.max_length = _int_or_none(config.get("model_max_length"))
        self.truncation_side: Literal["left", "right"] = "left" if config.get("truncation_side") == "left" else "right"
        """Default end to truncate in texts of pooling models."""
        self.pieces = make_pieces(_part(backend.decoder))
        self.max_token_chars: float = self._most_chars(vocab, any(t.lstrip or t.rstrip for t in added.values()))
        """Most characters of text that a token adds. inf if unknown."""
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, str] = {}

    def marking(self, text: str) -> Self:
        """The same tokenizer, where this text has no effect in user data either, as callers replace it by tokens."""
        if not text or text in self.special_texts:
            return self
        result = copy.copy(self)
        result.special_texts = (*self.special_texts, text)
        return result

    def _most_chars(self, vocab: Mapping[str, int], spaces: bool) -> float:
        """spaces: an added token absorbs adjacent spaces."""
        if self.pieces is None or not self.pieces.bounded or spaces:
            return math.inf
        normalizer = (_part(self.backend.normalizer) or {"type": ""})["type"]
        shrink = {"": 1, "NFC": 4}.get(normalizer, math.inf)  # no character composes more than four
        return shrink * max(map(len, vocab), default=0)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text. RequestError if the text is not valid Unicode (a lone surrogate)."""
        if len(text) > _LONG:
            return self.encode_batch([text], add_special_tokens)[0]
        try:
            return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except TypeError:
            _check_unicode(text)
            raise

    def encode_with_data(self, text: str, data: Sequence[tuple[int, int]], add_special_tokens: bool = True) -> list[int]:
        """As `encode`, except that special tokens within the spans `data` ([start, end) in characters, in order), or across an
        empty span, are encoded as plain text."""
        if not data:
            return self.encode(text, add_special_tokens)
        (encoding,) = self.backend.encode_batch([text], add_special_tokens=add_special_tokens)
        out: list[int] = []
        at = 0
        for id, (a, b) in zip(encoding.ids, encoding.offsets, strict=True):
            while at < len(data) and data[at][1] <= a:
                at += 1
            written = id in self._control_ids and at < len(data) and data[at][0] < b
            # The unknown token is special too, and seldom written out.
            if written and text[a:b].strip().casefold() == self.added_tokens[id].strip().casefold():
                out += self._letters(text[a:b])
            else:
                out.append(id)
        return out

    def _letters(self, text: str) -> list[int]:
        """Encodes a special token's text as plain text, without special tokens except the unknown token."""
        ids: list[int] = []
        for pieces in ([text], list(text)):
            ids = [i for piece in pieces for i in self._plain(piece)]
            if self._control_ids.isdisjoint(ids):
                return ids
        unknown = self.id_of(self.special_tokens.get("unk_token"))
        return [i for i in ids if i == unknown or i not in self._control_ids]

    def _plain(self, text: str) -> list[int]:
        """The model's tokens of a text, without the search for added tokens. The text is the middle of a prompt, so
        sentencepiece's leading space is omitted."""
        backend = self.backend
        if self.pieces is not None and not self.pieces.bounded:
            words = [text.replace(" ", "▁")]
        else:
            text = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
            words = [text] if backend.pre_tokenizer is None else [w for w, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for word in words for token in backend.model.tokenize(word)]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """As `encode` for several texts, in parallel unless TOKENIZERS_PARALLELISM disables it."""
        try:
            return [e.ids for e in self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)]
        except TypeError:
            for text in texts:
                _check_unicode(text)
            raise

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of these ids. Ids outside the vocabulary add nothing, and invalid UTF-8 becomes U+FFFD."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_of(self, id: int) -> str:
        """The token's spelling in the vocabulary ("Ġthe", "▁the", "<0x0A>"). "" outside the vocabulary."""
        return self.backend.id_to_token(id) or ""

    def id_of(self, token: str | None) -> int | None:
        return None if token is None else self.backend.token_to_id(token)

    def bytes_of(self, id: int) -> bytes:
        """The exact bytes that this token adds to running text: half a character for half-character tokens, " the" for
        "▁the"."""
        piece = self._bytes.get(id)
        if piece is None:
            piece = self._bytes[id] = self.pieces.of(self.token_of(id)) if self.pieces else self.decode([id], False).encode()
        return piece

    def name_of(self, id: int) -> str:
        """`bytes_of` as text for logs and logprobs. Incomplete characters are shown as U+FFFD."""
        name = self._names.get(id)
        if name is None:
            name = self._names[id] = self.bytes_of(id).decode(errors="replace")
        return name

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids of special tokens, and of added tokens that look special but are not flagged."""
        return self._control_ids

    @property
    def chat_template(self) -> str | None:
        """The source of the model's chat template, or None. Its renderer needs `special_tokens`."""
        return self.chat_templates.get(DEFAULT_TEMPLATE)


def load_tokenizer(path: Path, rows: int | None = None) -> Tokenizer:
    """The tokenizer of a model directory. CheckpointError names the file, the fault and the remedy.

    No code of the model repository is ever run. rows: rows of the model's embedding, if known. Tokens listed only in
    added_tokens.json are omitted if they have no row."""
    path = Path(path)
    if not path.is_dir():
        raise CheckpointError(f"tokenizer: {path} is not a directory; give the directory that holds tokenizer.json")
    added = _json(path / FILE)
    beyond = [t for t, i in added.items() if rows is not None and isinstance(i, int) and i >= rows]
    if beyond:
        log.warning("%s: %s left out: the model has %d rows for tokens", path / FILE, ", ".join(beyond[:5]), rows)
    added = {t: i for t, i in added.items() if t not in beyond}
    config = merge_settings(_json(path / "tokenizer_config.json"), _json(path / MAP), added)
    found = templates(path)
    if not (path / "tokenizer.json").exists():
        if is_characters(path, config):
            return Tokenizer(characters(_json(path / CHARACTERS), config, path / CHARACTERS), config, found)
        if is_speech_pieces(path, config):
            return Tokenizer(load_speech_pieces(_json(path / CHARACTERS), config, path / CHARACTERS), config, found)
        if (vocabulary := find_world(path)) is not None:
            result = Tokenizer(load_world(vocabulary, config), config, found)
            result.eos_ids = end_ids(result.backend, result.special_tokens.get("eos_token"))
            return result
        return Tokenizer(_from_transformers(path), config, found)
    return Tokenizer(_backend(path / "tokenizer.json"), config, found)


def check_vocab(tokenizer: Tokenizer, model_vocab: int) -> None:
    """CheckpointError if a token has no row in the model's embedding. Fewer tokens than rows are allowed."""
    if tokenizer.vocab_size > model_vocab:
        last = tokenizer.token_of(tokenizer.vocab_size - 1)
        raise CheckpointError(
            f"tokenizer.json: token id {tokenizer.vocab_size - 1} ({last!r}) does not exist in the model, with vocab_size "
            f"{model_vocab}; use the tokenizer that belongs to this model (--tokenizer)"
        )


def _backend(file: Path) -> tokenizers.Tokenizer:
    fault = None
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
        if backend.get_vocab_size(with_added_tokens=False):
            return backend
    except Exception as e:  # the library raises plain Exception for every fault
        fault = e
    data = _json(file)  # large, so read only for the error message
    if not isinstance(data.get("model"), dict) or not data["model"].get("vocab"):
        raise CheckpointError(f"{file}: no model.vocab in it; download the file again or export it with save_pretrained()")
    raise CheckpointError(f"{file}: not a usable tokenizer: {fault}; download the file again") from fault


def _from_transformers(path: Path) -> tokenizers.Tokenizer:
    missing = f"{path / 'tokenizer.json'}: missing"
    if find_spec("transformers") is None:
        raise CheckpointError(f"{missing}; add the file, or install transformers (thalweg[hf]) so that it can be converted")
    from transformers import AutoTokenizer  # slow import, used only here: converts older vocabulary files

    try:
        loaded = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    except Exception as e:
        raise CheckpointError(f"{missing}, and transformers finds no tokenizer there either: {e}; add tokenizer.json") from e
    backend = getattr(loaded, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise CheckpointError(f"{missing}, and {type(loaded).__name__} cannot be converted to it; add tokenizer.json")
    return backend


def _json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. {} if the file does not exist."""
    if not file.exists():
        return {}
    try:
        data = json.loads(file.read_bytes())
    except (ValueError, OSError, RecursionError) as e:
        raise CheckpointError(f"{file}: cannot be read as JSON: {e}; download the file again") from e
    if not isinstance(data, dict):
        raise CheckpointError(f"{file}: must hold a JSON object, not {type(data).__name__}")
    return data


def templates(path: Path) -> dict[str, str]:
    """Chat templates of a model directory, name -> source. Newest place first: chat_template.jinja (+
    additional_chat_templates/), chat_template.json, tokenizer_config.json."""
    config_file = path / "tokenizer_config.json"
    found = _template_entry(config_file, _json(config_file).get("chat_template"))
    old = path / "chat_template.json"
    found |= _template_entry(old, _json(old).get("chat_template"))
    files = {DEFAULT_TEMPLATE: path / "chat_template.jinja"}
    files |= {f.stem: f for f in sorted((path / "additional_chat_templates").glob("*.jinja"))}
    for name, file in files.items():
        if file.exists():
            try:
                found[name] = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as e:
                raise CheckpointError(f"{file}: cannot be read as UTF-8 text: {e}") from e
    return found


def _template_entry(file: Path, entry: Any) -> dict[str, str]:
    if entry is None:
        return {}
    if isinstance(entry, str):
        return {DEFAULT_TEMPLATE: entry}
    named: dict[Any, Any] = {"": None}
    if isinstance(entry, list) and all(isinstance(item, Mapping) for item in entry):
        named = {item.get("name"): item.get("template") for item in entry}
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in named.items()):
        raise CheckpointError(f"{file}: chat_template must be text, or a list of objects with a name and a template")
    return named


def _looks_special(token: str) -> bool:
    return token.startswith("<|") and token.endswith("|>")


def _part(part: Any) -> dict[str, Any] | None:
    """A decoder or normalizer in the form of tokenizer.json."""
    state: dict[str, Any] | None = None if part is None else json.loads(part.__getstate__())
    return state


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise RequestError(f"not valid Unicode text: {e}; remove the lone surrogate") from e


def _int_or_none(value: Any) -> int | None:
    """model_max_length. Files have 1e30 for none."""
    return int(value) if isinstance(value, int | float) and 0 < value < 2**31 else None
