# make run    a daemon on a scratch database, away from your own data
# make test   everything that must pass; .ci/run calls it
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test-postgres postgres-try bench-postgres soak bench-backup bench-status lock licences test-lowest audit run test check lint types pytest e2e bench bench-import bench-batches bench-hook bench-ctl bench-search bench-indexing bench-retrieval bench-recall bench-memory bench-secure-delete faults bench-fairness bench-redaction bench-stalls bench-view demo screenshots docs format build release-check clean dev static-model platforms

run: $(VENV)/running
	@echo "Starting clankersd on the scratch database in .scratch; Ctrl-C stops it."
	CLANKERS_DATA_PATH=$(CURDIR)/.scratch CLANKERS_CONFIG_PATH=$(CURDIR)/.scratch/clankers.toml $(BIN)/clankersd

test: check

check: lint types pytest

dev: $(VENV)/installed

# What running needs, and nothing else. The version of Python is checked before anything is installed.
$(VENV)/running: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "clankers needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "Creating the virtualenv $(VENV)."
	@$(PYTHON) -m venv $(VENV)
	@echo "Installing clankers and what it needs to run, without the development tools."
	$(BIN)/pip install --disable-pip-version-check -e .
	@touch $@

$(VENV)/installed: $(VENV)/running
	@echo "Installing the development tools."
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/installed
	$(BIN)/mypy

# Three workers on two cores: tests often wait for a daemon. A plain `pytest` uses none.
pytest: $(VENV)/installed
	$(BIN)/pytest -n 3 --dist worksteal -m 'not e2e and not soak'

# What takes longer: the real harnesses from the npm registry, and a short soak. .ci/run calls it after `make test`.
e2e: $(VENV)/installed
	$(BIN)/pytest -n 3 --dist worksteal -m 'e2e or soak'

# The PostgreSQL engine beside SQLite, on a throw-away server; part of `make e2e`.
test-postgres: $(VENV)/installed
	$(BIN)/pytest -n 0 tests/engines

# A throw-away PostgreSQL server and a daemon on it, in a scratch folder; Ctrl-C ends both.
postgres-try: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m helpers.postgres

# Events and searches of both engines on CHUNKS messages, and the recall of an index of VECTORS vectors; DATA as below.
bench-postgres: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m tests.bench.postgres $(if $(CHUNKS),--messages $(CHUNKS)) $(if $(VECTORS),--vectors $(VECTORS)) $(if $(DATA),--data $(DATA))

bench: $(VENV)/installed
	$(BIN)/python -m tests.bench

# How fast the history of a harness is imported: SESSIONS of 100 turns.
bench-import: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m tests.bench.imports $(if $(SESSIONS),--sessions $(SESSIONS))

# How fast events.batch stores events: DATA is a folder with the chats of BEAM, BEFORE another checkout to compare with.
bench-batches: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m tests.bench.batches $(if $(DATA),--data $(DATA)) $(if $(BEFORE),--before $(BEFORE))

bench-hook: $(VENV)/installed
	$(BIN)/python -m tests.bench.hook

# BEFORE is another checkout to compare with.
bench-ctl: $(VENV)/installed
	$(BIN)/python -m tests.bench.ctl $(BEFORE)

# MILLION=1 adds a store of a million chunks; STORE is a folder in which the filled stores are kept for the next run.
bench-search: $(VENV)/installed
	$(BIN)/python -m tests.bench.search $(if $(MILLION),--million) $(if $(STORE),--store $(STORE))

bench-indexing: $(VENV)/installed
	$(BIN)/python -m tests.bench.indexing

# DATA is a folder with evaluation sets; ONNX a folder with an ONNX sentence encoder, measured instead of the static
# model, best with OTHERS=0; OTHERS the numbers of other messages in the store, 0,100000,400000 unless given; RERANKER a
# folder with an ONNX cross-encoder. TOOLS=1 stores a failed tool call beside each message.
bench-retrieval: $(VENV)/installed
	$(BIN)/python -m tests.bench.retrieval $(DATA) $(if $(ONNX),--onnx $(ONNX)) $(if $(OTHERS),--others $(OTHERS)) $(if $(SETS),--sets $(SETS)) $(if $(TOOLS),--tools) $(if $(POSTGRES),--postgres) $(if $(RERANKER),--reranker $(RERANKER))

# DATA is a folder with the chats of BEAM.
bench-recall: $(VENV)/installed
	$(BIN)/python -m tests.bench.recall $(DATA) $(if $(ONNX),--onnx $(ONNX)) $(if $(OTHERS),--others $(OTHERS))

