#!/usr/bin/env bash
# run_pytest.sh - run one operator's benchmark (or its tests) into one run directory.
#
# USAGE    [KNOB=VALUE ...] ./run_pytest.sh OP [NODE ...]
#          [KNOB=VALUE ...] ./run_pytest.sh --check      checks the knobs, and that there is a Python with pytest, a tree
#                                                        and a device; makes nothing
#            ./run_pytest.sh abs
#            DTYPES=float16 RUN_DIR=/tmp/mm ./run_pytest.sh mm benchmark/test_mm.py::test_mm
#          OP names the operator. NODEs are pytest node ids relative to the tree; without any, those of the inventory
#          are run. Nodes are given to pytest exactly, so `add` never runs `addmm`. One operator per call: upstream's
#          set_metrics changes a list that all operators of a process share.
# INPUT    A tree (FLAGGEMS_DIR, else the sample tree), ops/inventory_REPO.csv, and the knobs below.
# OUTPUT   First line on stdout: `run directory: PATH`; then what run.log gets. In the run directory:
#            run.log      banner, everything pytest printed (free of escape codes), end banner
#            exit.json    {"schema": 1, "pytest_exit": 0}, only if pytest ended by itself
#            tests.jsonl  one line per test (plugins/_pretty_report_plugin.py)
#            session.jsonl  how far pytest got, and every table that it printed (the same)
#            autotune.json  what the tuner chose, for REPLAY_FROM (plugins/_autotune_record_plugin.py)
#            samples.jsonl  every sample of every figure, on a card (plugins/_cudagraph_plugin.py)
#            launches.json  which kernels ran, on the host device (plugins/_host_device_plugin.py)
#            index.tsv, ir/  compiled kernels, with IR_META=1 (plugins/_ir_meta_plugin.py)
#            cache/         with TUNER_CACHE=isolated; and what upstream writes into its working directory
#          run.log begins and ends so (a blank value: upstream's default):
#            ==== gemscreen begin ====            ==== gemscreen end ====
#            schema: 1                            pytest_exit: 0
#            repo: samples                        finished: 2026-11-30T06:29:31Z
#            op: abs                              seconds: 9
#            ...                                  ====
#            ====
# EXIT     pytest's own status (0 passed, 1 failed, 2 interrupted, 4 usage, 5 nothing collected; 128+N: killed by
#          signal N). Before pytest starts: 2 usage, 3 the environment was refused; no run directory is made then.
#          128+N also where this script got signal N: pytest is ended first.
# NEEDS    bash 4.4, GNU coreutils 8.24 and sed, Linux; a Python with pytest, torch, triton and flag_gems.
set -euo pipefail
export LC_ALL=C TZ=UTC STARTED=$EPOCHREALTIME
ROOT=${BASH_SOURCE[0]}
[[ $ROOT == */* ]] || ROOT=./$ROOT
ROOT=$(cd "${ROOT%/*}/" && pwd -P)

# ---- Config: every knob, from the environment or by editing this section / 配置：所有开关，可用环境变量覆盖，也可直接修改
: "${REPO:=}"              # main | vllm | samples; empty: main, or samples where there is no checkout / 代码仓；空则自动选择
: "${FLAGGEMS_DIR:=}"      # FlagGems checkout; empty: /workspace/dev/FlagGems, else the sample tree / FlagGems 源码目录
: "${FLAGGEMS_VLLM_DIR:=}" # FlagGems-vllm checkout; empty: /workspace/dev/FlagGems-vllm / FlagGems-vllm 源码目录
: "${PYTHON:=}"            # interpreter; empty: .venv/bin/python beside this script, else python3 / Python 解释器
: "${RUN_DIR:=}"           # directory to claim; empty: runs/hand-<UTC stamp>/REPO/OP / 输出目录，已存在则加 -2、-3
: "${SUITE:=benchmark}"   # benchmark | tests: the operator's benchmark, or its correctness tests / 运行基准测试或正确性测试
: "${DTYPES:=}"            # comma list, as float16,bfloat16; empty: the operator's own / 数据类型，逗号分隔；空为算子自带
: "${LEVEL:=core}"         # core | comprehensive: how many shapes / 测试级别（形状数量）
: "${MODE:=kernel}"        # kernel | operator | wrapper | cudagraph: what is timed / 计时对象
: "${SHAPES:=}"            # set of ops/shapes, or a file (yaml); empty: upstream's / 形状集名称或文件；空则用上游默认
: "${CHECK_SHAPES:=1}"     # 0: take the file unchecked (run_batch.py checks it once for all) / 0 则不检查形状文件
: "${WARMUP_MS:=}"         # warm-up per measurement; empty: upstream's 1000, on the host device 1 / 预热时长（毫秒）
: "${ITER_MS:=}"           # measuring time per measurement; empty: upstream's 100, host device 1 / 计时时长（毫秒）
: "${TIMER:=}"             # kernel mode: graph | do_bench | event; empty: graph on NVIDIA, else event / 计时器（仅 kernel 模式）
: "${CACHE:=}"             # kernel mode: cold | warm; empty: cold. Other modes: warm / L2 状态（仅 kernel 模式可选）
: "${SEED:=0}"              # of the random inputs, the same in every process; none: upstream's, which differ / 随机输入的种子；none 则不固定
: "${USE_FLAGTUNE:=0}"     # 0 plain autotuning, 1 FlagTune's exhaustive first run (hours) / 0 普通调优，1 FlagTune 全量搜索
: "${DEVICE:=}"            # label of the device for the banner; empty: asked of torch / 设备标签；空则询问 torch
: "${HOST_TARGET:=}"       # host device's target, as cuda:90; empty: only where torch sees no card / 主机模拟设备的目标
: "${HOST_MODE:=execute}"  # execute | compile (nothing is computed) / 主机设备：执行，或仅编译
: "${ATTEMPT:=1}"          # number of this attempt, for the banner / 第几次尝试
: "${FALLBACK:=}"          # subset | own: dtype fallback of this attempt, for the banner / 数据类型回退方式
: "${TUNER_CACHE:=shared}" # shared: the user's caches; isolated: own, empty ones in RUN_DIR/cache / 调优与编译缓存：共享或隔离
: "${REPLAY_FROM:=}"       # run directory whose autotuned configs are replayed / 回放的调优记录目录
: "${REPLAY_STRICT:=0}"    # 1: a launch without the record's config fails its test / 1 则未按记录启动即失败
: "${REPLAY_FORCE:=0}"     # 1: replay a record of another device, Triton or kernel source too / 1 则强制回放不匹配的记录
: "${PARALLEL_WARMUP_GPUS:=}" # N: tune on N devices (DEVICES, else the visible ones), then measure on one / 并行调优的设备数
: "${TUNE_THREADS:=}"      # that compile a tuner's configs before it times one; 1: none. Empty: 8, host device 1 / 调优前并行编译的线程数
: "${TUNE_CUTOFF:=1}"      # 0: a tuner times configs in full that cannot win, too / 0 则完整计时所有调优配置
: "${SITE_PLUGINS:=0}"     # 1 loads pytest plugins installed beside pytest (xdist, ...) / 1 则加载环境里的 pytest 插件
: "${KILL_AFTER_S:=10}"    # seconds from TERM to KILL when this script is told to stop / 收到停止信号后多久强制结束
: "${PYTEST_EXTRA:=}"      # more arguments for pytest, split at blanks / 附加的 pytest 参数，以空格分隔
# Our pytest plugins, in loading order (plugins/README.md) / 插件列表，按加载顺序
: "${PLUGINS:=_device_guard_plugin _seed_plugin _kernel_key_plugin _mthreads_guard_plugin _host_device_plugin _rlc_switch_plugin\
 _parallel_warmup_plugin _autotune_record_plugin _ir_meta_plugin _tune_cutoff_plugin _tune_compile_plugin _tune_database_plugin\
 _cudagraph_plugin _pretty_report_plugin}"
# ---- End of config / 配置结束

# shellcheck source=common/log_pipe.sh
source "$ROOT/common/log_pipe.sh"
# shellcheck source=common/check_knobs.sh
source "$ROOT/common/check_knobs.sh"

die() { # STATUS TEXT
    echo "run_pytest.sh: error: $2" >&2
    exit "$1"
}

choose_tree() { # sets REPO and TREE
    local found
    [ -z "$REPO" ] || check_choice REPO main vllm samples
    case $REPO in main) TREE=$FLAGGEMS_DIR ;; vllm) TREE=$FLAGGEMS_VLLM_DIR ;; *) TREE=$ROOT/samples/flaggems ;; esac
    # As run_batch.py gives it, it is what common.trees would say, which takes a Python's start.
    [ -z "$REPO" ] || ! is_plain_tree || return 0
    found=$(PYTHONPATH=$ROOT "$PYTHON" -m common.trees "$REPO") || exit $?
    REPO=${found%%$'\t'*} TREE=${found#*$'\t'}
}

is_plain_tree() { # TREE is REPO's, whole, absolute and without links
    [[ $TREE == /* && $TREE != *[\[:]* && ($REPO == samples || $TREE != "$ROOT/samples/flaggems") ]] &&
        [[ -f $TREE/benchmark/conftest.py && -f $TREE/benchmark/base.py ]] && [ "$(cd "$TREE" && pwd -P)" = "$TREE" ]
}

find_shapes() { # sets SHAPES to an absolute path
    [ -n "$SHAPES" ] || return 0
    if [ "$CHECK_SHAPES" = 0 ] && [ -f "$SHAPES" ]; then
        SHAPES=$(realpath -- "$SHAPES")
    else
        SHAPES=$(PYTHONPATH=$ROOT "$PYTHON" -m common.shapes "$SHAPES" "$REPO" "$TREE" "$ROOT/runs/shapes") || exit $?
    fi
}

choose_python() {
    local mend="give another: PYTHON=/path/to/python, or let \`make setup\` make one"
    if [ -z "$PYTHON" ] && [ -x "$ROOT/.venv/bin/python" ]; then PYTHON=$ROOT/.venv/bin/python; fi
    : "${PYTHON:=python3}"
    if [[ $PYTHON != /* || ! -x $PYTHON || ! -f $PYTHON ]]; then
        command -v "$PYTHON" > /dev/null || die 3 "PYTHON: $PYTHON: not found; $mend"
        PYTHON=$(command -v "$PYTHON")
        [[ $PYTHON == /* ]] || PYTHON=$PWD/$PYTHON
    fi
    [ -z "${WARM_FOLDER:-}${WARM_SERVE:-}" ] || return 0 # run_batch.py has asked with --check
    "$PYTHON" -c 'import sys, importlib.util as u; sys.exit(u.find_spec("pytest") is None)' ||
        die 3 "PYTHON: $PYTHON: has no pytest; $mend"
}

find_nodes() { # OP NODE...; sets NODES
    local op=$1 node listed kind=nodes; shift
    NODES=("$@")
    if [ ${#NODES[@]} -eq 0 ]; then
        [ "$SUITE" != tests ] || kind=tests
        listed=$(cd "$ROOT" && "$PYTHON" -m common.inventory "$kind" "$REPO" "$op") || exit $?
        [ -n "$listed" ] || die 2 "OP: $op: the inventory has no $SUITE for it; give NODEs"
        mapfile -t NODES <<< "$listed"
    fi
    for node in "${NODES[@]}"; do
        [ -f "$TREE/${node%%::*}" ] || die 2 "NODE: $node: no file $TREE/${node%%::*}; node ids are relative to the tree"
    done
}

readonly ASK_TORCH='import os, sys
try:
    import torch
except ImportError as error:
    sys.exit(f"run_pytest.sh: torch cannot be imported: {error}")
import _device_guard_plugin as guard
found = guard.find_vendor(torch, os.environ)
print(found.vendor if found else "host:0")'

choose_device() { # sets DEVICE and HOST_TARGET; asks torch only where the user said nothing
    local exports
    if [ -n "$PARALLEL_WARMUP_GPUS" ]; then # the first device measures: DEVICE, and what shows it to a process
        exports=$(cd "$ROOT" && "$PYTHON" -m common.devices warmup "$PARALLEL_WARMUP_GPUS") || exit $?
        eval "$exports"
        : "${HOST_TARGET:=}" # a real device's environment has none
    fi
    [ -z "$HOST_TARGET" ] || : "${DEVICE:=host:0}"
    : "${DEVICE:=${GEMS_VENDOR:-}}"
    if [ -z "$DEVICE" ]; then
        DEVICE=$(cd "$ROOT/plugins" && timeout -k 5 120 "$PYTHON" -c "$ASK_TORCH") ||
            die 3 "PYTHON: $PYTHON: cannot ask its torch for a device; give another, or say which: DEVICE=host:0"
        DEVICE=${DEVICE##*$'\n'}
        [ "$DEVICE" != host:0 ] || echo "run_pytest.sh: torch sees no accelerator; using the host device" >&2
    fi
    if [[ $DEVICE == host:* ]]; then : "${HOST_TARGET:=cuda:90}"; fi
    local default_warmup=1000 default_iter=100 default_threads=8
    if [ -n "$HOST_TARGET" ]; then default_warmup=1 default_iter=1 default_threads=1; fi # its tuner takes the first that fits
    : "${WARMUP_MS:=$default_warmup}" "${ITER_MS:=$default_iter}" "${TUNE_THREADS:=$default_threads}"
    check_number WARMUP_MS ITER_MS TUNE_THREADS
}

choose_timer() { # sets TIMER and CACHE for the banner; an empty TIMER is the plugin's choice, and its rows say which
    local timers=do_bench caches='cold warm'
    [[ " $PLUGINS " != *" _cudagraph_plugin "* ]] || timers='graph do_bench event'
    case $MODE in operator | wrapper) timers=wall ;; cudagraph) timers=do_bench_cudagraph ;; esac
    [ -z "$HOST_TARGET" ] || timers=host
    [[ $timers == *' '* ]] || : "${TIMER:=$timers}"
    # shellcheck disable=SC2086 # words
    [ -z "$TIMER" ] || check_choice TIMER $timers
    case $TIMER in host) caches=host ;; wall | do_bench_cudagraph) caches=warm ;; do_bench) caches=cold ;; esac
    : "${CACHE:=${caches%% *}}"
    # shellcheck disable=SC2086 # words
    check_choice CACHE $caches
}

claim_run_dir() { # makes RUN_DIR, or RUN_DIR-2, RUN_DIR-3, ... and sets it to an absolute path
    local n=1 claim now
    printf -v now '%(%Y%m%dT%H%M%SZ)T' -1
    : "${RUN_DIR:=$ROOT/runs/hand-$now/$REPO/$OP}"
    if [[ $RUN_DIR =~ ^/.+/.*[^/.]$ && ! -L $RUN_DIR && -d ${RUN_DIR%/*}/ ]]; then
        RUN_DIR=$(cd "${RUN_DIR%/*}/" && pwd -P)/${RUN_DIR##*/}
    else
        RUN_DIR=$(realpath -m -- "$RUN_DIR")
    fi
    check_cache_place RUN_DIR
    [ -d "${RUN_DIR%/*}/" ] || mkdir -p "${RUN_DIR%/*}/" || die 3 "RUN_DIR: $RUN_DIR: cannot be made; give another place"
    claim=$RUN_DIR
    until mkdir "$claim" 2>/dev/null; do # a bare mkdir is atomic: of two runs, one gets it
        [ -e "$claim" ] || die 3 "RUN_DIR: $claim: cannot be made; give another place"
        n=$((n + 1)) claim=$RUN_DIR-$n
    done
    RUN_DIR=$claim
}

