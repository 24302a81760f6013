#!/usr/bin/env bash
# ab_test.sh - one environment switch, two values: which one is faster, and is it right with both?
#
# USAGE    SWITCH=NAME OPS=OP[,OP...] [KNOB=VALUE ...] ./ab_test.sh        (make ab SWITCH=... OPS=...)
#            SWITCH=FLAGTREE_MUSA_RLC_ENHANCE OPS=softmax,topk ROUNDS=5 ./ab_test.sh
#          The first value is the base, called `off` below, the second the candidate, `on`; SWITCH must not be set already.
#          Knobs: the config section below, and those of run_pytest.sh (DTYPES, LEVEL, MODE, SHAPES, TIMER, REPO, ...).
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
# EXIT     0 no row slower or invalid, 1 some are, 2 usage, 3 the environment was refused; 128+N after signal N: what
#          runs is ended first, and `ab_summary.py RUN` reads what there is
# LIMITS   One device. An op with R rounds costs 2 + 2R processes; ab.csv's `mde` says which effect they could show.
set -euo pipefail
export LC_ALL=C TZ=UTC
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

# ---- Config / 配置
: "${SWITCH:=}"       # name of the environment variable / 环境变量名
: "${VALUES:=0,1}"    # its two values: base,candidate / 两个取值：基准,候选
: "${OPS:=}"          # comma list of operators / 算子列表，逗号分隔
: "${ROUNDS:=2}"      # rounds; 2 is the least, 5 shows effects of a few percent / 轮数，至少 2
: "${BAND:=}"         # within this share of 1 a ratio is "same"; empty: NOISE's, else 0.02 / 视为相同的比例带宽
: "${NOISE:=}"        # noise.json of this machine (make aa): its band per timer / 本机噪声文件
: "${DEVICES:=}"      # one device; empty: the first that there is / 使用的设备（一个）
: "${RUN:=}"          # run directory / 输出目录
: "${TEST_ARGS=--quick}"  # arguments for the correctness tests / 正确性测试的附加参数
# ---- End of config / 配置结束

# shellcheck source=common/check_knobs.sh
source "$ROOT/common/check_knobs.sh"

die() { # STATUS TEXT
    echo "ab_test.sh: error: $2" >&2
    exit "$1"
}

run_python() { PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} "$PYTHON" "$@"; }

