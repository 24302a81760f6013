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

KNOBS := BAND BUDGET CACHE COLLECT COMPILE_AHEAD DEVICES DTYPES ENGINE FLAGGEMS_COMMIT FLAGGEMS_DIR FLAGGEMS_VLLM_DIR FLOOR FRESH GRACE_S \
         HOST_MODE HOST_TARGET ITER_MS KILL_AFTER_S LEVEL MANIFEST MATCH MODE NEW NOISE OLD OPS OUT PARALLEL_WARMUP_GPUS PLUGINS \
         PROCESSES PYTEST_EXTRA PYTHON RAY_ADDRESS REPLAY_FORCE REPLAY_FROM REPLAY_MISSING REPLAY_ROOT REPLAY_STRICT REPO RETRIES RETRY_FAILED \
         RETRY_PAUSE_S ROUNDS RUN RUNS SEED SET SETTLE_S SHAPES SHARD SHARD_INDEX SITE_PLUGINS SUITE SWITCH TASK TESTS TEST_ARGS TIMEOUT \
         TIMER TIMERS TREE TUNER_CACHE TUNE_CUTOFF TUNE_THREADS USE_FLAGTUNE V VALUES VENV WARM WARMUP_MS WITH_USER
given   := $(foreach v,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(v)))),$(v)))
unknown := $(filter-out $(KNOBS),$(given))
ifneq ($(unknown),)
$(error $(unknown): no such knob; known are $(KNOBS))
endif
# A value is what was typed: without this, make would take the `$$` of MATCH='^add$$' for a reference of its own. Recipes
# read values in the shell ("$$RUN"), so that blanks and quotes stay what they are.
$(foreach v,$(KNOBS),$(if $(filter command environment,$(firstword $(origin $(v)))),$(eval override export $(v) := $$(value $(v)))))

export VENV ?= .venv
export PY   := $(if $(filter /%,$(VENV)),,$(CURDIR)/)$(VENV)/bin/python
Q   := $(if $(V),,@)
run := $(Q)PYTHON="$$PY" "$$PY"
latest := "$${RUNS:-runs}/latest-screen"
repo := $(if $(REPO),--repo "$$REPO")
tree := $(if $(TREE),--tree "$$TREE")
need = $(if $($(1)),,@echo "make: $(1): missing; $(2)" >&2; exit 2)

.PHONY: help setup screen compare ab fresh-tune aa prepare campaign verify rescope campaign-status campaign-explain summarize inventory \
        inventory-diff shapes check-ops recheck-dismissed guards doctor host-check host-matrix bench test examples clean

help:           ## this text
	@echo "gemscreen: screens of FlagGems operators. First: make screen"
	@awk -F':.*## ' '/^##@ /{print "\n" substr($$0, 5)} /^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' Makefile
	@echo; echo "Knobs (NAME=value before or after make; README.md says what each does):"
	@fold -s -w 108 <<< "$(KNOBS)" | sed 's/^/  /'

.DEFAULT:
	@echo "make: $@: no such target; \`make\` alone lists them" >&2; exit 2

##@ Screens
screen: setup   ## measure every operator (OPS= MATCH= DTYPES= LEVEL= DEVICES= RUN= ...) and end with summary.csv
	$(run) run_batch.py

summarize: setup ## read a screen's logs again: RUN= (default the newest), OUT= for another place
	$(run) batch_summary.py $(if $(RUN),"$$RUN",$(latest)) $(if $(OUT),--out "$$OUT")

compare: setup  ## what is worse in one screen than in another: OLD=, NEW= (default the newest) [BAND=] [NOISE=] [OUT=]
	$(call need,OLD,give an earlier screen: OLD=runs/2026-11-29 NEW=runs/2026-11-30)
	$(run) compare_screens.py -- "$$OLD" $(if $(NEW),"$$NEW",$(latest))

fresh-tune: setup ## drop what tuners remember of screens here (DEVICES=, WITH_USER=1: the user's own too)
	$(if $(filter-out 0 1,$(WITH_USER)),@echo "make: WITH_USER: is 0 or 1" >&2; exit 2)
	$(run) fresh_tune.py $(if $(filter-out 0,$(WITH_USER)),--user)

##@ One switch, two values
ab: setup       ## one environment switch, two values: SWITCH=NAME OPS=... [VALUES=0,1] [ROUNDS=2]
	$(Q)PYTHON="$$PY" ./ab_test.sh

aa: setup       ## this machine's noise: one op, many fresh processes, all timers: OPS=... [PROCESSES=6] [TIMERS=graph,do_bench]
	$(run) aa_study.py

