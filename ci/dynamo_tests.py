"""Dynamo's own tests of backends, unmodified, in its environment: those of the contract, and those of an engine on ours.

Run: python ci/dynamo_tests.py [--environments FOLDER] [--only NAME,...]

The tests are in Dynamo's package. Those of `test_sample_engine.py` run on a worker of thalweg with the bundled model
(`fleets/programs/dynamo_sample.py`). `LEFT_OUT` has the tests that no worker of text can pass, with reasons.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fleets.dynamo import Dynamo
from fleets.fleet import ROOT, Environment
from fleets.trial import make_environment

TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout")
PLUGIN = "dynamo_sample"
ENGINE = "test_sample_engine.py"
MEDIA = "of images and their encoder: this worker serves text"
OWN = "of the sample engine's own parts"
LEFT_OUT = {
    "test_logprobs.py::test_vllm_handler_matches_shared": "it imports vLLM",
    "test_logprobs.py::test_sglang_extract_handler_matches_shared": "it imports SGLang",
    "test_logprobs.py::test_sglang_kwargs_handler_matches_shared": "it imports SGLang",
    f"{ENGINE}::test_decode_mode_rejects_raw_multimodal_payload": MEDIA,
    f"{ENGINE}::test_aggregated_mode_processes_multimodal_kwargs_locally": MEDIA,
    f"{ENGINE}::test_encode_mode_emits_single_terminal_with_encoder_result": MEDIA,
    f"{ENGINE}::test_encode_mode_observes_cancellation": MEDIA,
    f"{ENGINE}::test_encoder_routed_worker_requires_encoder_result": MEDIA,
    f"{ENGINE}::test_encoder_routed_worker_rejects_malformed_encoder_result": MEDIA,
    f"{ENGINE}::test_multimodal_epd_handoff_contract": MEDIA,
    f"{ENGINE}::test_from_args_propagates_encode_routing": MEDIA,
    f"{ENGINE}::test_encode_mode_opts_out_of_kv_publishers": MEDIA,
    "test_publisher.py::test_sample_engine_declares_dp_ranks_and_kv_event_source": f"{OWN}: its thread of events",
    "test_publisher.py::test_sample_engine_publish_loop_pushes_component_snapshot": f"{OWN}: its thread of events",
    f"{ENGINE}::test_source_descriptors_have_expected_shape": f"{OWN}: events are pushed by a thread, here they are a socket",
    f"{ENGINE}::test_cleanup_joins_publisher_thread_started_via_on_ready": f"{OWN}: its thread of events",
    f"{ENGINE}::test_logprobs_with_top_k_emits_alternatives": f"{OWN}: k + 1 candidates, where the answer to a client has k",
}


def main(words: Sequence[str]) -> int:
    """0: every test passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--environments", type=Path, help="folder of virtual environments, which are kept; default: temporary")
    parser.add_argument("--only", metavar="NAME,...", help="files of tests; default: all")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        fleet = Dynamo()
        fleet.packages = (*fleet.packages, *TOOLS)
        environment = make_environment(fleet, args.environments or Path(folder))
        if isinstance(environment, str):
            print(environment)
            return 1
        subprocess.run([environment.python, "-m", "pip", "install", "-q", *TOOLS], check=True)
        return run(environment, (args.only or "").split(",") if args.only else [])


def run(environment: Environment, files: Sequence[str]) -> int:
    """The exit status of pytest."""
    (tests,) = environment.folder.glob("lib/python*/site-packages/dynamo/common/backend/tests")
    for test, why in LEFT_OUT.items():
        print(f"left out: {test}: {why}")
    command = [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN, "-c", os.devnull]
    command += ["--rootdir", str(tests), "-o", "asyncio_mode=auto", "-W", "ignore", "--timeout", "120"]
    command += [f"--deselect={name}" for name in LEFT_OUT] + ([str(tests / file) for file in files] or [str(tests)])
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent / "fleets" / "programs")])
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, cwd=tests, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