bench-memory: $(VENV)/installed
	$(BIN)/python -m tests.bench.memory

bench-secure-delete: $(VENV)/installed
	$(BIN)/python -m tests.bench.secure_delete

# TIMES is how often each fault is injected; FAULTS picks some by a word of their names.
faults: $(VENV)/installed
	$(BIN)/python -m tests.faults $(if $(TIMES),--times $(TIMES)) $(FAULTS)

# MINUTES is how long; SEED repeats the faults of another run.
soak: $(VENV)/installed
	$(BIN)/python -m tests.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

# SIZE is the size of the database in megabytes, CLIENTS the number of connections that write.
bench-backup: $(VENV)/installed
	$(BIN)/python -m tests.bench.backup $(if $(SIZE),--megabytes $(SIZE)) $(if $(CLIENTS),--clients $(CLIENTS))

# CHUNKS is the size of the large store; a million unless given.
bench-status: $(VENV)/installed
	$(BIN)/python -m tests.bench.status $(if $(CHUNKS),--chunks $(CHUNKS))

# LOADS chooses some of them, such as LOADS="search import".
bench-fairness: $(VENV)/installed
	$(BIN)/python -m tests.bench.fairness $(LOADS)

# Which platforms have wheels for all dependencies; asks the package index.
platforms: $(VENV)/installed
	$(BIN)/python -m tests.platforms

# Writes requirements-dev.lock: every package of the development environment, with hashes, for all platforms.
lock:
	uv pip compile pyproject.toml --extra dev --extra onnx --universal --python-version 3.11 --generate-hashes \
	  --no-header --quiet --upgrade --output-file requirements-dev.lock

licences: $(VENV)/installed
	$(BIN)/python -m tests.platforms.licences > docs/licences.md

# The tests with the oldest release of each dependency that pyproject.toml allows; LOWEST_TESTS chooses others.
LOWEST := .venv-lowest
LOWEST_TESTS ?= tests/unit $(foreach name,events search documents remote_embedders mcp schedule ctl settings,tests/integration/test_$(name).py)
test-lowest:
	uv venv --quiet --clear --python $(PYTHON) $(LOWEST)
	uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[dev]'
	$(LOWEST)/bin/pytest -p no:cacheprovider $(LOWEST_TESTS)  # no workers: the oldest pypdf gives tests other names in each

# Known vulnerabilities of the locked packages; needs uv, a network and pip-audit's service. Fails if a package cannot be checked.
audit:
	uvx pip-audit --strict --require-hashes --disable-pip --requirement requirements-dev.lock

# Builds the files of the static embedding model again, from the weights inside another package's wheel.
static-model: $(VENV)/installed
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --dest .scratch/wheels wordllama==0.4.0.post1
	$(BIN)/python -m tests.platforms.static_model .scratch/wheels/wordllama-0.4.0.post1-*.whl

bench-stalls: $(VENV)/installed
	$(BIN)/python -m tests.bench.stalls

bench-redaction: $(VENV)/installed
	$(BIN)/python -m tests.bench.redaction

# MESSAGES is the size of the store; 100,000 unless given.
bench-view: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m tests.bench.view $(MESSAGES)

# A store with a generated week of work in .scratch/demo, and the web view of it; Ctrl-C ends both.
demo: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m tests.demo $(CURDIR)/.scratch/demo

# The pictures of the README, from such a store; needs Chromium.
screenshots: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m tests.demo.screenshots docs/images

docs: $(VENV)/installed
	$(BIN)/python -m clankers_protocol.reference > docs/rpc.md
	$(BIN)/python -m clankers_protocol.harnesses > docs/harnesses.md
	$(BIN)/python -m clankersd.mcp.server > client/clankers/mcp_offline.json
	$(BIN)/python -m clankersd.mcp.server --shell > client/clankers/mcp_offline.sh

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

build: $(VENV)/installed
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .
	CLANKERS_WHEEL_PLATFORM=musllinux_1_2_x86_64 $(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .
	CLANKERS_WHEEL_PLATFORM=musllinux_1_2_aarch64 $(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

# Builds sdist and wheel, installs the wheel into a fresh virtualenv and runs the README's commands with it.
release-check: $(VENV)/installed
	$(BIN)/python -m tests.release_check

clean:
	rm -rf $(VENV) $(LOWEST) .scratch dist build .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
