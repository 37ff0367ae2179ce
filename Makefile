# make book   the book, at _build/html/index.html        make test   every test
# Both first make the environment .venv from requirements.lock. Python and make are enough.
# Another Python: make book PYTHON=python3.12

PYTHON ?= python3
PORT ?= 8000
BIN := .venv/bin

# One thread: the matrices here are small, and so the numbers do not depend on the number of cores.
export OMP_NUM_THREADS := 1

# uv is four times as fast as pip. But it does not read all settings that tell pip where to look, so pip is asked where uv fails.
# Where Python may not write bytecode, uv compiles what it installs: otherwise each of the many kernels compiles anew, 12 s
# every time.
INSTALL := VIRTUAL_ENV=.venv $(if $(PYTHONDONTWRITEBYTECODE),UV_COMPILE_BYTECODE=1) UV_FIND_LINKS="$(PIP_FIND_LINKS)" UV_INDEX="$(PIP_EXTRA_INDEX_URL)" \
	UV_INDEX_STRATEGY=unsafe-best-match $(BIN)/uv pip install --quiet

INSTALLED := .venv/.installed
BUILT := _build/html/.built
CACHE := _build/.jupyter_cache
EXECUTED := $(CACHE)/.executed
NOTEBOOKS := $(wildcard book/*.ipynb)
SOURCES := _config.yml $(wildcard book/*.md) $(NOTEBOOKS) $(shell find floral_lite book/_* book/api book/results book/references.bib \
	-type f -not -name '*.pyc' -not -path '*/_vendor/*' -not -path '*/.*' 2>/dev/null)

# With npm the pages carry their own MathJax. Without npm they load the same file from a CDN and check its hash.
ifneq ($(shell command -v npm),)
MATHJAX := book/_vendor/tex-svg-full.js
endif

.PHONY: book chapters test test-flower flower-demo lint serve notebooks coursework clean clean-notebooks lock

book: $(BUILT)
	@echo "Open $(CURDIR)/_build/html/index.html"

chapters: $(EXECUTED)

# On all cores; a worker that has nothing left takes over another's tests. Those of CUDA also run on a GPU that is pretended.
test: $(BUILT)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -p tests.pretended_cuda tests/test_cuda.py
	if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; \
		then $(MAKE) test-flower FLOWER_TESTS="$(FLOWER_SOON)"; \
		else echo "Flower has Python 3.11 or newer: its tests are left out. make clean, then make test PYTHON=python3.12"; fi

# Flower needs Python 3.11 and older versions of some packages than the book has. So it has an environment of its own,
# which takes the rest from .venv. All its tests take minutes, and CI has few. `make test` compares the paper's methods
# with the engine, looks for what is private in messages, and sends bad replies; `make test-flower` tests every method under every setting.
FLOWER := .venv-flower/bin/python
FLOWER_TESTS := tests/test_flower*.py floral_lite/flower
FLOWER_SOON := tests/test_flower_replies.py tests/test_flower_averages.py tests/test_flower_state.py \
	tests/test_flower_nodes.py tests/test_flower_privacy.py tests/test_flower_page.py \
	tests/test_flower_simulation.py tests/test_flower_client.py::test_nothing_private_is_sent \
	tests/test_flower.py::test_in_single_precision_the_paper_s_methods_come_to_the_same
test-flower: .venv-flower/.installed
	$(FLOWER) -m pytest --numprocesses auto --dist worksteal $(FLOWER_TESTS)

# A federation with a SuperLink and three SuperNodes on this machine, and the same federation on the engine.
flower-demo: .venv-flower/.installed
	$(FLOWER) examples/flower/demo.py

.venv-flower/.installed: examples/flower/flower.lock $(INSTALLED)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Flower has Python 3.11 or newer: make clean, then make flower-demo PYTHON=python3.12")'
	rm -rf .venv-flower
	$(BIN)/uv venv --quiet --python $(BIN)/python .venv-flower
	$(subst VIRTUAL_ENV=.venv,VIRTUAL_ENV=.venv-flower,$(INSTALL)) --requirement examples/flower/flower.lock \
		|| $(BIN)/python -m pip --python .venv-flower install --quiet --requirement examples/flower/flower.lock
	{ echo $(CURDIR); $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; } \
		> $$($(FLOWER) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/floral_lite.pth
	touch $@

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

serve: $(BUILT)
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

# The chapters for plain Jupyter and Colab, which do not know MyST: make notebooks FOLDER=../notebooks
notebooks: FOLDER := _build/notebooks
notebooks: $(INSTALLED)
	$(BIN)/python book/_ext/plain.py $(FOLDER)

# Assignments for nbgrader, see book/lecturers.md: make coursework FOLDER=../course CHAPTERS="03 07"
FOLDER := _build/coursework
coursework: $(INSTALLED)
	$(INSTALL) $(HASHED) book/_ext/coursework.lock || $(BIN)/python -m pip install --quiet $(HASHED) book/_ext/coursework.lock
	$(BIN)/python book/_ext/coursework.py $(FOLDER) $(CHAPTERS)

clean:
	rm -rf _build .venv .venv-flower book/node_modules book/_vendor .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Remove outputs, counts and widget state; write the install cell and the Colab links from _config.yml.
clean-notebooks: $(INSTALLED)
	$(BIN)/python book/_ext/chapters.py
	$(BIN)/nbstripout --keep-id $(NOTEBOOKS)

# Keeps the present versions where they are still allowed; to take the newest, empty requirements.lock first.
# Left out is what torch's own Linux build brings along: pip adds these packages itself, only where they are needed.
# hashes.lock has the hashes of all others but torch and torchvision, of which each index has its own builds.
lock: $(INSTALLED)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --extra book --extra dev \
		--no-header --no-annotate --output-file requirements.lock pyproject.toml
	{ echo "# Exact versions of our own builds (extras book and dev), made by 'make lock'; Python 3.10 to 3.13."; \
	  echo "# The nvidia, cuda and triton packages are left out: pip adds them where torch's own build needs them."; \
	  grep -Ev '^(#|nvidia-|cuda-|triton)' requirements.lock; } > requirements.lock.new
	mv requirements.lock.new requirements.lock
	{ echo "# The hashes of requirements.lock but for torch and torchvision, made by 'make lock'."; \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-deps --generate-hashes \
		--no-emit-package torch --no-emit-package torchvision --no-header --no-annotate requirements.lock; } > hashes.lock
	{ echo "# What nbgrader adds to requirements.lock, made by 'make lock'."; \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --extra coursework \
		--constraint requirements.lock --no-header --no-annotate pyproject.toml \
	  | grep -vxFf requirements.lock | grep -Ev '^(nvidia-|cuda-|triton)' \
	  | $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-deps --generate-hashes \
		--no-header --no-annotate -; } > book/_ext/coursework.lock
	echo 'flwr>=1.41' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate \
		--generate-hashes --output-file examples/flower/flower.lock -
	{ echo "# Flower and what it needs, some of it older than in requirements.lock, made by 'make lock'; Python 3.11 or newer."; \
	  grep -v '^#' examples/flower/flower.lock; } > examples/flower/flower.lock.new
	mv examples/flower/flower.lock.new examples/flower/flower.lock

# First everything that has a hash, then torch and what its build brings along.
HASHED := --require-hashes --no-deps --requirement
$(INSTALLED): requirements.lock hashes.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer, please: make book PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	sed -n '/^uv==/,/[^\\]$$/p' hashes.lock > .venv/uv.lock
	$(BIN)/python -m pip install --quiet $(HASHED) .venv/uv.lock
	$(INSTALL) $(HASHED) hashes.lock || $(BIN)/python -m pip install --quiet $(HASHED) hashes.lock
	$(INSTALL) --requirement requirements.lock || $(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

$(MATHJAX): book/package.json book/package-lock.json
	npm ci --prefix book --no-audit --no-fund
	mkdir -p $(@D)
	cp book/node_modules/mathjax/es5/tex-svg-full.js $@

# From nothing each time: a page that is not read again does not repeat its warnings, and a cache does not
# notice a change of floral_lite. The chapters run first, side by side; the build finds them in the cache.
$(EXECUTED): $(SOURCES) $(INSTALLED)
	rm -rf $(CACHE)
	FLORAL_LITE_STATIC_PAGE=1 $(BIN)/python book/_ext/execute.py --cache $(CACHE)
	touch $@

$(BUILT): $(EXECUTED) $(MATHJAX)
	rm -rf _build/html _build/.doctrees _build/jupyter_execute
	$(BIN)/jupyter-book build book -W --keep-going
	touch $@
