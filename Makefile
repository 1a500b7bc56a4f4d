# Everything sets itself up: a venv in .venv, made once and renewed when pyproject.toml changes. No root needed. Users of gossipq
# wait half a minute (USED). Developers wait longer, because the tools take 1.7 GB (STAMP).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
USED := $(VENV)/.installed
STAMP := $(VENV)/.installed-dev
SPARK := $(VENV)/.installed-spark
WARM := $(VENV)/.warm
PYTEST_ARGS ?=
# where Linux can, what yields has only the time that nobody else wants
YIELDING := $(shell chrt --idle 0 true 2>/dev/null && echo chrt --idle 0 || echo nice -n 19)
JOBS ?= 6
SEEDS ?= 2000
KILLS ?= 6
MINUTES ?= 8
HISTORY ?= build/history
IMAGES ?= 2000
THREES ?= 4
ONEFILE ?= dist/gossipq.pyz
FUZZED := .:nodes:clients:clients/python:clients/terminal:clients/gateway:clients/integrations:tests
KIND ?=
TIMES ?= 10
FIRST ?= 0
BUILD ?= build/docs
PEERS := redis-server nats-server libnats-dev rabbitmq-server beanstalkd gcc libc6-dev
export PYTHONDONTWRITEBYTECODE :=  # tests start a thousand processes: each would compile every module again

.DEFAULT_GOAL := help
.PHONY: celery-suite celery-kills databases dist sbom release image image-test systemd-test chart chart-test test-pythons test-lowest browser lint types onefile docs audit pictures slow-consumer race race-peers bindings bindings-javascript bindings-c seeds fuzz siege help install dev serf demo test check unit accept accept-slow accept-tests accept-faults accept-kills accept-planted accept-sim accept-power accept-chaos sim hunt sim-coverage perf e2e chaos chaos-kinds power power-cuts bindings-go bindings-java

help:  ## list the targets
	@echo "gossipq: make TARGET"
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-15s %s\n", $$1, $$2}'

install: $(USED)  ## make .venv and install gossipq into it: node, clients, command line, gateway

dev: $(SPARK)  ## also install the tools of tests and checks, and pyspark (1.7 GB)

