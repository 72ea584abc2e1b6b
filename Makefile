# Every command is dev.py's, which needs nothing but Python 3.11+: `make demo PYTHON=python3.12 ARGS="--rows 10000"`.
PYTHON ?= python3
ARGS ?=

SEEDS ?= 1000
MINUTES ?= 5

.PHONY: conformance demo bench test check faces site wheels fuzz sim sim-mutants chaos model setup clean help

help:
	@$(PYTHON) dev.py --help

demo bench test check faces site wheels fuzz model setup clean:
	@$(PYTHON) dev.py $@ $(ARGS)

sim:
	@$(PYTHON) dev.py sim --seeds $(SEEDS) $(ARGS)

chaos:
	@$(PYTHON) dev.py chaos --minutes $(MINUTES) $(ARGS)

sim-mutants:
	@$(PYTHON) dev.py sim --mutants --seeds $(SEEDS) $(ARGS)
	@$(PYTHON) dev.py raft-mutants --seeds $(SEEDS)

# Peers' own test suites against Penstock: `make conformance ARGS="nats.go --test TestKeyValueBasics"`.
conformance:
	@$(PYTHON) dev.py setup
	@.venv/bin/python -m tests.conformance $(ARGS)
