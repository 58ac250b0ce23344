# Each command is one line, and CI runs the same ones (.ci/run).
PORT ?= 8000
VAR ?= var
RUN := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help up test test-all test-gpu check fix css bench bench-path demo-data

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

up: ## run all of Headrace on this machine; PORT=8000, state in VAR=var; Ctrl-C stops it
	@bin/environment server && exec $(RUN) -m portal.up --port "$(PORT)" --var "$(VAR)"

test: ## the default suite on embedded servers: no Docker, no browser
	@bin/environment dev && exec $(RUN) -m pytest -q -n 2

test-all: ## that and the suites marked docker, services and browser, with what they need
	@bin/environment dev && exec bin/test-all

test-gpu: ## the suite marked gpu, on a machine with an NVIDIA GPU
	@bin/environment dev && exec $(RUN) -m pytest -q -m gpu

check: ## every check that gates a merge, quickest first
	@bin/environment dev && exec bin/check

fix: ## mend what the formatters can
	@bin/environment dev && bin/fix

css: ## build the stylesheet and vendor what pages load; needs Node, and the result is committed
	@cd frontend && npm ci --no-fund --no-audit && npm run build

bench: bench-path ## every benchmark; results in var/bench

bench-path: ## from a launch request to its lease and to a running instance
	@bin/environment dev && exec $(RUN) -m tests.bench.path

demo-data: ## a busy team, nodes and a month of history to look at pages with (needs make up)
	@bin/environment server && exec $(RUN) -m portal.up.manage "$(VAR)" demo_data