$(USED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or later is needed" >&2; \
	  echo " hint: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { echo "error: no venv could be made" >&2; \
	  echo " hint: apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	@echo "installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --editable '.[gateway]'
	@touch $@

$(STAMP): $(USED)
	@echo "installing what tests and checks need into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --editable '.[dev]'
	@touch $@

demo: $(USED) serf  ## the main job: three nodes, a leader killed half way, a fourth that joins; all records counted
	@$(BIN)/gossipq demo --nodes 3

serf:  # nodes find each other by it; without it the demo runs with static peers, and tests of it are skipped
	@command -v serf >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing serf" && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq serf >/dev/null; } || \
	  { echo "note: serf is not installed: what needs it is left out" >&2; echo " hint: sudo apt-get install serf" >&2; }

# pyspark takes half a gigabyte. Without it the tests of Spark are skipped
$(SPARK): $(STAMP)
	@echo "installing pyspark into $(VENV): about a minute"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --editable '.[dev,spark]' && touch $@ || \
	  { echo "note: pyspark could not be installed; the tests of Spark will be skipped" >&2; \
	  echo " hint: $(BIN)/python -m pip install '.[spark]' shows why" >&2; }

bindings: bindings-javascript bindings-c bindings-go bindings-java  ## clients in other languages: install what they need, from npm and Debian, and build them

# Node 20.15 or later (Debian 13 has it; before that nodejs.org), and from npm: zeromq, @msgpack/msgpack, typescript
bindings-javascript:
	@clients/install.sh node:nodejs npm:npm
	@! command -v npm >/dev/null || (cd clients/javascript && npm install --no-package-lock --no-audit --no-fund --loglevel=error) || \
	  echo "note: npm could not install what the client for JavaScript needs: its tests will be skipped" >&2

# a C compiler, make, pkg-config and libzmq; valgrind for its tests
bindings-c:
	@clients/install.sh cc:build-essential pkg-config:pkg-config /usr/include/zmq.h:libzmq3-dev valgrind:valgrind
	@! (command -v cc && pkg-config --exists libzmq) >/dev/null || $(MAKE) --no-print-directory -s -C clients/c

# Go, with the C client
bindings-go: bindings-c
	@clients/install.sh go:golang-go
	@! (command -v go >/dev/null && test -e clients/c/build/libgossipq.a) || $(MAKE) --no-print-directory -s -C clients/go

# a JDK, and JeroMQ as a jar
bindings-java:
	@clients/install.sh javac:default-jdk-headless /usr/share/java/jeromq.jar:libjeromq-java
	@! (command -v javac && test -e /usr/share/java/jeromq.jar) >/dev/null || $(MAKE) --no-print-directory -s -C clients/java

dist:  ## dist/: wheel, sdist and checksums of the last commit, the same bytes each time
	@PYTHON=$(PYTHON) .ci/dist

sbom: $(STAMP)  ## dist/: the dependencies of the wheel (CycloneDX), with their licences
	@PYTHON=$(PYTHON) BIN=$(BIN) .ci/sbom

release: $(STAMP)  ## VERSION=0.2.0: check everything, build, tag, and print the two commands that publish
	@PYTHON=$(PYTHON) BIN=$(BIN) .ci/release $(VERSION)

image:  ## the container image, by buildah, podman or docker; BASE=packages, WHEELS=host: where the build reaches no registry of images, no index
	@.ci/image

image-test: $(STAMP)  ## that image, and three nodes of it by podman-compose: one is killed, each is replaced
	GOSSIPQ_IMAGE=localhost/gossipq $(BIN)/python -m pytest tests/release/test_image.py $(PYTEST_ARGS)

systemd-test: $(STAMP)  ## the unit for systemd, under systemd in a container: kill, watchdog, upgrade, wrong configuration, removal
	@.ci/image tests/release/systemd.dockerfile gossipq-systemd
	GOSSIPQ_SYSTEMD=localhost/gossipq-systemd $(BIN)/python -m pytest tests/release/test_systemd.py $(PYTEST_ARGS)

test-pythons: $(STAMP)  ## the tests without Spark and without slow ones on each supported Python that is found: TESTS="tests/core tests/node"
	@BIN=$(BIN) .ci/pythons $(TESTS)

test-lowest: $(STAMP)  ## the same on the oldest Python with the lowest versions of libraries that pyproject.toml allows
	@BIN=$(BIN) LOWEST=1 .ci/pythons $(TESTS)

chart:  ## kubernetes.yaml, anew from the Helm chart
	@PYTHON=$(PYTHON) .ci/chart-tools --write

chart-test: $(STAMP)  ## the Helm chart: helm lint and template, and the schemas of Kubernetes, KEDA and the operator of Prometheus
	@PYTHON=$(PYTHON) .ci/chart-tools
	GOSSIPQ_CHART_TOOLS=$(CURDIR)/build/chart-tools $(BIN)/python -m pytest tests/release/test_chart.py $(PYTEST_ARGS)

onefile: $(STAMP)  ## dist/gossipq.pyz: node, clients and gateway in one file, for the Python and the kind of machine that made it
	@mkdir -p $(dir $(ONEFILE))
	@$(BIN)/shiv --quiet --compressed --extend-pythonpath --python '/usr/bin/env python3' --console-script gossipq \
	  --output-file $(ONEFILE) '.[gateway]'
	@echo "$(ONEFILE): python3 $(ONEFILE) node"

test: $(SPARK)  ## check, and all tests but the slow ones (about seven minutes on two cores)
	@$(MAKE) --no-print-directory -j 2 lint types unit

check: lint types  ## format, lint, types

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# mypy leaves a core free
types: $(STAMP)
	$(BIN)/mypy

# compiled tests are kept, so that each process of pytest need not compile all of them again
$(WARM): $(STAMP) $(SPARK) $(wildcard tests/*.py tests/*/*.py tests/*/*/*.py)
	@$(BIN)/python -m pytest --collect-only -q -m "not slow" >/dev/null 2>&1 || true  # make unit says what is wrong
	@touch $@

unit: $(SPARK) $(WARM) serf  # tests mostly wait for nodes: six at a time keep two cores busy; JOBS=0 runs them one after the other
	MAKEFLAGS= $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow" --durations 30 $(PYTEST_ARGS)  # tests that run make have no job server

# for the tests of the console
browser:
	@clients/install.sh chromium:chromium chromedriver:chromium-driver

# for the tests of the outbox
databases:
	@clients/install.sh /usr/lib/postgresql:postgresql

accept: audit bindings browser databases accept-tests accept-faults  ## the longer tests (less than 30 minutes); -k continues after a failure

# tests with nodes mostly wait, so programs that compute run beside them, in the time that is left
accept-tests: $(STAMP)
	$(MAKE) --no-print-directory --output-sync=target -j 2 accept-slow accept-planted accept-sim

accept-faults: $(STAMP)
	$(MAKE) --no-print-directory --output-sync=target -j 2 accept-chaos accept-power accept-kills

audit: $(STAMP)  ## check all installed packages for known weaknesses at osv.dev; notes if it cannot be reached
	@$(BIN)/python -m pip freeze --exclude-editable >$(VENV)/.frozen; \
	  said=$$($(BIN)/pip-audit --vulnerability-service osv -r $(VENV)/.frozen --no-deps --disable-pip 2>&1); code=$$?; \
	  case "$$said" in *ConnectionError*|*Timeout*) echo "note: not audited: the advisories at api.osv.dev are not reached" >&2;; \
	  *) echo "$$said"; exit $$code;; esac

