"""llama.cpp's converter for checkpoints whose tokenizer it has never seen: how text is split before its merges is taken to be
GPT-2's. Prompts are token ids here, so this decides nothing that is measured.

    python convert_gguf.py LLAMA_CPP_SOURCE CHECKPOINT [flags of convert_hf_to_gguf.py]
"""

import runpy
import sys

source = sys.argv.pop(1)
sys.path[0:0] = [source, f"{source}/gguf-py"]

from conversion.base import TextModel  # noqa: E402 (from the source named on the command line)

TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
sys.argv[0] = f"{source}/convert_hf_to_gguf.py"
runpy.run_path(sys.argv[0], run_name="__main__")
