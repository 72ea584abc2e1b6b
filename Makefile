# Every command is dev.py's, which needs nothing but Python 3.11+: `make demo PYTHON=python3.12 ARGS="--rows 10000"`.
PYTHON ?= python3
ARGS ?=

.PHONY: demo bench test check fuzz clean help

help:
	@$(PYTHON) dev.py --help

demo bench test check fuzz clean:
	@$(PYTHON) dev.py $@ $(ARGS)