accept-slow: $(SPARK) serf  # tests of more than ten seconds: Spark in full, takeovers, drains, demos
	$(BIN)/python -m pytest -n 3 --dist loadfile -m slow --ignore tests/sim/test_planted.py --ignore tests/power \
	  --durations 60 $(PYTEST_ARGS)

accept-kills: $(STAMP)
	GOSSIPQ_KILLS=20 $(BIN)/python -m pytest tests/e2e/test_kill.py $(PYTEST_ARGS)

accept-planted: $(STAMP)
	$(YIELDING) $(BIN)/python -m pytest -n 2 --dist load --timeout 1800 -m slow tests/sim/test_planted.py \
	  $(PYTEST_ARGS)

accept-sim: $(STAMP)  # the seeds after those of make test, and more random lives of a shard, and of clients with shards
	GOSSIPQ_FIRST=8 GOSSIPQ_SEEDS=442 $(YIELDING) $(BIN)/python -m pytest --timeout 1800 \
	  tests/sim/test_sim.py tests/core/test_life.py tests/core/test_model.py $(PYTEST_ARGS)
	GOSSIPQ_FIRST=6 GOSSIPQ_SEEDS=66 $(YIELDING) $(BIN)/python -m pytest -n 2 --dist load --timeout 1800 \
	  tests/core/test_busy_lives.py tests/core/test_attempts.py tests/core/test_exceptions.py $(PYTEST_ARGS)
	GOSSIPQ_LIVES=8 $(YIELDING) $(BIN)/python -m pytest -n 2 --dist load --timeout 1800 tests/client/test_true_*.py $(PYTEST_ARGS)

accept-power: IMAGES = 1000
accept-power: power

# results.jsonl is for runs that somebody looks at: these print theirs
accept-chaos: export GOSSIPQ_RESULTS = /dev/null
accept-chaos: KILLS = 12
accept-chaos: MINUTES = 5
accept-chaos: chaos

sim: $(STAMP)  ## the cluster simulator and the property tests of the core: SEEDS=40000 for more, SEEDS=1 FIRST=17 for seed 17 again
	GOSSIPQ_RANDOM=1 GOSSIPQ_SEEDS=$(SEEDS) GOSSIPQ_FIRST=$(FIRST) $(BIN)/python -m pytest tests/sim tests/core --timeout 1800 $(PYTEST_ARGS)

seeds: $(STAMP)  ## SEEDS=2000 of the simulator from FIRST=100000 on; counts go to tests/sim/seeds.jsonl
	PYTHONPATH=tests $(BIN)/python -m sim.many $(FIRST) $(SEEDS) --note

race-peers: $(STAMP)  ## install the brokers of `make race`: Redis, NATS with its C client, RabbitMQ, beanstalkd
	@if [ $$(id -u) = 0 ]; then DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(PEERS); \
	else echo "sudo apt-get install --no-install-recommends $(PEERS)"; fi
	$(BIN)/pip install -q redis nats-py pika greenstalk

race: $(STAMP)  ## the same work for gossipq and its peers, in turns; appends to perf/RESULTS.md, draws perf/race.svg
	$(BIN)/python perf/race.py
	$(BIN)/python perf/callers.py

hunt: $(STAMP)  ## each planted bug ten times over fresh seeds: is it seen by the check that it names?
	PYTHONPATH=tests $(BIN)/python -m sim.hunt --note

sim-coverage: $(STAMP)  ## seeds and the tests of the core reach every branch of the replica, the ledger, elections and steering
	PYTHONPATH=tests $(BIN)/python -m coverage run -m sim.many $(FIRST) 300
	PYTHONPATH=tests $(BIN)/python -m coverage run --append -m pytest tests/core --timeout 900 $(PYTEST_ARGS)
	$(BIN)/python -m coverage report