##@ Campaigns
prepare: setup  ## freeze a campaign: MANIFEST=campaign/manifests/host_rlc.yaml
	$(run) campaign/prepare.py

campaign: setup ## run a campaign to its seal: MANIFEST=, DEVICES=; RUN= goes on with one that was killed
	$(run) campaign/run.py

campaign-status: setup ## how far a campaign is: RUN= (default the newest)
	$(run) campaign/report.py status

campaign-explain: setup ## the evidence of one verdict, and how to run its cell again: TASK= [RUN=]
	$(run) campaign/report.py explain

verify: setup   ## check a sealed campaign, every file and every verdict: RUN=
	$(run) campaign/verify.py $(if $(RUN),"$$RUN",runs/latest-campaign)

rescope: setup  ## judge a sealed campaign at another floor: RUN= [FLOOR=], without FLOOR all floors are listed
	$(run) campaign/rescope.py $(if $(RUN),"$$RUN",runs/latest-campaign) $(if $(FLOOR),--floor "$$FLOOR",--all-floors) \
	    $(if $(OUT),--out "$$OUT")

##@ What ops/ holds
inventory: setup ## rebuild ops/inventory_*.csv and shape_uses.csv from a tree (TREE=, REPO=, COLLECT=auto|yes|no)
	$(run) ops/rebuild_inventory.py $(repo) $(tree) $(if $(COLLECT),--collect "$$COLLECT") --python "$$PY"
	$(run) ops/scan_shapes.py $(repo) $(tree)

inventory-diff: setup ## what changed between two trees, or an inventory and a tree: OLD=, NEW=
	$(call need,OLD,give a checkout or an inventory: OLD=ops/inventory_main.csv NEW=/path/to/FlagGems)
	$(call need,NEW,give a checkout or an inventory: OLD=ops/inventory_main.csv NEW=/path/to/FlagGems)
	$(run) ops/diff_inventory.py $(repo) -- "$$OLD" "$$NEW"

shapes: setup   ## merge a set of ops/shapes over a tree's own: SET=, OUT= (SHAPES=<set> does it by itself)
	$(call need,SET,give a set of ops/shapes: SET=core)
	$(run) ops/merge_shapes.py --set "$$SET" $(tree) $(repo) \
	    --out $(if $(OUT),"$$OUT","runs/shapes/$$SET.yaml")

check-ops: setup ## check everything in ops/ (TREE= also against a checkout)
	$(run) ops/check_ops.py $(tree) $(repo)

recheck-dismissed: setup ## run the dismissed operators and list those that pass now
	$(run) ops/recheck_dismissed.py

guards: setup   ## scan a tree for skip guards that Moore Threads may drop, as unverified pins
	$(run) ops/scan_guards.py $(tree) $(repo)

##@ This machine
doctor: setup   ## what this machine has, and the one line that mends what lacks
	$(run) doctor.py

setup:          ## make the Python environment (every other target does it by itself)
	$(Q)./setup_env.sh "$$VENV"

host-check: setup ## prove that the host device computes (NaN-poisoned outputs, values against torch)
	$(run) plugins/host_device/check.py

host-matrix: setup ## try other Triton and flag_gems versions on the host device; those that pass are accepted
	$(run) plugins/host_device/matrix.py

clean:          ## remove the Python environment (never runs/)
	$(Q)./setup_env.sh --clean "$$VENV"

##@ gemscreen itself
test: setup     ## pass the tests (TESTS= for some of them)
	$(Q)"$$PY" -c 'import sys, importlib.util as u; sys.exit(not u.find_spec("ray"))' || ! grep -qs '^kind=host' "$$VENV/.complete" || \
	    "$$PY" -m pip install --quiet --retries 0 -r requirements/ray.txt -c requirements/core.txt 2>/dev/null || \
	    echo "make: ray cannot be installed: tests/test_ray_engine.py is skipped"
	$(run) -m pytest -q $$("$$PY" -c 'import xdist' 2>/dev/null && echo --numprocesses=2 --dist=loadfile --no-loadscope-reorder) $${TESTS:-tests}

bench: setup    ## the harness's own cost, with stubs in place of the benchmarks
	$(run) tests/bench_harness.py
	$(run) tests/bench_summary.py
	$(run) tests/bench_warm.py
	$(run) tests/bench_record.py
	$(run) tests/bench_sharding.py
	$(run) tests/bench_tune.py

examples: setup ## run the narrated sessions in examples/ again
	$(run) examples/refresh.py
