"""The rows of docs/support.md (ci/feature_page.py): each feature, how far each platform was taken, and what showed it.

`cells` has a letter per platform, in the order of PLATFORMS. `ops` names kernels of the support matrix instead, and the cells
follow from its evidence. `flag` names a flag of `thalweg serve`: while it is refused the row says no on every platform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PLATFORMS = ("cpu", "cuda", "rocm", "xpu", "tpu")
WORDS = {
    "R": "run", "r": "run, slow", "H": "hosted", "h": "hosted, slow", "C": "compiled", "N": "no", "U": "untested",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Feature:
    """A row. `shown` holds files of the repository, or commands, that show the cells. `ops`: an op -> a pattern of kernels."""

    name: str
    cells: str = ""
    shown: tuple[str, ...] = ()
    note: str = ""
    flag: str = ""
    ops: Mapping[str, str] = field(default_factory=dict)


def _kernels(name: str, pattern: str, *shown: str, op: str = "linear", note: str = "") -> Feature:
    return Feature(name, shown=shown, note=note, ops={op: pattern})


_AGAINST = "tests/integration/test_against_transformers.py"
_GPU = "docs/evidence/gpu.md"
_QUANTISED = "tests/quantization"
_ROUNDED = "tests/models/test_online_quantization.py"

SECTIONS: Mapping[str, tuple[Feature, ...]] = {
    "Models": (
        Feature("[Dense decoders](models.md): Llama, Qwen, Mistral, Gemma, Phi, GLM ...", "RRHHH", (_AGAINST, _GPU)),
        Feature("[Mixtures of experts](models.md): Qwen, gpt-oss, DeepSeek, GLM, Mixtral ...", "RRHHH", (_AGAINST, _GPU)),
        Feature("Sliding-window attention", ops={"attention": "native|torch|triton|xla|pallas"}, shown=(_AGAINST,)),
        Feature("[Latent attention](models.md#latent-attention) (MLA)", "RHHHH", ("tests/integration/test_latent_devices.py",)),
        Feature(
            "[Sparse attention](models.md#sparse-attention-dsa) (DSA)",
            "rhhhh",
            ("tests/models/test_sparse_attention.py", "tests/integration/test_latent_devices.py"),
            "reads all blocks: no time saved",
        ),
        Feature(
            "[Recurrent layers](models.md#recurrent-layers): gated delta nets, Mamba, Mamba-2, short convolutions",
            "RhhhH",
            ("tests/integration/test_recurrent_states.py",),
        ),
        Feature(
            "Chunked attention (Llama 4), attention heads of 512 (Gemma 4)",
            "RhhhH",
            ("tests/integration/test_shared_caches.py",),
        ),
        Feature("ALiBi (Bloom, MPT, Baichuan 13B)", "RUUUH", (_AGAINST,)),
        Feature("RoPE scaling: linear, dynamic, yarn, llama3, longrope", "RUUUU", ("tests/models/test_rotary.py",)),
        Feature("[transformers fallback](fallback.md) for other text classes", "RUUUH", ("tests/models/test_fallback.py",)),
        Feature("[Embeddings](embeddings.md) from decoders", "RHHHH", ("tests/integration/test_pooling_devices.py",)),
        Feature(
            "[Text encoders](embeddings.md): BERT, RoBERTa, ModernBERT, MPNet, GTE and others",
            "RHHHN",
            ("tests/models/test_encoders.py", "tests/integration/test_pooling_devices.py"),
        ),
        Feature(
            "[Classifiers and rerankers](embeddings.md#rerankers-scored-by-yes-and-no)",
            "RHHHU",
            ("tests/engine/test_rerankers.py", "tests/integration/test_pooling_devices.py"),
        ),
        Feature(
            "[One result per token](embeddings.md#results-per-token): ColBERT, SPLADE, reward models",
            "RUUUU",
            ("tests/engine/test_per_token.py",),
        ),
        Feature("Encoder-decoder text models (T5, BART)", "NNNNN", ("thalweg models --only refused",)),
    ),
    "Images, audio and video": (
        Feature("[Image input](images.md), over 80 architectures", "RHHHU", ("tests/models/test_images.py",)),
        Feature(
            "Images of Gemma 3 and of larger Gemma 4 models (bidirectional image tokens)",
            "RNNNN",
            ("tests/models/test_images.py",),
        ),
        Feature(
            "[Audio input](audio.md#audio-in-conversations) in chat, 10 architectures",
            "RHHHU",
            ("tests/models/test_hearing.py",),
        ),
        Feature(
            "[Transcription and translation](audio.md#transcription) (Whisper, Moonshine, Canary, Parakeet, CTC models)",
            "RUUUN",
            (
                "tests/models/test_whisper.py",
                "tests/models/test_moonshine.py",
                "tests/models/test_parakeet.py",
                "tests/models/test_wav2vec.py",
                "tests/models/test_prompted_speech.py",
            ),
        ),
        Feature("[Word timestamps](audio.md#long-audio) in transcripts", "RUUUN", ("tests/models/test_word_times.py",)),
        Feature("[Video input](video.md) in chat, 20 architectures", "RUUUU", ("tests/models/test_videos.py",)),
        Feature(
            "[Speech output](audio.md#speech) (VITS, MMS-TTS, CSM), [spoken answers](audio.md#spoken-answers) (Qwen3-Omni)",
            "RUUUN",
            (
                "tests/models/test_vits.py",
                "tests/models/test_csm.py",
                "tests/models/test_omni_talker.py",
                "tests/models/test_spoken_answers.py",
                "tests/server/audio/test_spoken_chat.py",
            ),
        ),
    ),
    "Weights": (
        Feature("bfloat16, float16, float32 safetensors", "RRHHH", (_AGAINST, _GPU)),
        Feature(
            "[bfloat16 in 12 bits](evidence/cpu-kernels.md#bfloat16-in-12-bits), lossless", "RNNNN", ("benchmarks/turns.py",)
        ),
        _kernels("`--quantization int8` (int8 weights and inputs)", "native|triton-int8-int8$|pallas-rounded", _ROUNDED),
        _kernels("`--quantization w8a16` (int8 weights)", "native|triton-int8$|pallas-quantised", _ROUNDED),
        _kernels("`--quantization w4a16` (int4 weights)", "native|triton-int4$|pallas-quantised", _ROUNDED),
        _kernels("`--quantization w4a8` (int4 weights, int8 inputs)", "native", _ROUNDED),
        _kernels("`--quantization fp8` (float8 weights and inputs)", "native|triton-float8-float8$|pallas-rounded", _ROUNDED),
        _kernels("`--quantization fp8_per_block`", "native|triton-float8$|pallas-quantised", _ROUNDED),
        _kernels("`--quantization mxfp4`", "native|triton-float4$|pallas-quantised", _ROUNDED),
        _kernels("`--quantization nvfp4`", "native|triton-nvfp4$", _ROUNDED),
        _kernels(
            "[AWQ, GPTQ, AutoRound](formats.md), 4 bits", "native|triton-int4$|pallas-quantised", f"{_QUANTISED}/test_ints.py"
        ),
        _kernels(
            "[AWQ, GPTQ, AutoRound](formats.md), other widths",
            "native|triton-int8$|pallas-quantised",
            f"{_QUANTISED}/test_ints.py",
        ),
        _kernels(
            "[compressed-tensors](formats.md), all 32 presets",
            "native|triton-int4$|pallas-quantised",
            f"{_QUANTISED}/test_compressed_tensors.py",
        ),
        _kernels(
            "[float8 checkpoints](formats.md): per tensor, row or block",
            "native|triton-float8$|pallas-quantised",
            f"{_QUANTISED}/test_fp8.py",
        ),
        _kernels(
            "[ModelOpt, Quark](formats.md)",
            "native|triton-nvfp4$",
            f"{_QUANTISED}/test_modelopt.py",
            f"{_QUANTISED}/test_quark.py",
        ),
        _kernels("[bitsandbytes](formats.md) nf4 and fp4", "native|triton-table4$", f"{_QUANTISED}/test_ints.py"),
        _kernels(
            "[HQQ, MLX, BitNet, torchao](formats.md)", "native|triton-int8$|pallas-quantised", f"{_QUANTISED}/test_ints.py"
        ),
        _kernels("[GGUF](gguf.md), 48 architectures, every block type", "native|triton-int4$", "tests/checkpoint/gguf_files"),
        _kernels("Experts in int4", "native|triton-int4|pallas-grouped", "docs/evidence/support.md", op="experts"),
        _kernels("Experts in MXFP4 (gpt-oss)", "native|triton-float4", "tests/quantization/test_mxfp4.py", op="experts"),
        Feature(
            "Weights whose inputs are rounded to MX or NVFP4 blocks", "rhhhh", (f"{_QUANTISED}/test_compressed_tensors.py",)
        ),
        Feature("[Mistral's own format](mistral.md) (`params.json`)", "RHHHU", ("tests/checkpoint/mistral",)),
        Feature("Pickled checkpoints (`.bin`, `.pt`)", "NNNNN", note="convert to safetensors"),
    ),
    "KV cache": (
        Feature("Model's dtype", ops={"attention": "native|triton-paged$|xla|pallas"}, shown=("docs/evidence/support.md",)),
        Feature("`--kv-cache-dtype int8_per_token_head`", "RRHHH", ("tests/models/test_cache_dtypes.py", _GPU)),
        Feature("`--kv-cache-dtype fp8_e4m3`, `fp8_e5m2`", "RRHHH", ("tests/models/test_cache_dtypes.py", _GPU)),
        Feature("Prefix caching", "RHHHH", (_AGAINST, "tests/integration/test_latent_devices.py")),
        Feature(
            "[KV store](kv-stores.md) in host memory, or from a package",
            "RHHHH",
            ("tests/integration/test_kv_store_devices.py", "thalweg/hal/testing/test_device.py"),
        ),
        Feature(
            "KV transfer between engines (disaggregated prefill)",
            "NNNNN",
            note="engines may share a [KV store](kv-stores.md)",
        ),
        Feature("Weight offloading to host memory", "NNNNN", flag="cpu-offload-gb", note="use `--quantization int4`"),
    ),
    "Long context": (
        Feature("Prompts of 2,048 tokens", "RRHHC", ("benchmarks/results/README.md", _GPU, "docs/evidence/tpu.md")),
        Feature("Prompts of 8,192 tokens", "URUUC", (_GPU, "docs/evidence/tpu.md")),
        Feature("Contexts of 131,072 tokens", "UUUUC", ("docs/evidence/tpu.md",)),
    ),
    "Several devices": (
        Feature(
            "[Tensor parallelism](distributed.md)",
            "RUUUH",
            (
                "tests/models/test_rank_models.py",
                "tests/integration/test_rank_faults.py",
                "tests/backends/tpu/test_tpu_ranks.py",
            ),
            "`cpu` and GPUs: a process for each rank. `tpu`: one process drives all devices",
        ),
        Feature(
            "[Pipeline parallelism](distributed.md#stages)",
            "RNNNN",
            ("tests/models/test_stages.py", "tests/integration/test_rank_bits.py", "tests/integration/test_rank_faults.py"),
            flag="pipeline-parallel-size",
            note="on one machine",
        ),
        Feature(
            "[Expert parallelism](distributed.md#experts)",
            "RUUUU",
            ("tests/models/test_rank_models.py",),
            flag="enable-expert-parallel",
            note="within the ranks of tensor parallelism",
        ),
        Feature(
            "[Adapters](distributed.md#adapters) and [drafts](distributed.md#drafts) of ranks",
            "RHUUN",
            ("tests/models/test_rank_adapters.py", "tests/integration/test_rank_bits.py"),
            "not of pipeline stages. Layers that draft: on `cpu`",
        ),
        Feature(
            "[One text with any number of ranks](distributed.md#one-text-with-any-number-of-ranks)",
            "RHUUN",
            ("tests/models/test_rank_models.py", "tests/integration/test_rank_bits.py"),
            flag="tp-invariant",
        ),
        Feature(
            "[Data parallelism](deployment.md#several-engines)",
            "RNNNN",
            ("tests/integration/test_fleet.py",),
            flag="data-parallel-size",
            note="elsewhere, start a server per device behind a load balancer",
        ),
        Feature(
            "[Several machines](distributed.md#several-machines)",
            "RUUUN",
            ("tests/integration/test_nodes.py",),
            flag="nnodes",
            note="`cpu`: two process trees on one machine, over TCP",
        ),
        Feature(
            "[Ranks on a Ray cluster](distributed.md#ray)",
            "RUUUN",
            ("tests/integration/test_ray_ranks.py",),
            note="`cpu`: a cluster of two nodes on one machine",
        ),
        Feature("[Ranks by torchrun](distributed.md#torchrun)", "RUUUN", ("tests/offline/test_launcher_ranks.py",)),
    ),
    "Speculation": (
        Feature("[N-gram drafts](speculative-decoding.md)", "RHHHU", ("tests/integration/test_speculation.py",)),
        Feature(
            "[Suffix decoding](speculative-decoding.md#suffix-decoding)", "RUUUU", ("tests/engine/control/test_suffix.py",)
        ),
        Feature(
            "[Draft models](speculative-decoding.md#draft-models)",
            "RHHHH",
            ("tests/models/test_draft_model.py", "tests/backends/tpu/test_tpu_drafts.py"),
        ),
        Feature(
            "[Jump-forward](structured-output.md#jump-forward) for structured output",
            "RHHHU",
            ("tests/integration/test_structured_output.py",),
        ),
        Feature("Drafts for models with recurrent layers", "RHHHU", ("tests/integration/test_recurrent_states.py",)),
        Feature(
            "[MTP](speculative-decoding.md#multi-token-prediction-mtp) "
            "of DeepSeek V3 and V3.2, GLM-4.5 to 5, Qwen3-Next and 3.5, Nemotron-H, Ernie 4.5, K-EXAONE, MiMo, "
            "MiMo-V2, LongCat-Flash, Step 3.5",
            "RHHHH",
            ("tests/models/test_mtp.py", "tests/models/test_mtp_modules.py", "tests/backends/tpu/test_tpu_drafts.py"),
            "On tiny random models. Modules of other families are skipped",
        ),
        Feature(
            "[EAGLE-1, EAGLE-3 and P-EAGLE](speculative-decoding.md#eagle)",
            "RHHHH",
            ("tests/models/test_eagle.py", "tests/backends/tpu/test_tpu_drafts.py"),
            "On tiny random models, EAGLE-3 in the form of its authors and of `speculators`",
        ),
        Feature(
            "[DFlash and DSpark](speculative-decoding.md#dflash)",
            "RHHHN",
            ("tests/models/test_dflash.py",),
            "On tiny random models, DSpark in the form of `speculators`. Attention of the drafter is slow on GPU platforms",
        ),
        Feature(
            "[Quantised drafters](speculative-decoding.md#quantised-drafters-and-caches), and 8-bit caches of drafters",
            "RUUUU",
            ("tests/models/test_quantised_drafts.py",),
        ),
        Feature("MTP of MiniMax-M2", "NNNNN", note="Published checkpoints lack its modules"),
    ),
    "Adapters": (
        Feature(
            "[LoRA](adapters.md) in `LLM` and `AsyncLLM`: many adapters in one batch",
            "RHUUH",
            ("tests/models/test_lora_requests.py", "tests/models/test_peft_adapters.py"),
            "DoRA, biases, embeddings, output matrices and experts included",
        ),
        Feature(
            "[LoRA in the server](adapters.md#in-the-server), by name: `--lora-modules`",
            "RUUUU",
            ("tests/integration/test_served_adapters.py",),
        ),
        Feature(
            "[Routes that load and unload adapters](adapters.md#loading-while-it-serves)",
            "RUUUU",
            ("tests/server/test_adapter_routes.py", "tests/integration/test_served_adapters.py"),
        ),
        Feature(
            "[Resolvers](adapters.md#resolvers) of adapters by name: a folder, entry points",
            "RUUUU",
            ("tests/server/test_adapter_routes.py", "tests/models/test_example_resolver.py"),
        ),
    ),
    "Engine": (
        Feature("Continuous batching, chunked prefill, preemption", "RRHHH", (_AGAINST, _GPU)),
        Feature("Captured, recorded or compiled decode steps", "RRHHH", (_GPU, "tests/integration/test_replay.py")),
        Feature("Batch-invariant results (same bits in any batch)", "RRHHN", ("tests/backends/test_batch_invariance.py", _GPU)),
        Feature("[Sampling](sampling.md), greedy and seeded", "RRHHH", ("tests/integration/test_seeds.py", _GPU)),
        _kernels("Log-probabilities", "native|topk|triton|pallas|one-by-one", "tests/backends/test_sampler.py", op="logprobs"),
        _kernels(
            "[Structured output](structured-output.md): JSON schema, regex, grammar, choice, structural tags",
            "by-byte|triton",
            "tests/integration/test_structured_output.py",
            op="token_mask",
        ),
        Feature(
            "[Prompts as embeddings](embeddings.md#prompts-as-embeddings), from Python",
            "RHHHU",
            ("tests/models/test_prompt_embeds.py",),
        ),
        Feature(
            "[Vendor matrix products](evidence/vendor-kernels.md) (cuBLASLt without split sums, float8, int8)",
            "NRUNN",
            ("docs/evidence/vendor-kernels.md",),
        ),
        Feature(
            "[Vendor attention](evidence/vendor-kernels.md) (flash-attn, flashinfer, AITER)",
            "NHHNN",
            ("tests/backends/torch_gpu/test_attention_libraries.py",),
        ),
        Feature("[Kernels compiled ahead](compiling-ahead.md)", "NRCNN", ("thalweg compile --arch sm_90 MODEL", _GPU)),
        Feature("[Sleep and wake](reliability.md#pause-and-sleep)", "RUUUU", ("tests/integration/test_sleep.py",)),
        Feature("[Profiles](debugging.md#where-a-steps-time-goes)", "RUUUU", ("tests/integration/test_profiles.py",)),
        Feature(
            "[Engine restart](reliability.md) with the same text",
            "RUUUH",
            ("tests/integration/test_async_llm.py", "tests/backends/tpu/test_tpu_serving.py"),
        ),
    ),
}
"""Heading -> its rows. A visitor's question finds its heading from the README."""


