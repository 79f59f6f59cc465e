"""Writes data/: the beginnings of vocabularies that mistral-common ships, and the ids that it gives for some texts.

pip install mistral-common==1.13.1 sentencepiece==0.2.3 protobuf==7.36.2
python tests/checkpoint/mistral/write.py
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import mistral_common
from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from sentencepiece import sentencepiece_model_pb2 as proto

SHIPPED = Path(mistral_common.__file__).parent / "data"
OUT = Path(__file__).parent / "data"
TEXTS = (
    "Hello world", " Hello", "  two  spaces ", "Grüße, 12345 67", "日本語のテキスト。",
    "def f(x):\n    return x + 1\n\n\n\tend",
    "aaaaaaaaaaaaa", "🙂 emoji 👩‍👩‍👧", "I'm you're THE end", "http://a.b/c?d=e&f", "\n\n 12345", "....!!!???---",
    "ing in thing ing",
    "Ελληνικά русский עברית", "",
)  # fmt: skip


def main() -> None:
    OUT.mkdir(exist_ok=True)
    said = json.loads((SHIPPED / "tekken_240911.json").read_text())
    said["vocab"] = said["vocab"][:1300]
    said["config"] |= {"num_vocab_tokens": 1300, "default_vocab_size": 1240, "default_num_special_tokens": 40}
    (OUT / "tekken.json").write_text(json.dumps(said))
    model = proto.ModelProto()
    model.ParseFromString((SHIPPED / "mistral_instruct_tokenizer_241114.model.v7").read_bytes())
    kept = [
        p for i, p in enumerate(model.pieces) if i < 1700 or (len(p.piece) == 1 and (p.piece < "\u0250" or p.piece == "\u2581"))
    ]
    del model.pieces[:]
    model.pieces.extend(kept)
    (OUT / "tokenizer.model.v7").write_bytes(model.SerializeToString())
    ids = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tekken.json", "tokenizer.model.v7"):
            shutil.copy(OUT / name, folder)
            kind = Tekkenizer.from_file if name.endswith("json") else SentencePieceTokenizer
            ids[name] = [kind(str(Path(folder) / name)).encode(text, bos=True, eos=False) for text in TEXTS]
    (OUT / "ids.json").write_text(json.dumps({"texts": TEXTS, "ids": ids}))


if __name__ == "__main__":
    main()
