# SPDX-License-Identifier: Apache-2.0
# `make help` lists what there is; the first use of any target sets the machine up.

PY := .venv/bin/python
STAMPS := .stamps
SOURCES := setup.py $(wildcard bpf/* csrc/*.c csrc/*.h csrc/*.py pyprof/_native/*.pyx pyprof/_native/*.pxd) \
	$(shell find web -type f -not -path '*/node_modules/*' -not -path '*/dist/*' 2>/dev/null)
CFORMAT = $(shell git ls-files 'bpf/*.[ch]' 'csrc/*.[ch]' 'tests/*.c' 'tests/*.cc' 'benchmarks/*.cpp')
CWARN := -std=gnu11 -O2 -fsyntax-only -Wall -Wextra -Wconversion -Werror -Icsrc -Ibpf
SCRIPTS = benchmarks/peers/build-opentelemetry tests/fuzz/run packaging/build-wheel packaging/setup-debian packaging/test-kernels packaging/vm-run .ci/run
GENERATE := build_bpf --inplace build_web --inplace
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help run build test test-kernels bench bench-peers lint format wheel clean debug

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

run: build ## profile this host for 10 s: hottest functions, flamegraph.html
	$(PY) -m pyprof record -d 10 -o flamegraph.html --top 10

build: $(STAMPS)/build ## build everything in place

$(STAMPS)/packages-%: packaging/setup-debian
	@mkdir -p $(STAMPS)
	packaging/setup-debian $*
	@touch $@

$(STAMPS)/venv: pyproject.toml | $(STAMPS)/packages-build
	test -x $(PY) || python3 -m venv .venv
	$(PY) -m pip install -q --upgrade pip
	$(PY) packaging/requirements.py pyproject.toml dev >$(STAMPS)/requirements.txt
	$(PY) -m pip install -q -r $(STAMPS)/requirements.txt
	@touch $@

# A debug build leaves modules that look up to date.
$(STAMPS)/build: $(SOURCES) $(STAMPS)/venv
	$(PY) setup.py -q $(GENERATE) build_ext --inplace -j2 $(if $(wildcard $(STAMPS)/debug),--force)
	$(PY) packaging/link_checkout.py
	@rm -f $(STAMPS)/debug
	@touch $@

debug: $(STAMPS)/venv ## build in place with bounds checks and allocation counters
	@touch $(STAMPS)/debug
	@rm -f $(STAMPS)/build
	PYPROF_DEBUG=1 $(PY) setup.py -q $(GENERATE) build_ext --inplace --force -j2

test: build | $(STAMPS)/packages-test ## run all tests
	$(PY) -m pytest

test-kernels: build | $(STAMPS)/packages-kernels ## run the BPF and system tests that matter on other kernels
	packaging/test-kernels

$(STAMPS)/bench: $(STAMPS)/venv
	$(PY) packaging/requirements.py pyproject.toml bench >$(STAMPS)/requirements-bench.txt
	$(PY) -m pip install -q -r $(STAMPS)/requirements-bench.txt
	@touch $@

bench: build $(STAMPS)/bench ## compare the hot paths with other packages and plain Python
	$(PY) -m pytest benchmarks --benchmark-group-by=group --benchmark-columns=min,median,ops,rounds

bench-peers: build $(STAMPS)/bench | $(STAMPS)/packages-test ## measure pyprof beside the OpenTelemetry profiler (root, 30 min)
	test -x build/peers/otel-profiler || benchmarks/peers/build-opentelemetry
	$(PY) -m benchmarks.peers

lint: build | $(STAMPS)/packages-test ## check formats, types and C warnings
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy.stubtest --ignore-disjoint-bases --allowlist packaging/stubtest-allowlist pyprof._native
	clang-format-19 --dry-run -Werror $(CFORMAT)
	gcc $(CWARN) csrc/*.c
	clang-19 $(CWARN) csrc/*.c
	shellcheck -e SC1007,SC1091,SC2013,SC2086,SC2317 $(SCRIPTS)

format: $(STAMPS)/venv | $(STAMPS)/packages-test ## format the sources
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	clang-format-19 -i $(CFORMAT)

wheel: $(STAMPS)/venv ## dist/: sdist and repaired manylinux wheel
	rm -rf dist
	packaging/build-wheel dist

clean: ## remove what was built (.venv stays)
	rm -rf build dist $(STAMPS) *.egg-info web/dist web/node_modules pyprof/export/flamegraph_template.html flamegraph.html
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find pyprof -name '*.so' -delete -o -name '*.bpf.o' -delete
