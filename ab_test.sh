#!/usr/bin/env bash
# ab_test.sh - one environment switch, two values: which one is faster, and is it right with both?
#
# USAGE    SWITCH=NAME OPS=OP[,OP...] [KNOB=VALUE ...] ./ab_test.sh        (make ab SWITCH=... OPS=...)
#            SWITCH=FLAGTREE_MUSA_RLC_ENHANCE OPS=softmax,topk ROUNDS=5 ./ab_test.sh
#          The first value is the base, called `off` below, the second the candidate, `on`. Knobs: the config section
#          below, and those of run_pytest.sh (DTYPES, LEVEL, MODE, SHAPES, TIMER, FLAGGEMS_DIR, REPO, ...).
# WHAT     Per operator: its correctness tests with both values; then ROUNDS rounds in mirrored order,
#            round 1: off (records its autotuned configs), on (replays them)
#            round 2: on, off (both replay)      round 3: off, on      ...
#          so that the switch is the only variable. Every process is fresh and has compile and tuner caches of its own,
#          which also tells whether the two sides executed the same code. Two runs that tune by themselves are not
#          comparable: on an H200, tuning alone moved layer_norm by 60 % between two runs of one compiler.
# OUTPUT   RUN (default runs/ab-<SWITCH>-<UTC stamp>)/
#            ab.json                          what was asked for
#            <repo>/<op>/tests-<side>/        correctness: run.log
#            <repo>/<op>/round-<n>-<side>/    run.log, autotune.json, cache/ (compiled kernels)
#            ab.csv, and the same as a table on stdout (ab_summary.py says what the verdicts mean)
# EXIT     0 no row slower or invalid, 1 some are, 2 usage, 3 the environment was refused
# LIMITS   One device. An op with R rounds costs 2 + 2R processes; ab.csv's `mde` says which effect they could show.
set -euo pipefail
export LC_ALL=C TZ=UTC
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

# ---- Config / 配置
: "${SWITCH:=}"       # name of the environment variable / 环境变量名
: "${VALUES:=0,1}"    # its two values: base,candidate / 两个取值：基准,候选
: "${OPS:=}"          # comma list of operators / 算子列表，逗号分隔
: "${ROUNDS:=2}"      # rounds; 2 is the least, 5 shows effects of a few percent / 轮数，至少 2
: "${BAND:=0.02}"     # within this share of 1 a ratio is "same" / 视为相同的比例带宽
: "${DEVICES:=}"      # one device; empty: the first that there is / 使用的设备（一个）
: "${RUN:=}"          # run directory / 输出目录
: "${TEST_ARGS:=--quick}"  # arguments for the correctness tests / 正确性测试的附加参数
# ---- End of config / 配置结束

die() { # STATUS TEXT
    echo "ab_test.sh: error: $2" >&2
    exit "$1"
}

check_arguments() { # sets OFF and ON
    [[ $SWITCH =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || die 2 "SWITCH: $SWITCH: is no variable's name; give one: SWITCH=NAME"
    [ "$SWITCH" != USE_FLAGTUNE ] || die 2 "SWITCH: USE_FLAGTUNE: changes what is searched for; both sides must use the same"
    [ -z "${!SWITCH+set}" ] || die 3 "$SWITCH: ${!SWITCH}: is set already and would reach both sides; unset it"
    [[ $VALUES =~ ^[^,]+,[^,]+$ ]] || die 2 "VALUES: $VALUES: give two values, as VALUES=0,1"
    OFF=${VALUES%,*} ON=${VALUES#*,}
    [ "$OFF" != "$ON" ] || die 2 "VALUES: $VALUES: are the same; give two"
    [ -n "$OPS" ] || die 2 "OPS: empty; name operators: OPS=softmax,topk"
    [[ $ROUNDS =~ ^([2-9]|[1-9][0-9]+)$ ]] || die 2 "ROUNDS: $ROUNDS: give 2 or more"
    [[ $BAND =~ ^0?\.[0-9]+$ ]] || die 2 "BAND: $BAND: give a share, as BAND=0.02"
}

choose_python() {
    if [ -z "${PYTHON:-}" ]; then
        PYTHON=python3
        [ ! -x "$ROOT/.venv/bin/python" ] || PYTHON=$ROOT/.venv/bin/python
    fi
    export PYTHON
}

run_side() { # DIRECTORY SIDE SUITE OP [REPLAY_FROM]: one fresh process; its exit status is read from its files later
    local value=$OFF
    [ "$2" = off ] || value=$ON
    echo "ab_test.sh: $4 $(basename "$1") ($SWITCH=$value)"
    local extra=${PYTEST_EXTRA:-}
    [ "$3" = benchmark ] || extra=$TEST_ARGS
    env "$SWITCH=$value" RUN_DIR="$1" SUITE="$3" REPLAY_FROM="${5:-}" TUNER_CACHE=isolated PYTEST_EXTRA="$extra" \
        "$ROOT/run_pytest.sh" "$4" > "$1.out" 2>&1 || status=$?
    if [ "${status:-0}" -eq 2 ] || [ "${status:-0}" -eq 3 ] && [ ! -e "$1/exit.json" ]; then
        cat "$1.out" >&2
        exit "$status"
    fi
    rm -f "$1.out"
}

run_op() { # OP
    local folder=$RUN/$REPO/$1 round side
    mkdir -p "$folder"
    for side in off on; do run_side "$folder/tests-$side" "$side" tests "$1"; done
    run_side "$folder/round-1-off" off benchmark "$1"
    run_side "$folder/round-1-on" on benchmark "$1" "$folder/round-1-off"
    for ((round = 2; round <= ROUNDS; round++)); do
        for side in $( ((round % 2)) && echo off on || echo on off); do
            run_side "$folder/round-$round-$side" "$side" benchmark "$1" "$folder/round-1-off"
        done
    done
}

case ${1:-} in
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    ?*) die 2 "$1: takes no arguments; usage: SWITCH=NAME OPS=OP[,OP...] ./ab_test.sh" ;;
esac
check_arguments
choose_python
cd "$ROOT"
exports=$("$PYTHON" -m common.devices one) || exit $?
DEVICE=
eval "$exports" # the variables that show the children one device, and DEVICE, its name
: "${REPO:=$("$PYTHON" -m common.trees | cut -f 1)}"
export REPO
: "${RUN:=runs/ab-$SWITCH-$(date +%Y%m%dT%H%M%SZ)}"
mkdir -p "$(dirname "$RUN")"
mkdir "$RUN" 2>/dev/null || die 2 "RUN: $RUN: exists or cannot be made; name a new directory"
RUN=$(cd "$RUN" && pwd -P)
"$PYTHON" ab_summary.py --begin "$RUN" "switch=$SWITCH" "off=$OFF" "on=$ON" "rounds=$ROUNDS" "band=$BAND" "ops=$OPS" \
    "repo=$REPO" "device=$DEVICE"
for op in ${OPS//,/ }; do run_op "$op"; done
exec "$PYTHON" ab_summary.py "$RUN"
