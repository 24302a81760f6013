# check_knobs.sh - whether the knobs of run_pytest.sh have values that mean something; sourced by run_pytest.sh and ab_test.sh.
#
# INPUT    the variables of its config section, ROOT
# OUTPUT   check_knobs puts DTYPES into its plain form, and makes REPLAY_FROM absolute; make_paths_absolute PYTHONPATH, and
#          the places of caches and tools
# EXIT     2 through the caller's `die`, naming the variable, its value and what is valid
# shellcheck shell=bash disable=SC2154 # the variables are the caller's

check_choice() { # VARIABLE CHOICE...
    local name=$1 choice; shift
    for choice; do [ "${!name}" != "$choice" ] || return 0; done
    die 2 "$name: ${!name}: unknown; valid are: $*"
}

check_number() { # VARIABLE...
    local name
    for name; do [[ ${!name} =~ ^[0-9]+$ ]] || die 2 "$name: ${!name}: is no whole number; give one, as $name=1"; done
}

# FlagGems puts the path into the URL of its tuner's database, where ? begins the query; common/inputs.py has the same.
check_cache_place() { # VARIABLE [MEND]
    [[ ${!1:-} != *\?* ]] ||
        die 2 "$1: ${!1}: has a \`?\`, at which the URL of FlagGems' tuner database would end; ${2:-name another place}"
}

# benchmark/conftest.py: the choices of --dtypes; common/inputs.py has the same.
readonly UPSTREAM_DTYPES='float16 float32 bfloat16 int16 int32 bool complex64'

# pytest runs in RUN_DIR; common/inputs.py has the same.
make_paths_absolute() {
    local name entry rest=${PYTHONPATH:+$PYTHONPATH:}
    for name in "${!TRITON_@}" FLAGGEMS_CACHE_DIR; do
        [[ $name != *_@(PATH|DIR|HOME) || ${!name:-/} == /* ]] || export "$name=$PWD/${!name}"
    done
    PYTHONPATH=''
    while [ -n "$rest" ]; do
        entry=${rest%%:*} rest=${rest#*:}
        [[ -z $entry || $entry == /* ]] || entry=$PWD/$entry
        [[ -z $entry || :$PYTHONPATH: == *:"$entry":* ]] || PYTHONPATH+=${PYTHONPATH:+:}$entry
    done
}

check_knobs() {
    local dtype plugin
    check_choice LEVEL core comprehensive
    check_choice MODE kernel operator wrapper cudagraph
    check_choice USE_FLAGTUNE 0 1
    check_choice SUITE benchmark tests
    check_choice TUNER_CACHE shared isolated
    check_choice REPLAY_STRICT 0 1
    check_choice REPLAY_FORCE 0 1
    check_choice HOST_MODE execute compile
    [ -z "$HOST_TARGET" ] || check_choice HOST_TARGET cuda:80 cuda:90
    check_choice FALLBACK '' subset own
    check_choice SITE_PLUGINS 0 1
    check_choice TUNE_CUTOFF 0 1
    check_number ATTEMPT KILL_AFTER_S
    check_cache_place FLAGGEMS_CACHE_DIR
    [[ $TUNER_CACHE == isolated || -n ${FLAGGEMS_CACHE_DIR:-}${FLAGGEMS_DB_URL:-} ]] || # FlagGems' own place is ~/.flaggems
        check_cache_place HOME "set FLAGGEMS_CACHE_DIR"
    [ "$SEED" = none ] || [[ $SEED =~ ^[0-9]{1,9}$ ]] ||
        die 2 "SEED: $SEED: is no whole number of at most 9 digits; give one, as SEED=0, or SEED=none"
    DTYPES=${DTYPES//[[:space:]]/}
    for dtype in ${DTYPES//,/ }; do
        [[ " $UPSTREAM_DTYPES " == *" $dtype "* ]] ||
            die 2 "DTYPES: $dtype: upstream's benchmarks do not know it; valid are: $UPSTREAM_DTYPES, as a comma list"
    done
    check_choice CHECK_SHAPES 0 1
    if [ -n "$REPLAY_FROM" ]; then
        [ -e "$REPLAY_FROM" ] || die 2 "REPLAY_FROM: $REPLAY_FROM: does not exist; name a recorded run directory, or unset it"
        REPLAY_FROM=$(realpath -- "$REPLAY_FROM")
    fi
    [ "$REPLAY_STRICT" = 0 ] || [[ " $PLUGINS " == *" _autotune_record_plugin "* ]] ||
        die 2 "PLUGINS: lacks _autotune_record_plugin, without which nothing is replayed; add it, or unset REPLAY_STRICT"
    for plugin in $PLUGINS; do
        [ -f "$ROOT/plugins/$plugin.py" ] ||
            die 2 "PLUGINS: $plugin: no plugins/$plugin.py; there are: $(cd "$ROOT/plugins" && echo _*_plugin.py)"
    done
}
