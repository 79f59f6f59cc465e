"""`python -m thalweg.integrations.dynamo MODEL [flags]`: flags of Dynamo's runtime, and the engine's of `thalweg serve`."""

import sys

from thalweg.errors import ThalwegError


def main() -> None:
    from thalweg.integrations.dynamo.worker import run_worker

    run_worker(sys.argv[1:])


if __name__ == "__main__":
    try:
        main()
    except ThalwegError as e:
        sys.exit(f"error: {e}")
