# Every target sets up what it needs first (ci/env): the active virtual environment, or .venv.
#   make serve MODEL=path ARGS="--port 8080"     make test ARGS="-k scheduler"

MODEL ?=
ARGS ?=
# For `make packages`: for example --debian, where no registry of images can be reached.
IMAGE_ARGS ?=
# One process per core, at most four: each takes up to 3 GB.
PROCESSES ?= --numprocesses logical --maxprocesses 4 --dist worksteal

.PHONY: help setup serve test nightly packages check bench chaos eval docs

help:
	@echo "make serve   serve thalweg-nano, the bundled model (MODEL=... for another) with an OpenAI-compatible API"
	@echo "make test    every test, but for those of a minute or more"
	@echo "make nightly those of a minute or more"
	@echo "make packages  the x86-64 wheel and, where buildah is installed, the CPU image; each must answer a request"
	@echo "make check   format, lint, types, import rules, device words, unit tests"
	@echo "make bench   host cost, latency and throughput on this machine, as JSON under build/bench"
	@echo "make chaos   faults and load against live servers: one table (ARGS='--budget full --seed 1 --rows C1 E')"
	@echo "make eval    held-out accuracy of the bundled model per task (ARGS='MODEL --n 500' or '--base-url URL' for others)"
	@echo "make docs    the documentation as a site under build/site, from docs/ alone"
	@echo "make setup   only the environment"

setup:
	@ci/env true

serve:
	@ci/env thalweg serve $(MODEL) $(ARGS)

# The tests run every set of CPU kernels that this processor has.
test nightly check: export THALWEG_SETS = runnable

test:
	@ci/env python hatch_build.py runnable --if-missing
	@ci/env python -m pytest $(PROCESSES) --durations 15 $(ARGS)

nightly:
	@ci/env python hatch_build.py runnable --if-missing
	@ci/env python -m pytest -m nightly --nightly $(PROCESSES) --durations 15 $(ARGS)

packages:
	@ci/env ci/wheels $(ARGS)
	@if command -v buildah >/dev/null; then ci/images cpu $(IMAGE_ARGS); else echo "packages: no buildah, the image is not built"; fi

check:
	@ci/env python hatch_build.py runnable --if-missing
	@ci/env ci/check $(ARGS)

bench:
	@mkdir -p build/bench
	@ci/env ci/bench build/bench $(ARGS)

chaos:
	@ci/env python tests/chaos --json build/chaos.json $(ARGS)

eval:
	@ci/env thalweg eval nano $(ARGS)

docs:
	@ci/env ci/docs