pictures: $(STAMP)  ## the pictures of the documents, of a real cluster under a real load for three minutes
	PYTHONPATH=.:nodes:clients/python:clients/terminal:tests $(BIN)/python tests/cli/dashboard/scene.py
	PYTHONPATH=.:nodes:clients/python:clients/terminal:tests $(BIN)/python tests/cli/dashboard/pictures.py
	GOSSIPQ_PICTURES=docs/pictures $(BIN)/python -m pytest -q -m slow tests/console/test_browser.py

slow-consumer: $(STAMP)  ## one consumer at 50 ms a record beside one that is killed, for ten minutes: its records must not be redelivered
	GOSSIPQ_SLOW_MINUTES=$(or $(filter-out 8,$(MINUTES)),10) $(BIN)/python -m pytest -s tests/client/test_pace_e2e.py $(PYTEST_ARGS)

e2e: $(SPARK) serf  ## only the tests that start real nodes
	$(BIN)/python -m pytest -m e2e $(PYTEST_ARGS)

fuzz: $(STAMP)  ## inputs of strangers: mutated conversations (INPUTS=1000000), and each decoder by coverage for MINUTES=10 in all
	PYTHONPATH=$(FUZZED) $(BIN)/python -m attacks.fuzzing --inputs $(or $(INPUTS),100000)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check atheris || \
	  { echo "note: Atheris has no wheel for this Python: decoders are not fuzzed by coverage" >&2; exit 0; }; \
	PYTHONPATH=$(FUZZED) $(BIN)/python -m attacks.guided --minutes $(MINUTES)

celery-suite: $(STAMP)  ## Celery's own integration tests, with results in Redis and in gossipq: SUITE=t/integration/test_canvas.py
	GOSSIPQ_SUITES="$(or $(SUITE),t/integration)" $(BIN)/python -m pytest -s tests/integrations/test_celery_suite.py $(PYTEST_ARGS)

celery-kills: $(STAMP)  ## `celery worker` while one node of three is killed each minute: MINUTES=5
	GOSSIPQ_MINUTES=$(or $(filter-out 8,$(MINUTES)),5) $(BIN)/python -m pytest -s tests/integrations/test_celery_kills.py $(PYTEST_ARGS)

siege: $(STAMP)  ## all attacks at once on three nodes under honest load: MINUTES=10; NICE=19: attackers take no time from others
	GOSSIPQ_SIEGE_NICE=$(NICE) GOSSIPQ_SIEGE_MINUTES=$(MINUTES) $(BIN)/python -m pytest tests/attacks/test_siege.py -s $(PYTEST_ARGS)

chaos: $(STAMP)  ## random faults on real nodes: MINUTES=30 of 3 and 5 nodes, all features on a killed one: KILLS=20; histories in HISTORY=
	GOSSIPQ_KILLS=$(KILLS) $(BIN)/python -m pytest tests/e2e/test_semantics_kill.py --timeout 1800 $(PYTEST_ARGS)
	GOSSIPQ_HISTORY=$(HISTORY) GOSSIPQ_MINUTES=$(MINUTES) $(BIN)/python -m pytest tests/chaos -s $(PYTEST_ARGS)

chaos-hours: $(STAMP)  ## random faults until the runs of this commit add up to HOURS=3; the next call continues an ended one
	PYTHONPATH=.:nodes:clients:clients/python:clients/terminal:tests $(BIN)/python -m chaos.until $(or $(HOURS),3)

chaos-kinds: $(STAMP)  ## one kind of fault after the other, each TIMES=10 times: the longest time without a confirm; KIND=isolate
	GOSSIPQ_KIND=$(KIND) GOSSIPQ_TIMES=$(TIMES) $(BIN)/python -m pytest tests/chaos/test_kinds.py -s $(PYTEST_ARGS)

power: $(STAMP)  ## open images of a node's disk after power cuts, IMAGES=20000 for more; of three nodes at once, THREES=40
	GOSSIPQ_IMAGES=$(IMAGES) GOSSIPQ_THREES=$(THREES) $(BIN)/python -m pytest tests/power -s $(PYTEST_ARGS)

power-cuts: $(STAMP)  ## power cuts below the processes, by a file system that loses what was not synced: CUTS=50; as root
	@$(BIN)/python -c 'import mfusepy' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check mfusepy
	GOSSIPQ_CUTS=$(or $(CUTS),20) $(BIN)/python -m pytest -s tests/power/test_lazy.py $(PYTEST_ARGS)

docs: $(USED)  ## the documentation as a site, with search, in build/docs (BUILD=); it needs no network to be read
	@PYTHON=$(PYTHON) BIN=$(BIN) .ci/docs $(BUILD)

perf: $(STAMP)  ## measure against the raw loop of perf/limit.py; rows go to perf/RESULTS.md
	$(BIN)/python perf/bench.py