@dataclass(frozen=True, slots=True)
class Service:
    """A feature that no device changes. Counts in braces in the note are filled in by ci/feature_page.py."""

    name: str
    supported: bool
    shown: tuple[str, ...] = ()
    note: str = ""


SERVICES: tuple[Service, ...] = (
    Service(
        "`/v1/chat/completions`, `/v1/completions` ([OpenAI](getting-started.md#serve))",
        True,
        ("tests/server/openai/test_openai_client.py",),
    ),
    Service("`/v1/responses` ([OpenAI](responses.md))", True, ("tests/server/responses",), "kept in memory"),
    Service("`/v1/messages` ([Anthropic](anthropic.md))", True, ("tests/server/anthropic",)),
    Service("`/v2/chat` and `/v2/embed` ([Cohere](more-routes.md))", True, ("tests/server/cohere",)),
    Service("`/v1/files`, `/v1/batches` ([batches](batches.md))", True, ("tests/server/batches",)),
    Service(
        "`/v1/embeddings`, `/pooling`, `/score`, `/rerank`, `/classify` ([pooling](embeddings.md))",
        True,
        ("tests/server/pooling",),
    ),
    Service(
        "`/v1/audio/transcriptions`, `/v1/audio/translations` ([24 architectures](audio.md#transcription)), "
        "[`/v1/audio/speech`](audio.md#speech)",
        True,
        ("tests/server/audio",),
    ),
    Service("`/v1/realtime` ([transcripts of live audio](audio.md#live-audio))", True, ("tests/server/audio",)),
    Service("`/v1/images`", False),
    Service(
        "[Tool calls](tools-and-reasoning.md), streamed, forced and strict",
        True,
        ("tests/turns", "tests/server/openai/test_tools.py"),
    ),
    Service(
        "[Reasoning](tools-and-reasoning.md) as a field, with a token budget",
        True,
        ("tests/turns", "tests/grammar/test_budget.py"),
    ),
    Service(
        "Tool formats [derived from a chat template](tools-and-reasoning.md#derived-formats)",
        True,
        ("tests/turns/test_derive.py",),
        "not for templates with a header on each message",
    ),
    Service("Images in results of tools", False, note="send the image in a user's message"),
    Service("Structured output over HTTP, with vLLM's fields", True, ("tests/server/openai/test_structured_fields.py",)),
    Service("Beam search, from Python", True, ("tests/models/test_beam_search.py",)),
    Service(
        "[Web page](web-page.md), in Chromium", True, ("tests/server/page/test_browser.py",), "other browsers are untested"
    ),
    Service(
        "[Clients](responses.md#clients): Claude Code, Codex, OpenCode, Agents SDK, Instructor, `ai` SDK",
        True,
        ("ci/clients.py",),
    ),
    Service(
        "[Fleets](fleets.md): Dynamo, Ray Serve LLM, vllm-router, smg, production-stack's router; engines killed in mid-stream",
        True,
        ("ci/fleets.py",),
    ),
    Service(
        "Engine restart, drain, admission limits, [fairness among keys](reliability.md#sharing-the-engine)",
        True,
        ("make chaos", "tests/server/core/test_seats.py"),
    ),
    Service("API keys, TLS, host and origin checks", True, ("tests/server/http",)),
    Service(
        "[Prometheus metrics](deployment.md#metrics) under vLLM's names",
        True,
        ("tests/server/observe",),
        "no series for connectors, offloading or block lifetimes",
    ),
    Service(
        "[Traces](debugging.md#traces) by OpenTelemetry over HTTP",
        True,
        ("tests/server/observe",),
        "gRPC is untested. No spans of a step or of the start",
    ),
    Service("Several models in one server", False, note="start a server per model"),
    Service(
        "[vLLM's Python names](compat.md)",
        True,
        ("ci/python_names.py",),
        "{here} of {names} names; {refused} raise an error with a reason",
    ),
    Service("vLLM's flags", True, ("thalweg flags --status",), "{honoured} of the {flags} for one machine are honoured"),
    Service("Prompts as embeddings over HTTP", False, note="use Python"),
    Service("`vllm_xargs` over HTTP", False, note="use Python"),
    Service(
        "Third-party [families](adding-a-model.md), [formats](adding-a-format.md), [features](adding-a-feature.md), "
        "[backends](adding-a-backend.md)",
        True,
        ("tests/project/test_guests.py", "examples/backend/README.md"),
    ),
    Service("Remote code of checkpoints (`--trust-remote-code`)", False, note="never run"),
)
