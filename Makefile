# One command each: `make train` trains a GPT-2 from nothing, `make test` runs every test, both in .venv, which they make.
#
# Steps leave a stamp in the environment, so that a second call starts at once. Useful variables:
#   PYTHON=python3.12   the interpreter for a new .venv           VENV=/path     another environment
#   TORCH=2.11.0        the torch to build for (default: the one  MAX_JOBS=1     compile jobs
#                       in the environment, or 2.13.0)
#   ARGS="--steps 50"   arguments for the example of `make train`  PYTEST_ARGS=-x arguments for pytest
#   FUZZ_SECONDS=600    how long `make fuzz` runs                 CLANGXX=clang++-16  its compiler
#   FUZZER=ortmodule_load_fuzz   loads and checks alone, many times as fast
PYTHON ?= python3
VENV ?= .venv
TORCH ?=
ARGS ?=
PYTEST_ARGS ?=
PY := $(VENV)/bin/python
STAMPS := $(VENV)/.stamps
CPP := $(shell find csrc tests/cpp tests/device -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null)
PYTHON_DIRS := $(wildcard ortmodule graph_transition optim distributed examples benchmarks tests)

.PHONY: FORCE help train test test-cpp test-python tsan asan fuzz build lint mypy format wheel clean system setup
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@echo "make train    set up, build, train examples/train_gpt.py (ARGS=... for its options)"
	@echo "make test     set up, build, run the C++ tests and pytest"
	@echo "make build    set up and build in place        make wheel   dist/*.whl"
	@echo "make tsan     what threads share, under ThreadSanitizer"
	@echo "make asan     the C++ tests and those of operators and broken files, under two sanitizers"
	@echo "make fuzz     broken models that libFuzzer makes, through the core (needs clang)"
	@echo "make lint     ruff, clang-format, mypy         make format  rewrite in the project's style"
	@echo "make clean    remove build products (not $(VENV))"

train: setup $(STAMPS)/deps-examples
	$(PY) examples/train_gpt.py $(ARGS)

test: test-cpp test-python

