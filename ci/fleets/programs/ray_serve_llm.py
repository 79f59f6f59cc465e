"""An application of Ray Serve LLM, until SIGTERM. Run: ray_serve_llm.py PORT MODEL REPLICAS"""

import os
import signal
import sys
import threading

import ray
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app


def main(port: int, model: str, replicas: int) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, _node_ip_address="127.0.0.1")
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    config = LLMConfig(
        model_loading_config={"model_id": model},
        server_cls="thalweg.integrations.ray.llm:LLMServer",
        engine_kwargs={"enable_prompt_tokens_details": True},
        deployment_config={"num_replicas": replicas, "ray_actor_options": {"num_cpus": 0.1}},
    )
    app = {"llm_configs": [config]}
    if os.environ.get("RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING") != "1":  # there the replicas are the ingress
        app["ingress_deployment_config"] = {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0.1}}
    serve.run(build_openai_app(app), blocking=False)
    try:
        ended.wait()
    finally:
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
