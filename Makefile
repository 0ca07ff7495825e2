# Start with `make run` and `make test`. The other targets are for development; CONTRIBUTING.md describes them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCKS := deploy/locks
# `no` installs what constraints.txt allows, without hashes: for a mirror that builds packages itself.
LOCKED ?= yes
EXTRAS := agentpod,dashboard,mujoco,box2d,warp,envpool,atari,pettingzoo,minio,docker,kubernetes,postgresql,stocks,pb2,plots,policy,serve,tensorboard,tracing,video,docs,dev
# Tools of `make lock`, `make sbom` and `make audit`.
TOOLS := .venv-tools
TOOLS_STAMP := $(TOOLS)/.installed
SOURCES := podrace orchestrator leaderboard agentpod simulators
PROTOS := $(shell find protos -name '*.proto')
TESTS ?=
# Tests start hundreds of processes that import the project. With this variable set, each would compile it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install install-gpu lock sbom audit audit-images run test test-profile test-docs test-unit check docs reference manifests test-slow test-gpu test-compose test-k8s test-browser chaos chaos-store soak test-chaos fuzz bench bench-peers protos contract-image contracts release release-images format clean

install: $(STAMP)

# PyTorch is installed first, with a pinned version: an unpinned one is the newest CUDA build of several gigabytes. A
# build for CUDA needs libraries that others do not. A wheel in a folder that pip searches (PIP_FIND_LINKS) comes before
# the index: of packages with hashes, pip would otherwise prefer those of the index.
$(STAMP): pyproject.toml constraints.txt $(wildcard $(LOCKS)/*.txt) deploy/requirements.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(LOCKED),no)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
else
	index=$$($(BIN)/python -m pip install --quiet --dry-run --no-index --no-deps torch==2.13.0 2>/dev/null && echo --no-index); \
	$(BIN)/python -m pip install --quiet $$index --require-hashes --no-deps --requirement $(LOCKS)/torch.txt
	$(BIN)/python deploy/requirements.py torch-libraries >$(VENV)/torch-libraries.txt
	$(BIN)/python -m pip install --quiet --require-hashes --requirement $(VENV)/torch-libraries.txt --requirement $(LOCKS)/development.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
endif
	touch $@

# Writes $(LOCKS) for constraints.txt and pyproject.toml. Versions change only where those two change.
lock: $(TOOLS_STAMP)
	$(TOOLS)/bin/python deploy/locks.py

# Bills of materials of the images (CycloneDX) in build/sbom.
sbom: $(TOOLS_STAMP)
	$(TOOLS)/bin/python deploy/sbom.py $(or $(FOLDER),build/sbom) $(VERSION)

# Known vulnerabilities of all locked packages. Exit status 77, and SKIPPED, if nothing could be examined.
audit: $(TOOLS_STAMP)
	$(TOOLS)/bin/python deploy/audit.py packages

# Known vulnerabilities in images of this machine's engine, by trivy: make audit-images IMAGES="podrace/agentpod:0.2.0"
IMAGES ?= $(foreach image,leaderboard orchestrator agentpod serving,podrace/$(image):latest)
audit-images:
	$(PYTHON) deploy/audit.py images $(IMAGES)

$(TOOLS_STAMP): $(LOCKS)/tools.txt
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --require-hashes --requirement $(LOCKS)/tools.txt
	touch $@

run: install
	$(BIN)/podrace train examples/stocks.toml

test: install
	$(BIN)/python -m pytest --numprocesses auto $(TESTS)

# The same, with the processor seconds of each folder and of the tests that use most: those of every process are counted.
test-profile: install
	rm -rf build/processor-times
	PODRACE_PROCESSOR_TIMES=build/processor-times $(BIN)/python -m pytest --numprocesses auto $(TESTS)

# Only tests that start no processes and take less than a second.
test-unit: install
	$(BIN)/python -m pytest --numprocesses $$(($$(nproc) + 1)) -m 'not slow and not gpu and not engine and not docs and not browser and not long' tests/unit

test-slow: install
	$(BIN)/python -m pytest -m slow --timeout 3600 $(TESTS)

# PyTorch and CuPy for the CUDA of this machine's driver, and a check that they fit together.
# The PyTorch of `make install` brings the NCCL for CUDA 13, whose files are also those of the one for CUDA 12.
install-gpu: install
	requirements="$$($(BIN)/python deploy/gpu_packages.py requirements)" && \
	case "$$requirements" in *+cu12*) $(BIN)/python -m pip uninstall --quiet --yes nvidia-nccl-cu13;; esac && \
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $$requirements
	$(BIN)/python deploy/gpu_packages.py check

test-gpu: install-gpu
	$(BIN)/python -m pytest -m gpu --timeout 600 $(TESTS)

# Runs the commands and examples of README and docs that are marked `run`.
test-docs: install
	$(BIN)/python -m pytest -m docs -n 2 --timeout 600 tests/docs

# Tests of the dashboard in headless Chromium; installs playwright, and Chromium where there is none and apt-get can.
test-browser: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt playwright==1.65.2
	command -v chromium >/dev/null || { apt-get update --quiet && apt-get install --quiet --yes --no-install-recommends chromium; }
	$(BIN)/python -m pytest -m browser --timeout 300 tests/browser

# Runs on the Docker Engine of DOCKER_HOST; builds the images first.
test-compose: install
	$(BIN)/python -m pytest -m engine --durations 12 tests/engine/test_compose.py tests/engine/test_compose_replicas.py

# Runs on the cluster of KUBECONFIG, with images built by the Docker Engine of DOCKER_HOST, from which its nodes run.
test-k8s: install
	$(BIN)/python -m pytest -m engine --durations 12 tests/engine/test_k8s.py tests/engine/test_k8s_replicas.py tests/engine/test_k8s_serving.py tests/engine/test_k8s_lost_node.py tests/engine/test_token_review.py

# Kills a publisher a thousand times at random moments, for each store; every published checkpoint must be intact.
chaos-store: install
	for store in folder minio; do $(BIN)/python tests/contract/publisher_kills.py --store $$store --kills 1000 || exit 1; done

# Trains while a fault happens every 29 s, and measures what is lost: make chaos SECONDS=1800 SEED=1 MESH=embedded
# MESH: embedded, or with the images of `make test-compose` and `make test-k8s` compose or kubernetes. LEARNERS=2: each
# agent has two learners, and on the mesh `embedded` faults happen to the second one as well. PERIOD: seconds between two
# faults. KINDS=kill,stop TARGETS=orchestrator: only these. LASTING: seconds of each fault that has a duration.
FAULTS = $(if $(PERIOD),--period $(PERIOD)) $(if $(KINDS),--kinds "$(KINDS)") $(if $(TARGETS),--targets "$(TARGETS)") $(if $(LASTING),--lasting $(LASTING))
chaos: install
	$(BIN)/python tests/chaos/chaos.py --mesh $(or $(MESH),embedded) --seconds $(or $(SECONDS),1800) --seed $(or $(SEED),1) --pods $(or $(PODS),2) --cores $(or $(CORES),1) --learners $(or $(LEARNERS),1) --step-seconds $(or $(STEP_SECONDS),0.005) $(FAULTS)

# Trains for hours without faults, and reports what grows: make soak HOURS=2 PODS=2
# PERIOD: seconds between two samples.
soak: install
	$(BIN)/python tests/chaos/soak.py --hours $(or $(HOURS),2) --pods $(or $(PODS),2) $(if $(PERIOD),--period $(PERIOD))

# Two minutes of `make chaos`, in which each fault of the mesh `embedded` happens once; part of continuous integration.
test-chaos: install
	$(BIN)/python -m pytest -m chaos tests/chaos/test_chaos.py

# Calls every method and reads every format with random, mutated and damaged inputs: make fuzz CASES=1000000
fuzz: install
	PYTHONPATH=.:tests/integration/leaderboard:tests/unit/podrace/policy $(BIN)/python tests/security/fuzz/campaign.py --cases $(or $(CASES),1000000) $(if $(TARGET),--target $(TARGET))

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/buf breaking --against protos/contracts.binpb
	BIN=$(BIN) ./protos/generate.sh --check
	$(MAKE) manifests
	$(MAKE) docs

# Checks Dockerfiles, compose files and Kubernetes manifests: lints them, renders every combination, validates schemas.
manifests: install
	$(BIN)/hadolint deploy/Dockerfile tests/engine/*.Dockerfile
	$(BIN)/compose-lint check --quiet deploy/compose/compose*.yaml
	$(BIN)/python -m pytest -m 'slow or not slow' tests/architecture/test_manifests.py tests/architecture/test_serving_manifests.py

# Builds the documentation site in build/docs; a broken link is an error.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Writes the reference pages of docs/ from the sources.
reference: install
	$(BIN)/python docs/tools/reference.py

bench: install
	for benchmark in planes simulators stocks training fusion; do $(BIN)/python benchmarks/$$benchmark.py || exit 1; done
	for benchmark in store leaderboard startup; do $(BIN)/python -m benchmarks.services.$$benchmark || exit 1; done

bench-peers: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/peers.py

protos: install
	BIN=$(BIN) ./protos/generate.sh

# Renews the contract image, which is the reference for `buf breaking`. Fails if the protos break the present image.
contract-image: install
	BIN=$(BIN) ./protos/renew_image.sh

# The released contracts in build/contracts: a Python distribution, an npm package and a descriptor set.
contracts: install
	$(BIN)/python deploy/contracts.py $(or $(FOLDER),build/contracts)

# Makes a release (version, changelog, contract image, wheel, tag, images, signatures): make release VERSION=0.2.0 KEY=...
SIGNING = $(if $(KEY),--key "$(KEY)") $(if $(UNSIGNED),--unsigned)
release: install
	$(BIN)/python deploy/release.py $(if $(GATE),--gate "$(GATE)") $(SIGNING) $(VERSION)

# Builds the images of a tagged release on the Docker Engine of DOCKER_HOST: make release-images VERSION=0.2.0 KEY=...
release-images: install
	$(BIN)/python deploy/release.py --images-only $(SIGNING) $(VERSION)

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format -w

clean:
	rm -rf $(VENV) $(TOOLS) podrace-home .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info
