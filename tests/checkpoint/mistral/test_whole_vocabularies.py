"""The vocabularies that mistral-common ships, where it is installed (`pip install mistral-common sentencepiece`): every id of
many texts, drawn at random, is the one that it gives."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from thalweg.checkpoint.tokenizer import load_tokenizer

mistral_common = pytest.importorskip("mistral_common")
pytest.importorskip("sentencepiece")
SHIPPED = Path(mistral_common.__file__).parent / "data"
RANGES = ((32, 127), (0xA0, 0x500), (0x3040, 0x30FF), (0x4E00, 0x6000), (0x1F300, 0x1F600))
PIECES = ("a", "b", "aa", "the", " ", "  ", "\n", "1", "e", "in", "ing", "THE", "'s", "...")


def texts() -> list[str]:
    rng = random.Random(0)
    drawn = ["".join(chr(rng.randrange(*rng.choice(RANGES))) for _ in range(rng.randrange(1, 60))) for _ in range(150)]
    return drawn + ["".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 60))) for _ in range(150)]


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted({*SHIPPED.glob("t*"), *SHIPPED.glob("*.model.v?")}), ids=lambda f: f.name)
def test_every_id_is_that_of_mistral_common(file, tmp_path):
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tekken = file.name.endswith("json")
    theirs = Tekkenizer.from_file(file) if tekken else SentencePieceTokenizer(file)
    shutil.copy(file, tmp_path / ("tekken.json" if tekken else f"tokenizer.model.{file.name[-2:]}"))
    ours = load_tokenizer(tmp_path)
    for text in texts():
        ids = theirs.encode(text, bos=True, eos=False)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == text