isolate_caches() { # compile and tuner caches of this run alone, empty at its start
    export TRITON_CACHE_DIR=$RUN_DIR/cache/triton FLAGGEMS_CACHE_DIR=$RUN_DIR/cache/flaggems
    mkdir -p "$TRITON_CACHE_DIR" "$FLAGGEMS_CACHE_DIR"
    export FLAGGEMS_DB_URL=sqlite:///$FLAGGEMS_CACHE_DIR/tuned.db
}

find_commit() { # TREE; sets commit, and asks git only where .git does not simply hold it
    commit=''
    { read -r commit < "$1/.git/HEAD" && [[ $commit == ref:* ]] &&
        read -r commit < "$1/.git/${commit#ref: }"; } 2>/dev/null || true
    [[ $commit =~ ^[0-9a-f]{40}$ ]] || commit=$(git -c safe.directory='*' -C "$1" rev-parse HEAD 2>/dev/null) || commit=unknown
}

find_time() { printf -v now '%(%Y-%m-%dT%H:%M:%SZ)T' -1; } # sets now

write_begin() {
    local now record='' replay=''
    find_time
    [[ " $PLUGINS " != *" _pretty_report_plugin "* ]] || record=session.jsonl
    if [ -n "$REPLAY_FROM" ]; then
        [ "$REPLAY_STRICT" = 0 ] || replay=strict
        [ "$REPLAY_FORCE" = 0 ] || replay="$replay forced"
    fi
    write_log "==== gemscreen begin ====
schema: 1
repo: $REPO
op: $OP
tree: $TREE
commit: $UPSTREAM_COMMIT
suite: $SUITE
nodes: ${NODES[*]}
dtypes: $DTYPES
level: $LEVEL
mode: $MODE
timer: $TIMER
cache: $CACHE
shapes: $SHAPES
seed: $SEED
device: $DEVICE
attempt: $ATTEMPT
fallback: $FALLBACK
use_flagtune: $USE_FLAGTUNE
host_target: $HOST_TARGET
started: $now
host_mode: ${HOST_TARGET:+$HOST_MODE}
warmup_ms: $WARMUP_MS
iter_ms: $ITER_MS
tuner_cache: $TUNER_CACHE
record: $record
replay_from: $REPLAY_FROM
replay: $replay
plugins: $PLUGINS
python: $PYTHON
===="
}

