"""A plugin of pytest: Dynamo's tests of its sample engine, run on thalweg's worker. See `ci/dynamo_tests.py`.

The sample engine is built from four settings and needs no start. Here it is a worker of the bundled model with the same
settings. What the tests know about the sample engine only is translated: the name of its handle, the class of its errors, and
its default of `max_tokens`. A chunk with several tokens, as a busy machine causes, is divided.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import dynamo.common.backend.sample_engine as sample
from dynamo.common.constants import DisaggregationMode
from dynamo.llm.exceptions import InvalidArgument

from thalweg import EngineArgs
from thalweg.integrations.dynamo.worker import DynamoEngine

HANDLE = "sample_handle"


class SampleWorker(DynamoEngine):  # type: ignore[misc]
    def __init__(
        self,
        max_tokens: int = 16,
        delay: float = 0.0,
        disaggregation_mode: DisaggregationMode = DisaggregationMode.AGGREGATED,
    ) -> None:
        super().__init__(_make_args(disaggregation_mode), disaggregation_mode.value)
        self._max_tokens = max_tokens

    @property
    def disaggregation_mode(self) -> DisaggregationMode:
        return DisaggregationMode(self._mode)

    @property
    def _snapshot_publisher(self) -> Any:
        return self._publisher

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[SampleWorker, Any]:
        result, config = await DynamoEngine.from_args([*_find_words(), *(argv or ())])
        return cls(disaggregation_mode=DisaggregationMode(result._mode)), config

    async def generate(self, request: Any, context: Any) -> AsyncIterator[dict[str, Any]]:
        if self._engine is None:
            await self.start(0)
        request.setdefault("stop_conditions", {}).setdefault("max_tokens", self._max_tokens)
        request["stop_conditions"]["ignore_eos"] = True
        if request.get("prefill_result"):  # another worker's handle
            request["prefill_result"] = {"disaggregated_params": {"do_remote_prefill": True}}
        try:
            async for chunk in super().generate(request, context):
                if "disaggregated_params" in chunk:
                    chunk["disaggregated_params"] = {HANDLE: chunk["disaggregated_params"]}
                for part in _divide(chunk):
                    yield part
        except InvalidArgument as e:
            raise ValueError(str(e)) from e
        finally:
            await self.cleanup()

    async def health_check_payload(self) -> Any:
        await self.start(0)
        return await super().health_check_payload()


def _divide(chunk: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A chunk for each token. The last one has the fields of the end."""
    tokens, rows = chunk["token_ids"], {k: chunk[k] for k in ("log_probs", "top_logprobs") if k in chunk}
    for i in range(len(tokens) - 1):
        yield {"token_ids": tokens[i : i + 1], "index": chunk["index"], **{k: row[i : i + 1] for k, row in rows.items()}}
    yield {**chunk, "token_ids": tokens[-1:], **{k: row[-1:] for k, row in rows.items()}}


def _find_words() -> list[str]:
    folder = Path(tempfile.mkdtemp())
    (folder / "secret").write_text("a secret of sixteen bytes or more")
    store = {"kv_connector": "disk", "kv_connector_extra_config": {"folder": str(folder / "blocks"), "max_bytes": 1 << 26}}
    return ["--kv-key-secret", str(folder / "secret"), "--kv-transfer-config", json.dumps(store)]


def _make_args(mode: DisaggregationMode) -> EngineArgs:
    _, secret, _, store = _find_words()
    shared = {} if mode is DisaggregationMode.AGGREGATED else {"kv_key_secret": secret, "kv_transfer_config": json.loads(store)}
    return EngineArgs(model="thalweg-nano", device="cpu", max_model_len=256, **shared)


sample.SampleLLMEngine = SampleWorker
