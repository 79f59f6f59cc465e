"""thalweg beside other engines: the same weights, the same requests, the same cores, one engine after another, in one command.

    python -m benchmarks.peers install vllm llamacpp          # each into an environment of its own
    python -m benchmarks.peers run --engines thalweg,vllm,llamacpp --shape qwen3-0.6b --output-json F
    python -m benchmarks.peers table F...                     # the figures, and thalweg's ratios to each peer
    python -m benchmarks.peers chart F... > docs/images/peers.svg    # those ratios as a picture

Each engine is loaded by a small driver that runs under that engine's own Python (`drivers/`) and answers requests made of token
ids, so tokenizers and templates are not what is compared (the made model's tokenizer, padded to its vocabulary, would take
thalweg and vLLM ten seconds to load; what llama.cpp and OpenVINO need of it is in their files). Lengths are exact and every
answer is greedy.
On two cores and with three repeats of everything a run takes about ten minutes for each engine and width of weights; vLLM
compiles for minutes at every start. Let nothing else run meanwhile: engines whose threads spin lose most by it.
Linux only: memory and processor time are read from /proc.
"""