write_end() {
    local now
    find_time
    write_log "==== gemscreen end ====
pytest_exit: $status
finished: $now
seconds: $SECONDS
===="
}

build_arguments() { # sets ARGS
    local item node
    ARGS=(-s -rfEs --tb=short --rootdir "$TREE" -p no:cacheprovider)
    [ ! -f "$TREE/pytest.ini" ] || ARGS+=(-c "$TREE/pytest.ini")
    for item in $PLUGINS; do ARGS+=(-p "$item"); done
    if [ "$SUITE" = benchmark ]; then add_benchmark_arguments; fi
    read -ra item <<< "$PYTEST_EXTRA"
    ARGS+=("${item[@]}")
    for node in "${NODES[@]}"; do ARGS+=("$TREE/$node"); done # bash 5.2 would expand a & of TREE in "${NODES[@]/#/$TREE/}"
}

add_benchmark_arguments() { # to ARGS: what upstream's benchmark/conftest.py understands
    local item
    # Kernel mode is upstream's default, and the option has another name on Kunlunxin.
    if [ "${GEMS_VENDOR:-}" = kunlunxin ]; then item=--fg_mode; else item=--mode; fi
    # OPTION=VALUE in one word: pytest before 9 finds the tree's conftest.py, which defines these options, only if no
    # value stands alone among the arguments.
    [ "$MODE" = kernel ] || ARGS+=("$item=$MODE")
    ARGS+=("--level=$LEVEL" "--warmup=$WARMUP_MS" "--iter=$ITER_MS")
    for item in ${DTYPES//,/ }; do ARGS+=("--dtypes=$item"); done
    [ -z "$SHAPES" ] || ARGS+=("--shape_file=$SHAPES")
}

export_environment() {
    export PYTHONPATH=$ROOT/plugins${PYTHONPATH:+:$PYTHONPATH}
    # Plugins import flag_gems before pytest reads `pythonpath` of the tree's pytest.ini.
    [ ! -d "$TREE/src" ] || PYTHONPATH=$TREE/src:$PYTHONPATH
    local commit
    find_commit "$ROOT"
    HARNESS_COMMIT=$commit
    [ "$TREE" = "$ROOT/samples/flaggems" ] || find_commit "$TREE" # the sample tree has gemscreen's commit
    UPSTREAM_COMMIT=$commit
    if [ "$UPSTREAM_COMMIT" = unknown ]; then UPSTREAM_COMMIT=${FLAGGEMS_COMMIT:-unknown}; fi
    export UPSTREAM_COMMIT HARNESS_COMMIT
    export PYTHONIOENCODING=utf-8:backslashreplace # no text of an error may end its table
    export PYTHONUNBUFFERED=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 RUN_DIR SEED USE_FLAGTUNE DEVICE HOST_MODE
    export PARALLEL_WARMUP_GPUS TUNE_CUTOFF TUNE_THREADS
    [ "$SITE_PLUGINS" = 0 ] || unset PYTEST_DISABLE_PLUGIN_AUTOLOAD
    if [ "$MODE" = kernel ] && [ "$TIMER" != host ]; then export TIMER CACHE; else export -n TIMER CACHE; fi
    # The order of a set of strings is a random input, too: generated code may follow it.
    [ "$SEED" = none ] || export PYTHONHASHSEED=${PYTHONHASHSEED:-$SEED}
    unset PYTEST_ADDOPTS PYTEST_PLUGINS # a second, unseen channel; PYTEST_EXTRA is the one
    if [ -n "$HOST_TARGET" ]; then export HOST_TARGET; else export -n HOST_TARGET; fi
    if [ -n "$REPLAY_FROM" ]; then export REPLAY_FROM REPLAY_STRICT REPLAY_FORCE; else export -n REPLAY_FROM; fi
    if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then export FORCE_COLOR=1; fi
}

await_end() { # PID: false if it still runs after KILL_AFTER_S seconds
    local ticks
    for ((ticks = KILL_AFTER_S * 50; ticks > 0; ticks--)); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.02
    done
    ! kill -0 "$1" 2>/dev/null
}

# shellcheck disable=SC2317 # called by a trap
stop() { # SIGNAL-NUMBER: end pytest, by force in the end
    caught=$1
    trap '' HUP INT TERM
    kill -TERM "$pytest_pid" 2>/dev/null || return 0
    await_end "$pytest_pid" || kill -KILL "$pytest_pid" 2>/dev/null || true
}

run_pytest() { # sets status, and caught if a signal arrived
    local trapped=1 log_failed=0 reader mark
    trap 'trapped=1 log_failed=1' USR1
    open_log
    cd "$RUN_DIR" # upstream's conftest.py writes its files to the working directory
    "$PYTHON" -I -S "$ROOT/warm/client.py" $$ "$PYTHON" -m pytest "${ARGS[@]}" >&4 2>&1 4>&- &
    pytest_pid=$!
    trap 'trapped=1; stop 1' HUP
    trap 'trapped=1; stop 2' INT
    trap 'trapped=1; stop 15' TERM
    exec 4>&-
    while [ "$trapped" -eq 1 ]; do # a trap ends `wait` before pytest has ended
        trapped=0 status=0
        wait "$pytest_pid" || status=$?
    done
    [ "$status" -ge 0 ] || status=$((128 + caught)) # bash's answer about a child that the trap saw end
    close_log || log_failed=1
    [ "$log_failed" -eq 0 ] || fail_log
}

main() {
    case ${1:-} in
        -h | --help)
            sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
            sed -nE 's|^: "\$\{([A-Z_]+):?=([^}]*)\}" *# (.*) / .*|KNOB     \1=\2  \3|p' "${BASH_SOURCE[0]}"
            exit 0 ;;
        '') die 2 "OP: missing; usage: [KNOB=VALUE ...] ./run_pytest.sh OP [NODE ...]" ;;
    esac
    OP=$1 pytest_pid='' status=0 caught=0
    [[ $OP == --check || $OP =~ ^[A-Za-z0-9_.+-]+$ ]] || die 2 "OP: $OP: is no operator's name; letters, digits and _.+- only"
    make_paths_absolute
    check_knobs
    choose_python
    choose_tree
    [ "$OP" = --check ] || find_nodes "$@"
    find_shapes
    choose_device
    choose_timer
    [ "$OP" != --check ] || exit 0
    export_environment
    build_arguments
    if [ -n "${WARM_SERVE:-}" ]; then RUN_DIR=$WARM_SERVE; else claim_run_dir; fi
    [ "$TUNER_CACHE" = shared ] || isolate_caches
    # With everything that an operator's pytest gets, become the parent of such (warm/server.py).
    [ -z "${WARM_SERVE:-}" ] || { cd "$WARM_SERVE" && exec "$PYTHON" "$ROOT/warm/server.py" "$WARM_SERVE"; }
    echo "run directory: $RUN_DIR"
    SECONDS=0
    write_begin
    run_pytest
    write_end
    [ "$caught" -eq 0 ] || exit $((128 + caught))
    if [ "$status" -le 128 ]; then
        printf '{"schema": 1, "pytest_exit": %d}\n' "$status" > "$RUN_DIR/exit.json.tmp"
        sync "$RUN_DIR/exit.json.tmp"
        mv "$RUN_DIR/exit.json.tmp" "$RUN_DIR/exit.json"
    fi
    exit "$status"
}

main "$@" # it ends in `exit`: bash reads a script as it goes, and so never reads what an edit meanwhile put here
