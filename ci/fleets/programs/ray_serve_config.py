"""`serve run CONFIG` of Ray in a local cluster with two CPUs, until SIGTERM. Run: ray_serve_config.py CONFIG"""

import signal
import sys

import ray
from ray import serve
from ray.serve.scripts import cli


def main(config: str) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Serve's command ends with the application on SIGINT
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, _node_ip_address="127.0.0.1", namespace="serve"
    )
    try:
        cli(["run", config], standalone_mode=False)
    except KeyboardInterrupt:
        pass
    finally:
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
