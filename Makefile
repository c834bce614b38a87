# The same few targets serve people, README and CI. `make run` and `make test` need nothing before them but Python 3.11 and make.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PACKAGES = libs/podracer_core libs/podracer_platform libs/podracer_client libs/podracer_trading services/orchestrator services/leaderboard services/worker services/learner services/evaluator services/policy
PIP = $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
LOGGED = >> $(VENV)/setup.log 2>&1 || { tail -n 20 $(VENV)/setup.log >&2; echo "make: pip failed; all it said: $(VENV)/setup.log" >&2; exit 1; }
PYTEST = $(BIN)/python -m pytest -n 2 --dist loadgroup
QUICK = not slow and not gpu and not compose and not cluster
STUBS = libs/podracer_core/podracer
VALIDATE_STUBS = libs/podracer_core/buf
DESCRIPTORS = dist/podracer.binpb
# In protos/, with its own plugins; google/api comes with googleapis-common-protos, buf/validate is a copy of protovalidate's.
PROTOC = cd protos && PATH="$(abspath $(BIN)):$$PATH" $(abspath $(BIN))/python -m grpc_tools.protoc --proto_path=. \
	--proto_path=$$($(abspath $(BIN))/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
REGISTRY = $(or $(PODRACER_REGISTRY),$(shell sed -n 's/^PODRACER_REGISTRY=//p' .env))
SITE_ADDRESS ?= 127.0.0.1:8000
REVISION = PODRACER_REVISION=$${PODRACER_REVISION:-$$(git rev-parse HEAD)}
PLATFORMS ?= linux/amd64,linux/arm64
# Layers are found again in the registry: what has not changed since the last release keeps its hash, and is not pulled.
CACHED = $(foreach image,$(1),--set $(image).cache-from=type=registry,ref=$(REGISTRY)/podracer-cache:$(image)$(2) --set $(image).cache-to=type=registry,ref=$(REGISTRY)/podracer-cache:$(image)$(2),mode=max)
BAKE = docker buildx bake --file build/compose.yaml --push --provenance=mode=max --sbom=true --metadata-file build/images.json
RUN_FLAGS ?=
ROUNDS ?= 10
FRESH ?=
TRADING_BENCHMARKS = $(addprefix benchmarks/trading/,trading.py trading_speed.py)
BENCHMARKS = $(filter-out benchmarks/gpu.py,$(wildcard benchmarks/*.py)) $(TRADING_BENCHMARKS)

.PHONY: help setup run test test-trading test-thorough test-all test-slow test-stress test-mjlab test-gpu images locks e2e-compose e2e-cluster push-images push-cuda-image wheels publish-wheels check-manifests audit site serve-site notebooks chaos chaos-cluster zoo fuzz lint format types imports protos descriptors check-protos protos-baseline bench bench-trading bench-gpu bench-quick paper paper-quick clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(VENV)/.ready  ## make the virtual environment with everything in it

$(VENV)/.ready: constraints.txt requirements-dev.txt libs/*/pyproject.toml services/*/pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; set PYTHON to a Python 3.11 or newer" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is older than 3.11; set PYTHON to a newer one" >&2; exit 2; }
	@echo "Setting up $(VENV) (once; a few minutes at most) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) torch setuptools $(LOGGED)
	@$(PIP) --requirement requirements-dev.txt $(LOGGED)
	@$(PIP) --no-build-isolation $(addprefix --editable ,libs/podracer_core[torch,mujoco,mujoco-warp,box2d,onnx,video] $(filter-out libs/podracer_core,$(PACKAGES))) $(LOGGED)
	@touch $@
	@echo "Ready."

run: setup  ## train a tournament on Pendulum-v1: examples/pendulum.yaml
	@$(BIN)/podracer run examples/pendulum.yaml $(RUN_FLAGS)

test: setup  ## every capability, in ten minutes at most on two cores
	@$(PYTEST) -m "$(QUICK) and not thorough"

test-trading: setup  ## the tests of libs/podracer_trading alone; test has them too
	@$(PYTEST) -m "$(QUICK)" tests/trading

test-thorough: setup  ## what test-all has beyond test: every command of the documents, every fault, learning, chaos
	@$(PYTEST) -m "$(QUICK) and thorough"

test-all: setup  ## test and test-thorough, in twenty minutes at most on two cores
	@$(PYTEST) -m "$(QUICK)"

test-slow: setup  ## the tests that take minutes
	@$(BIN)/python -m pytest -m slow --timeout 3600

test-stress: setup  ## the tests of our processes on busy cores, with delays between them: ROUNDS=10, FRESH=1 begins anew
	@$(BIN)/python tests/stress/run.py --rounds $(ROUNDS) $(if $(FRESH),--fresh)

$(VENV)-mjlab/.ready: $(VENV)/.ready requirements-mjlab.txt
	@$(PYTHON) -m venv $(VENV)-mjlab
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > $$($(VENV)-mjlab/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/setup.pth
	@$(VENV)-mjlab/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-mjlab.txt
	@touch $@

test-mjlab: $(VENV)-mjlab/.ready  ## a round in mjlab's Go1, with the older MuJoCo that it needs; minutes the first time
	@$(VENV)-mjlab/bin/python -m pytest --timeout 1800 tests/unit/environments/test_rsl_rl.py

test-gpu: setup  ## the tests that need a CUDA device
	@$(BIN)/python -m pytest -m gpu

images:  ## build the images of the six services and of MinIO (.env, PODRACER_TORCH_INDEX); needs Docker
	@$(REVISION) docker compose --profile policy build
	@docker image ls --filter reference='*/*/podracer-*' --format 'table {{.Repository}}:{{.Tag}}\t{{.Size}}'

locks: setup  ## deploy/images/*.lock: exact version and hashes of what the images install, after a change of dependencies
	@$(BIN)/python deploy/images/requirements.py

push-images:  ## build the images for amd64 and arm64 (PLATFORMS) and push them to the registry of .env, with SBOM and provenance
	@mkdir -p build && $(REVISION) docker compose --profile policy config --output build/compose.yaml
	@$(BAKE) --set '*.platform=$(PLATFORMS)' $(call CACHED,orchestrator leaderboard learner minio) orchestrator leaderboard learner worker evaluator policy minio

push-cuda-image:  ## the same of the learner for GPUs, for amd64
	@mkdir -p build && $(REVISION) docker compose --file docker-compose.yml --file compose.gpu.yaml config --output build/compose.yaml
	@$(BAKE) --set learner.platform=linux/amd64 $(call CACHED,learner,-cuda) learner

wheels: setup  ## the wheels of our packages, in dist/
	@rm -f dist/*.whl
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist $(addprefix ./,$(PACKAGES))
	@rm -rf $(addsuffix /build,$(PACKAGES))

publish-wheels:  ## dist/ to PyPI, as its trusted publisher: in the release workflow
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@$(PYTHON) -m uv publish --trusted-publishing always dist/*.whl

e2e-compose: setup  ## docker compose up for real, a job that survives kills, down and up again; needs Docker, minutes
	@$(REVISION) $(BIN)/python -m pytest -s -m compose tests/compose

e2e-cluster: setup  ## what users and clusters do, on the Kubernetes that KUBECONFIG names, with images that it has
	@test -n "$$KUBECONFIG" || { echo "make: KUBECONFIG is not set: it names the cluster; tests/cluster/test_cluster.py tells the other variables" >&2; exit 2; }
	@$(BIN)/python -m pytest -s -m cluster --ignore tests/cluster/test_chaos.py tests/cluster tests/integration/orchestrator

$(VENV)-manifests/.ready: requirements-manifests.txt
	@$(PYTHON) -m venv $(VENV)-manifests
	@$(VENV)-manifests/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements-manifests.txt
	@touch $@

check-manifests: setup $(VENV)-manifests/.ready  ## deploy/k8s by its tests and by checkov, the workflows by their schema, actionlint and zizmor
	@$(BIN)/python -m pytest tests/unit/deploy
	@rm -rf build/manifests && mkdir -p build/manifests
	@cd tests && $(abspath $(BIN))/python -m support.render_manifests $(abspath build/manifests)
	@$(VENV)-manifests/bin/checkov --config-file deploy/k8s/checkov.yaml --directory build/manifests
	@$(VENV)-manifests/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$$(command -v actionlint || echo go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12)
	@$(VENV)-manifests/bin/zizmor --offline .github/workflows

$(VENV)-audit/.ready: Makefile
	@$(PYTHON) -m venv $(VENV)-audit
	@$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	@touch $@

audit: $(VENV)-audit/.ready  ## known vulnerabilities of everything in constraints.txt, by pip-audit
	@$(VENV)-audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

$(VENV)-site/.ready: requirements-site.txt constraints.txt
	@$(PYTHON) -m venv $(VENV)-site
	@$(VENV)-site/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement requirements-site.txt
	@touch $@

site: $(VENV)-site/.ready  ## the documentation in ./site, which a browser also opens from there; broken links are errors
	@NO_MKDOCS_2_WARNING=1 $(VENV)-site/bin/mkdocs build --strict

serve-site: $(VENV)-site/.ready  ## the same on 127.0.0.1:8000, built again at each change
	@NO_MKDOCS_2_WARNING=1 $(VENV)-site/bin/mkdocs serve --strict --dev-addr $(SITE_ADDRESS)

notebooks: setup  ## run the notebooks of docs/tutorials and store their outputs; minutes
	@PODRACER_NOTEBOOKS=1 $(BIN)/python -m pytest tests/e2e/test_notebook.py

chaos: setup  ## a tournament while everything is killed and frozen at random: a hundred faults, twenty minutes
	@PODRACER_CHAOS_FAULTS=$${PODRACER_CHAOS_FAULTS:-100} PODRACER_CHAOS_REPORT=$${PODRACER_CHAOS_REPORT:-runs/chaos.json} $(BIN)/python -m pytest tests/chaos -s

chaos-cluster: setup  ## the same on the Kubernetes that KUBECONFIG names: a hundred faults, an hour; tests/cluster/test_chaos.py tells the variables
	@PODRACER_CHAOS_FAULTS=$${PODRACER_CHAOS_FAULTS:-100} PODRACER_CHAOS_REPORT=$${PODRACER_CHAOS_REPORT:-runs/chaos-cluster.json} $(BIN)/python -m pytest -s -m cluster tests/cluster/test_chaos.py

zoo: setup  ## the short jobs of the zoo, beside their cards: fails if one misses its target; ten minutes
	@$(BIN)/python scripts/zoo.py

fuzz: setup  ## strange requests and environments, lying pods and servers, broken files, histories of leases: 100,000 and more, an hour
	@PODRACER_FUZZ=$${PODRACER_FUZZ:-15000} $(BIN)/python -m pytest -m "not gpu" tests/fuzz tests/integration/*/test_random_requests.py tests/integration/*/test_hostile_*.py tests/integration/orchestrator/test_exact_counters.py

lint: setup  ## ruff: style and likely mistakes
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: setup  ## ruff: put into shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: setup  ## mypy, strict, on our packages
	@$(BIN)/mypy

imports: setup  ## the import rules of the house
	@$(BIN)/lint-imports

protos: setup  ## generate the gRPC stubs, and the table of docs/security.md
	@rm -rf $(STUBS)/*/ $(VALIDATE_STUBS)
	@$(PROTOC) --python_out=$(abspath libs/podracer_core) --mypy_out=quiet:$(abspath libs/podracer_core) \
		--grpc_python_out=$(abspath libs/podracer_core) --mypy_grpc_out=quiet:$(abspath libs/podracer_core) \
		$$(find podracer -name '*.proto' | sort)
	@$(PROTOC) --python_out=$(abspath libs/podracer_core) buf/validate/validate.proto
	@touch $(STUBS)/py.typed
	@cd tests && $(abspath $(BIN))/python -m support.access_matrix

descriptors: setup  ## dist/podracer.binpb: the protos with their comments and all that they import, for other languages
	@mkdir -p dist
	@$(PROTOC) --include_imports --include_source_info --descriptor_set_out=$(abspath $(DESCRIPTORS)) \
		$$(find podracer -name '*.proto' | sort)

check-protos: descriptors  ## lint the protos, refuse breaking changes, and compare the stubs with them
	@cd protos && $(abspath $(BIN))/buf lint $(abspath $(DESCRIPTORS)) --path podracer
	@cd protos && $(abspath $(BIN))/buf breaking $(abspath $(DESCRIPTORS)) --path podracer --against baseline.binpb
	@$(MAKE) --no-print-directory protos
	@git diff --exit-code -- $(STUBS) $(VALIDATE_STUBS) && test -z "$$(git status --porcelain -- $(STUBS) $(VALIDATE_STUBS))" || { echo "make: the stubs are not what the protos give; run 'make protos' and commit" >&2; exit 1; }

protos-baseline: descriptors  ## at a release: from now on this is what must not break
	@$(BIN)/buf build $(DESCRIPTORS) --exclude-source-info --output protos/baseline.binpb

$(VENV)/.bench-ready: $(VENV)/.ready requirements-bench.txt
	@$(PIP) --requirement requirements-bench.txt $(LOGGED)
	@touch $@

bench-trading: $(VENV)/.bench-ready  ## those of libs/podracer_trading, in full; bench and bench-quick have them too
	@for script in $(TRADING_BENCHMARKS); do $(BIN)/python $$script || exit 1; done

bench: $(VENV)/.bench-ready  ## every benchmark, in full, beside its peers
	@for script in $(BENCHMARKS); do $(BIN)/python $$script || exit 1; done

bench-gpu: setup  ## the figures of docs/benchmarks/gpu.jsonl that are oldest, in MINUTES (9); PUREJAXRL=/path/to/checkout; PROFILE=1: kernels
	@$(BIN)/python benchmarks/gpu.py --minutes $(or $(MINUTES),9) $(if $(PUREJAXRL),--purejaxrl $(PUREJAXRL)) $(if $(PROFILE),--profile)

bench-quick: $(VENV)/.bench-ready  ## every benchmark, under a minute each
	@for script in $(BENCHMARKS); do $(BIN)/python $$script --quick || exit 1; done

paper: setup  ## the paper's claims, each with our figure, its date and its command (docs/paper.md)
	@$(BIN)/python scripts/paper.py

paper-quick: setup  ## the quick forms of those commands, under a minute each
	@$(BIN)/python scripts/paper.py --quick

clean:  ## remove what setup and tools made
	@rm -rf $(VENV) $(VENV)-manifests $(VENV)-audit $(VENV)-mjlab $(VENV)-site site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
