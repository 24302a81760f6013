# Makefile - every entry point of gemscreen. `make` alone prints this help.
#
# Knobs are make variables and environment variables of the same name: `make screen OPS=abs,mm` and
# `OPS=abs,mm make screen` are the same. An unknown one on the command line is an error. V=1 shows the commands.
# Exit status of a recipe: 0 done, 1 a result is bad, 2 usage, 3 environment refused, 4 integrity (make itself
# reports any of them as 2, and prints the recipe's own: "Error 3"). Call the script where the number matters.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
Q := $(if $(V),,@)

KNOBS := BAND CACHE DEVICES DTYPES FLAGGEMS_COMMIT FLAGGEMS_DIR FLAGGEMS_VLLM_DIR FLOOR FRESH GRACE_S HOST_MODE HOST_TARGET \
         ITER_MS LEVEL MANIFEST MATCH MODE NEW NOISE OLD OPS OUT PARALLEL_WARMUP_GPUS PROCESSES PYTHON REPLAY_FORCE REPLAY_FROM REPLAY_MISSING REPLAY_ROOT \
         REPLAY_STRICT REPO RETRIES RETRY_PAUSE_S ROUNDS RUN RUNS SET SETTLE_S SHAPES SHARD SWITCH TASK TESTS TIMEOUT TIMER TIMERS \
         TREE TUNER_CACHE USE_FLAGTUNE V VALUES VENV WARMUP_MS WITH_USER
given   := $(foreach v,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(v)))),$(v)))
unknown := $(filter-out $(KNOBS),$(given))
ifneq ($(unknown),)
$(error $(unknown): no such knob; known are $(KNOBS))
endif

VENV ?= .venv
PY   := $(abspath $(VENV))/bin/python
ready := $(VENV)/.complete

.PHONY: help setup screen ab fresh-tune aa prepare campaign verify rescope campaign-status campaign-explain summarize inventory inventory-diff shapes check-ops recheck-dismissed guards doctor host-check host-matrix bench test examples clean

help:           ## this text
	@echo "gemscreen: screens of FlagGems operators"; echo
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST); echo
	@echo "knobs: $(KNOBS)" | fold -s -w 110
	@echo "README.md says what each knob does."

$(ready): setup_env.sh $(wildcard requirements/*)
	$(Q)PYTHON="$(PYTHON)" ./setup_env.sh $(VENV)

setup: $(ready)   ## make the Python environment (every other target does it by itself)

screen: $(ready)  ## measure every operator (OPS= MATCH= DTYPES= LEVEL= DEVICES= RUN= ...) and end with summary.csv
	$(Q)PYTHON=$(PY) $(PY) run_batch.py

ab: $(ready)      ## one environment switch, two values: SWITCH=NAME OPS=... [VALUES=0,1] [ROUNDS=2]
	$(Q)PYTHON=$(PY) ./ab_test.sh

aa: $(ready)      ## this machine's noise: one op, many fresh processes, all timers: OPS=... [PROCESSES=6] [TIMERS=graph,do_bench]
	$(Q)$(PY) aa_study.py

prepare: $(ready) ## freeze a campaign: MANIFEST=campaign/manifests/host_rlc.yaml
	$(Q)$(PY) campaign/prepare.py "$(MANIFEST)"

campaign: $(ready) ## run a campaign to its seal: MANIFEST=, DEVICES=; RUN= goes on with one that was killed
	$(Q)PYTHON=$(PY) $(PY) campaign/run.py

verify: $(ready)  ## check a sealed campaign, every file and every verdict: RUN=
	$(Q)$(PY) campaign/verify.py "$(or $(RUN),runs/latest-campaign)"

rescope: $(ready) ## judge a sealed campaign at another floor: RUN= [FLOOR=], without FLOOR all floors are listed
	$(Q)$(PY) campaign/rescope.py "$(or $(RUN),runs/latest-campaign)" $(if $(FLOOR),--floor $(FLOOR),--all-floors) $(if $(OUT),--out $(OUT))

campaign-status: $(ready) ## how far a campaign is: RUN= (default the newest)
	$(Q)$(PY) campaign/report.py status

campaign-explain: $(ready) ## the evidence of one verdict, and how to run its cell again: TASK= [RUN=]
	$(Q)$(PY) campaign/report.py explain

fresh-tune: $(ready) ## drop what tuners remember of screens here (DEVICES=, WITH_USER=1: the user's own too)
	$(Q)$(PY) fresh_tune.py $(if $(WITH_USER),--user)

summarize: $(ready) ## read a screen's logs again: RUN= (default runs/latest-screen), OUT= for another place
	$(Q)$(PY) batch_summary.py $(if $(RUN),$(RUN),runs/latest-screen) $(if $(OUT),--out $(OUT))

inventory: $(ready) ## rebuild ops/inventory_*.csv from a tree (TREE=, REPO=)
	$(Q)$(PY) ops/rebuild_inventory.py $(if $(REPO),--repo $(REPO)) $(if $(TREE),--tree $(TREE)) --python $(PY)
	$(Q)$(PY) ops/scan_shapes.py $(if $(REPO),--repo $(REPO)) $(if $(TREE),--tree $(TREE))

inventory-diff: $(ready) ## what changed between two trees, or an inventory and a tree: OLD=, NEW=
	$(Q)$(PY) ops/diff_inventory.py $(if $(REPO),--repo $(REPO)) $(OLD) $(NEW)

shapes: $(ready)  ## merge a set of ops/shapes over a tree's own: SET=, OUT= (SHAPES=<set> does it by itself)
	$(Q)$(PY) ops/merge_shapes.py --set "$(SET)" $(if $(TREE),--tree $(TREE)) $(if $(REPO),--repo $(REPO)) --out $(or $(OUT),runs/shapes/$(SET).yaml)

check-ops: $(ready) ## check everything in ops/ (TREE= also against a checkout)
	$(Q)$(PY) ops/check_ops.py $(if $(TREE),--tree $(TREE)) $(if $(REPO),--repo $(REPO))

recheck-dismissed: $(ready) ## run the dismissed operators and list those that pass now
	$(Q)PYTHON=$(PY) $(PY) ops/recheck_dismissed.py

guards: $(ready)  ## scan a tree for skip guards that Moore Threads may drop, as unverified pins
	$(Q)$(PY) ops/scan_guards.py $(if $(TREE),--tree $(TREE)) $(if $(REPO),--repo $(REPO))

doctor: $(ready)  ## what this machine has, and the one line that mends what lacks
	$(Q)$(PY) doctor.py

host-check: $(ready) ## prove that the host device computes (NaN-poisoned outputs, values against torch)
	$(Q)$(PY) plugins/host_device/check.py

host-matrix: $(ready) ## try other Triton and flag_gems versions on the host device; those that pass are accepted
	$(Q)$(PY) plugins/host_device/matrix.py

bench: $(ready)   ## the harness's own cost, with stubs in place of the benchmarks
	$(Q)$(PY) tests/bench_harness.py && $(PY) tests/bench_summary.py && $(PY) tests/bench_record.py

test: $(ready)    ## pass the tests (TESTS= for some of them)
	$(Q)$(PY) -m pytest -q $$($(PY) -c 'import xdist' 2>/dev/null && echo --numprocesses=2 --dist=loadfile) $(if $(TESTS),$(TESTS),tests)

examples: $(ready) ## run the narrated sessions in examples/ again
	$(Q)$(PY) examples/refresh.py

clean:          ## remove the Python environment (never runs/)
	$(Q)rm -rf $(VENV) $(VENV).lock