check_arguments() { # sets OFF, ON, and RUN to an absolute path
    [[ $SWITCH =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || die 2 "SWITCH: $SWITCH: is no variable's name; give one: SWITCH=NAME"
    [[ $SWITCH != USE_FLAGTUNE* ]] || die 2 "SWITCH: $SWITCH: changes what is searched for; both sides must use the same"
    ! grep -q "^: \"\${${SWITCH}[:=]" "$ROOT/run_pytest.sh" "${BASH_SOURCE[0]}" ||
        die 2 "SWITCH: $SWITCH: is a knob of run_pytest.sh or of this script; both sides must use the same"
    [[ ! $SWITCH =~ ^(PYTEST_.*|TRITON_CACHE_DIR|FLAGGEMS_(CACHE_DIR|DB_URL))$ ]] ||
        die 2 "SWITCH: $SWITCH: run_pytest.sh gives every process its own; both sides would be alike"
    [ -z "${!SWITCH+set}" ] || die 3 "$SWITCH: ${!SWITCH}: is set already and would reach both sides; unset it"
    [[ $VALUES =~ ^[^,]+,[^,]+$ ]] || die 2 "VALUES: $VALUES: give two values, neither empty, as VALUES=0,1"
    OFF=${VALUES%,*} ON=${VALUES#*,}
    [ "$OFF" != "$ON" ] || die 2 "VALUES: $VALUES: are the same; give two"
    [[ $OPS =~ ^[A-Za-z0-9_.+-]+(,[A-Za-z0-9_.+-]+)*$ ]] || die 2 "OPS: $OPS: name operators: OPS=softmax,topk"
    twice=$(tr , '\n' <<< "$OPS" | sort | uniq -d)
    [ -z "$twice" ] || die 2 "OPS: ${twice//$'\n'/,}: named twice; name each operator once"
    [[ $ROUNDS =~ ^([2-9]|[1-9][0-9]+)$ ]] || die 2 "ROUNDS: $ROUNDS: give 2 or more"
    [[ $BAND =~ ^(0?\.[0-9]*[1-9][0-9]*)?$ ]] || die 2 "BAND: $BAND: give a share, as BAND=0.02"
    [ -z "$NOISE" ] || [ -z "$BAND" ] || die 2 "BAND: $BAND: NOISE=$NOISE is set too; set one of them"
    [ -z "$NOISE" ] || [ -e "$NOISE" ] || die 2 "NOISE: $NOISE: does not exist; make one: make aa OPS=..."
    [ -z "$RUN" ] || [ ! -e "$RUN" ] || die 2 "RUN: $RUN: exists; name a new directory"
    RUN=$(realpath -m -- "${RUN:-$ROOT/runs/ab-$SWITCH-$(date +%Y%m%dT%H%M%SZ)}")
    check_cache_place RUN
}

choose_python() {
    if [ -z "${PYTHON:-}" ]; then
        PYTHON=python3
        [ ! -x "$ROOT/.venv/bin/python" ] || PYTHON=$ROOT/.venv/bin/python
    fi
    export PYTHON
}

choose_repo() { # sets REPO; every operator must be known before the first one is measured
    local op
    : "${REPO:=$(run_python -c 'import os; from common.trees import find_trees; print(next(iter(find_trees(os.environ))))')}"
    export REPO
    for op in ${OPS//,/ }; do
        (cd "$ROOT" && "$PYTHON" -m common.inventory nodes "$REPO" "$op" > /dev/null) || exit $?
    done
}

make_run() {
    mkdir -p "$(dirname "$RUN")"
    mkdir "$RUN" 2>/dev/null || die 2 "RUN: $RUN: exists or cannot be made; name a new directory"
    run_python "$ROOT/ab_summary.py" --begin "$RUN" "switch=$SWITCH" "off=$OFF" "on=$ON" "rounds=$ROUNDS" "band=$BAND" \
        "noise=${NOISE:+$(realpath -- "$NOISE")}" "ops=$OPS" "repo=$REPO" "device=$DEVICE"
}

# shellcheck disable=SC2317 # called by a trap
stop() { # SIGNAL-NUMBER: end what runs; run_pytest.sh ends its pytest
    caught=$1
    trap '' HUP INT TERM
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true
}

run_to_end() { # COMMAND...: sets status; in the background, since only `wait` lets a trap run at once
    child='' status=0
    "$@" &
    child=$!
    while :; do # a trap ends `wait` before the child has ended
        status=0
        wait "$child" || status=$?
        kill -0 "$child" 2>/dev/null || break
    done
    child=''
}

run_side() { # DIRECTORY SIDE SUITE OP [REPLAY_FROM]: one fresh process; its exit status is read from its files later
    local value=$OFF extra=${PYTEST_EXTRA:-} host_mode=${HOST_MODE:-execute}
    [ "$2" = off ] || value=$ON
    if [ "$3" = tests ]; then extra=$TEST_ARGS host_mode=execute; fi # nothing is computed in HOST_MODE=compile
    started=$((started + 1))
    echo "ab_test.sh: [$started/$planned] $4 $(basename "$1") ($SWITCH=$value)"
    run_to_end env "$SWITCH=$value" RUN_DIR="$1" SUITE="$3" REPLAY_FROM="${5:-}" TUNER_CACHE=isolated PYTEST_EXTRA="$extra" \
        HOST_MODE="$host_mode" "$ROOT/run_pytest.sh" "$4" > "$1.out" 2>&1
    if [ "$caught" -ne 0 ]; then
        rm -f "$1.out"
        echo "ab_test.sh: interrupted; $PYTHON $ROOT/ab_summary.py $RUN reads what there is" >&2
        exit $((128 + caught))
    fi
    if [ ! -e "$1/run.log" ]; then # refused before it began: so will be all others
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

main() {
    local op status=0 twice
    case ${1:-} in
        -h | --help)
            sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
            sed -nE 's|^: "\$\{([A-Z_]+):?=([^}]*)\}" *# (.*) / .*|KNOB     \1=\2  \3|p' "${BASH_SOURCE[0]}"
            exit 0 ;;
        ?*) die 2 "$1: takes no arguments; usage: SWITCH=NAME OPS=OP[,OP...] ./ab_test.sh" ;;
    esac
    check_arguments
    choose_python
    choose_repo
    # Comes back with one device locked and shown to all children, and DEVICE, its name.
    [ -n "${GEMSCREEN_HELD+set}" ] || exec "$PYTHON" "$ROOT/common/device_lock.py" "${BASH_SOURCE[0]}"
    child='' caught=0
    make_run
    trap 'stop 1' HUP
    trap 'stop 2' INT
    trap 'stop 15' TERM
    [[ $DEVICE != host:* ]] || echo "ab_test.sh: $DEVICE: the host device measures no time: every row will be invalid;" \
        "correctness, code and converts are real" >&2
    ops=${OPS//[!,]/} started=0 planned=$(((${#ops} + 1) * (2 + 2 * ROUNDS)))
    for op in ${OPS//,/ }; do run_op "$op"; done
    run_python "$ROOT/ab_summary.py" "$RUN" || status=$?
    [ "$status" -le 1 ] ||
        echo "ab_test.sh: all has been measured; with another band: BAND=0.02 $PYTHON $ROOT/ab_summary.py $RUN" >&2
    exit "$status"
}

main "$@" # it ends in `exit`: bash reads a script as it goes, and so never reads what an edit meanwhile put here
