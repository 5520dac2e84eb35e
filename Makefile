# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Each target sets up what it needs; `make help` lists them.

BIN := .venv/bin
JOBS ?= 2
# Tests wait for processes about a third of their time: three at once keep two cores busy.
TEST_JOBS ?= 3
SEEDS ?= 0-999
RAFT_SEEDS ?= 0-9999
# Tests start hundreds of interpreters: each would compile everything again where a machine says not to keep bytecode.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak explore stores check sim sim-consensus bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1	\2/' | expand -t 24

setup: ## make .venv with everything the other targets need
	@scripts/setup dev

demo: ## a search on a cluster from nothing: sixteen networks, early stopping, two kills, the best model asked
	@scripts/setup demo
	@$(BIN)/clutch demo

test: setup ## every test that takes seconds, in parallel
	@$(BIN)/pytest -n $(TEST_JOBS) --dist worksteal -m "not slow"

soak: setup ## the tests that take minutes: chaos with real processes, kills and cut networks
	@CLUTCH_BARS=strict $(BIN)/pytest -n $(JOBS) --dist worksteal -m slow --timeout 400

explore: setup ## property tests with new examples, many more of them
	@CLUTCH_EXAMPLES=explore $(BIN)/pytest -n $(JOBS) --dist worksteal -m "not slow" tests/unit --timeout 900

stores: setup ## the suite of blobs on real HDFS and Azure servers, its quick part
	@$(BIN)/pytest -q -m slow tests/conformance/test_blobs_hdfs.py tests/conformance/test_blobs_azure.py -k "test_hdfs[ or test_azure[ or killed_upload"

check: setup ## style, types and laws
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/pytest -q tests/tidy

sim: setup ## 1,000 seeded clusters under faults; SEEDS=A-B for others
	@$(BIN)/clutch sim run --seeds $(SEEDS) --jobs $(JOBS)

sim-consensus: setup ## 10,000 seeded raft groups under faults; RAFT_SEEDS=A-B for others
	@$(BIN)/python -m clutch.testing.raft_world --seeds $(RAFT_SEEDS) --jobs $(JOBS)

bench: setup ## the benchmarks, each beside a peer or a physical limit
	@$(BIN)/python benchmarks/scheduling.py
	@$(BIN)/python benchmarks/journal.py
	@$(BIN)/python benchmarks/start.py
	@$(BIN)/python benchmarks/blobs.py
	@$(BIN)/python benchmarks/transports.py
	@$(BIN)/python benchmarks/consensus.py
	@$(BIN)/python benchmarks/output.py
	@$(BIN)/python benchmarks/agent_link.py
	@$(BIN)/python benchmarks/api.py
	@$(BIN)/python benchmarks/cluster.py
	@$(BIN)/python benchmarks/metrics.py --seconds 4
	@$(BIN)/python benchmarks/reporting.py --points 20000
	@$(BIN)/python benchmarks/experiments.py trials init --count 200
	@$(BIN)/python benchmarks/experiments.py stop
	@$(BIN)/python benchmarks/experiment_peers.py --trials 200 --ray-trials 16
	@$(BIN)/python benchmarks/checkpoints.py --gib 0.5 --rounds 1
	@$(BIN)/python benchmarks/distributed.py --ranks 8 --quick

clean: ## remove .venv and caches
	@rm -rf .venv .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis
