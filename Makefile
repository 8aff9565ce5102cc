# Every target sets up its own .venv on a fresh machine; a second run is quick.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: demo test test-ops test-deep sanitize pages docs stubs check bench bench-compare bench-gpu release sizes clean
.DEFAULT_GOAL := test

SHELL := bash
unexport PYTHONDONTWRITEBYTECODE  # a thousand processes import the package; compiling it anew takes a second each

$(STAMP): pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "Installing ttmesh and its tools into $(VENV) (a minute on a fresh machine)"
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt torch
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[monitor,web,mpi,dev]'
	@touch $(STAMP)

demo: $(STAMP)  ## the main job: a 2x4 mesh, tensors on every chip, and what each chip holds
	@$(PY) examples/mesh_allocation.py

test-ops: $(STAMP)  ## every operation against torch over formats, layouts, placements and meshes; TTMESH_BACKEND=cuda on a GPU
	@$(PY) -m pytest tests/ops/test_goldens.py -m full

test: $(STAMP)  ## every test, two files at a time with one thread each
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=25 --durations-min=5

test-deep: $(STAMP)  ## the long runs: properties over many seeds, soaks, faults, the whole matrix of operations
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile -m 'deep or full'

sanitize: $(STAMP)  ## the compiled kernels under ASan, UBSan and TSan, with 200 interrupts
	@$(PY) -m pytest tests/sanitizers -m deep

pages: $(STAMP)  ## the pages of docs/ that are generated from the code
	@$(VENV)/bin/ttmesh ops --markdown > docs/coverage.md
	@$(VENV)/bin/ttmesh ops --no-effect > docs/no_effect.md
	@$(PY) docs/generate/settings_page.py > docs/settings.md
	@$(PY) docs/generate/tutorial_notebook.py

docs: $(STAMP)  ## the site in artefacts/site; dead links and pages without a place fail
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=docs/generate $(PY) -m mkdocs build -q

stubs: $(STAMP)  ## type stubs of the TT-NN namespace, from the names table and the signatures
	@$(PY) -m ttmesh.ttnn.type_stubs

check: $(STAMP)  ## format, lint, types, the rules that tests hold the tree to, smoke
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@$(PY) -m pytest tests/test_architecture.py tests/test_lane_devices.py tests/test_vocabulary.py tests/test_doc_pages.py tests/test_page_names.py tests/base/test_error_texts.py tests/ttnn/test_type_stubs.py tests/cli/test_ops_command.py tests/test_smoke.py

bench: $(STAMP)  ## every benchmark beside its peers and limits: one table, JSON and a picture in artefacts/bench; ONLY='ops busy' for some
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@$(PY) benchmarks/table.py $(if $(ONLY),--only $(ONLY))

bench-compare: $(STAMP)  ## two checkouts or revisions, alternating: make bench-compare A=HEAD~1 B=.
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@$(PY) benchmarks/compare.py $(A) $(B)

bench-gpu:  ## the rows of one NVIDIA GPU; needs a torch for CUDA, no network: WHEELS names a folder with the other packages
	@test -z "$(WHEELS)" || python3 -m pip install -q --no-index --find-links $(WHEELS) --target .gpu-site msgspec psutil rich pyyaml platformdirs
	@PYTHONPATH=src:.gpu-site python3 benchmarks/gpu.py --json artefacts/bench_gpu.json

release:  ## wheel and sdist, each installed in a clean environment and used as a new user would
	@$(PYTHON) tools/release.py

sizes: $(STAMP)  ## lines per layer
	@for layer in src/ttmesh/*/; do printf '%6d  %s\n' $$(find $$layer -name '*.py' -o -name '*.c' | xargs cat | wc -l) $$layer; done

clean:
	rm -rf $(VENV) artefacts