# The programs and headers that pip cannot bring. As root they are installed, otherwise the command is printed.
system:
	@need=; \
	have() { command -v $$1 >/dev/null 2>&1 || test -x $(VENV)/bin/$$1; }; \
	header() { $${CXX:-g++} -E -x c++ -include $$1 /dev/null >/dev/null 2>&1; }; \
	have $${CXX:-g++} || need="$$need g++"; \
	have cmake || need="$$need cmake"; \
	have ninja || need="$$need ninja-build"; \
	if [ -z "$$ORTMODULE_PROTOBUF_ROOT" ]; then \
	  have protoc || need="$$need protobuf-compiler"; \
	  header google/protobuf/message_lite.h || need="$$need libprotobuf-dev"; \
	  header nlohmann/json.hpp || need="$$need nlohmann-json3-dev"; \
	fi; \
	header eigen3/Eigen/Core || header Eigen/Core || need="$$need libeigen3-dev"; \
	header boost/context/fiber.hpp || need="$$need libboost-context-dev"; \
	header gtest/gtest.h || need="$$need libgtest-dev"; \
	if [ -n "$$need" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing$$need"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$need; \
	  else \
	    echo "ortmodule: system packages are missing; run: sudo apt-get install$$need" >&2; exit 1; \
	  fi; \
	fi

# An interpreter that is named has to be the environment's; without a name any is fine.
PYTHON_NAMED := $(filter-out file default,$(origin PYTHON))
MINOR := -c 'import sys; print("%d.%d" % sys.version_info[:2])'

$(STAMPS)/venv: $(if $(PYTHON_NAMED),FORCE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ortmodule: Python 3.11 or later is needed; name one, for example: make PYTHON=python3.11" >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "ortmodule: no virtual environment could be made; run: apt-get install python3-venv" >&2; exit 1; }
	@test -z "$(PYTHON_NAMED)" || test "`$(PYTHON) $(MINOR)`" = "`$(PY) $(MINOR)`" || \
	  { echo "ortmodule: $(VENV) has Python `$(PY) $(MINOR)`; name a new folder for $(PYTHON), for example VENV=.venv-`$(PYTHON) $(MINOR)`" >&2; exit 1; }
	@mkdir -p $(STAMPS) && { test -e $@ || touch $@; }

# Torch comes first and alone: everything else adapts to it. The stamp holds its version, and changes with it alone.
$(STAMPS)/torch: $(STAMPS)/venv $(if $(TORCH),FORCE)
ifeq ($(TORCH),)
	@$(PY) -c 'import sys, torch; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11))' 2>/dev/null || \
	  $(PY) -m pip install -q torch==2.13.0
else
	@$(PY) -m pip install -q "$(if $(findstring torch,$(TORCH)),,torch==)$(TORCH)"
endif
	@$(PY) -m pip install -q "setuptools>=77" wheel
	@$(PY) -c 'from importlib.metadata import version; print(version("torch"))' > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

FORCE:

# deps-run: what ortmodule imports; deps-examples, deps-test, deps-dev: the optional dependencies of pyproject.toml.
$(STAMPS)/deps-%: pyproject.toml $(STAMPS)/torch
	@$(PY) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	  print(*p["dependencies"], *p["optional-dependencies"].get("$*", []), sep="\n")' > $@.txt
	$(PY) -m pip install -q -r $@.txt
	@touch $@

# Compiling through setup.py shows its progress, which pip hides; the editable install then only registers the checkout.
build: system $(STAMPS)/deps-run
	$(PY) setup.py -q build_ext --inplace

$(STAMPS)/editable: pyproject.toml setup.py | build
	$(PY) -m pip install -q --no-build-isolation --no-deps -e .
	@touch $@

setup: build $(STAMPS)/editable

test-cpp: export ORTMODULE_TESTS = 1
test-cpp: setup
	build/ortmodule_tests --gtest_brief=1

# Races in what threads share, by ThreadSanitizer. Addresses must lie where it knows them: setarch -R.
tsan: export ORTMODULE_TESTS = 1
tsan: setup
	cmake --build $(dir $(realpath build/ortmodule_tests)) --target ortmodule_thread_tests
	TSAN_OPTIONS="halt_on_error=1 suppressions=$(CURDIR)/tests/cpp/tsan.supp" \
	  setarch -R $(dir $(realpath build/ortmodule_tests))ortmodule_thread_tests --gtest_brief=1

# A second build, whose every file is checked. Torch is not built so: what its own code does is not seen. The package
# that Python imports is a folder of links around those libraries. The CUDA kernels have a library of their own.
ASAN := $(CURDIR)/build/asan
ASAN_TESTS ?= tests/ops tests/safety/test_fuzz.py tests/safety/test_attribute_lists.py
asan: export ORTMODULE_TESTS = 1
asan: setup $(STAMPS)/deps-test
	cmake -G Ninja -S . -B $(ASAN) -DORTMODULE_SANITIZE=address,undefined -DORTMODULE_TESTS=ON -DORTMODULE_CUDA=0 \
	  -DPython_EXECUTABLE=$(abspath $(PY))
	cmake --build $(ASAN) --target ortmodule_tests _C
	ASAN_OPTIONS=detect_leaks=0 $(ASAN)/ortmodule_tests --gtest_brief=1
	$(PY) -m tests.cuda sanitized
	rm -rf $(ASAN)/site && mkdir -p $(ASAN)/site/ortmodule
	ln -s $(CURDIR)/tests $(CURDIR)/examples $(CURDIR)/csrc $(CURDIR)/docs $(CURDIR)/pyproject.toml $(ASAN)/site/
	ln -s $(filter-out %.so,$(wildcard $(CURDIR)/ortmodule/*)) $(CURDIR)/graph_transition $(CURDIR)/optim \
	  $(CURDIR)/distributed $(wildcard $(ASAN)/ortmodule/*) $(ASAN)/site/ortmodule/
	cd $(ASAN)/site && ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=32 \
	  LD_PRELOAD="$$($${CXX:-g++} -print-file-name=libasan.so) $$($${CXX:-g++} -print-file-name=libubsan.so)" \
	  $(abspath $(PY)) -m pytest -p no:cacheprovider $(ASAN_TESTS) $(PYTEST_ARGS)

CLANGXX ?= $(or $(shell command -v clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14 | head -1),clang++)
FUZZ_SECONDS ?= 600
FUZZER ?= ortmodule_fuzz
fuzz: setup $(STAMPS)/deps-test
	@command -v $(CLANGXX) >/dev/null || { echo "ortmodule: clang is missing; run: apt-get install clang" >&2; exit 1; }
	cmake -G Ninja -S . -B build/fuzz -DORTMODULE_FUZZ=ON -DORTMODULE_SANITIZE=address,undefined -DORTMODULE_CUDA=0 \
	  -DCMAKE_CXX_COMPILER=$(CLANGXX) -DPython_EXECUTABLE=$(abspath $(PY))
	cmake --build build/fuzz --target $(FUZZER)
	$(PY) -m tests.fuzz --corpus build/fuzz/corpus
	build/fuzz/$(FUZZER) -max_total_time=$(FUZZ_SECONDS) -timeout=5 -rss_limit_mb=1024 -max_len=16384 \
	  -artifact_prefix=build/fuzz/ build/fuzz/corpus

# Up to four processes: one needs 2 GiB.
test-python: setup $(STAMPS)/deps-test
	$(PY) -m pytest -n auto --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)

lint: $(STAMPS)/deps-dev $(STAMPS)/deps-run
	$(PY) -m ruff check setup.py $(PYTHON_DIRS)
	$(PY) -m ruff format --check setup.py $(PYTHON_DIRS)
	$(if $(CPP),$(VENV)/bin/clang-format --dry-run --Werror $(CPP))
	$(MAKE) --no-print-directory mypy MYPY="$(PY) -m mypy"

# mypy sees the packages under the names they are installed by: a folder of links stands for `ortmodule`.
MYPY ?= mypy
mypy:
	@rm -rf build/typed && mkdir -p build/typed/ortmodule
	@for entry in $(wildcard $(CURDIR)/ortmodule/* $(CURDIR)/graph_transition $(CURDIR)/optim $(CURDIR)/distributed); do \
	  ln -s $$entry build/typed/ortmodule/; done
	MYPYPATH=build/typed $(MYPY) -p ortmodule

format: $(STAMPS)/deps-dev
	$(PY) -m ruff check --quiet --fix --exit-zero setup.py $(PYTHON_DIRS)
	$(PY) -m ruff format setup.py $(PYTHON_DIRS)
	$(if $(CPP),$(VENV)/bin/clang-format -i $(CPP))

wheel: system $(STAMPS)/deps-run
	$(PY) -m pip wheel -q --no-build-isolation --no-deps -w dist .
	@ls -lh dist/*.whl

clean:
	rm -rf build dist *.egg-info ortmodule/_build_info.py ortmodule/*.so ortmodule/*.so.* .mypy_cache .ruff_cache .pytest_cache
	find $(PYTHON_DIRS) -name __pycache__ -prune -exec rm -rf {} +
