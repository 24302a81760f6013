#!/usr/bin/env bash
# setup_env.sh - make the Python environment that everything runs in, once. `make` calls it before every target.
#
# USAGE    setup_env.sh [VENV]            (default .venv beside this script)
#          setup_env.sh --clean [VENV]    remove it
# INPUT    requirements/*.txt
#          PYTHON   the Python to build on; default: the first of python3 python3.12 python3.11 python3.10 that fits
#          pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, ...) are honoured
# OUTPUT   VENV/, and VENV/.complete, written last: what was built, from what. A killed pip is never taken for a finished
#          one.
# AGAIN    A finished VENV stays (0.1 s) unless: a requirements file changed; PYTHON is given and is another one than VENV was
#          made with; the calling Python is another one and sees an accelerator. The reason is said. VENV's own Python
#          (activated) stands for the one that it was made with. After a new driver or a new torch: make clean setup.
#          A VENV from which a process runs is neither built again nor removed (exit 3 names the process). If the new
#          one cannot be built, the old one is put back.
# TWO KINDS
#   host   The calling Python sees no accelerator: an environment of its own, everything pinned.
#   vendor The calling Python has a torch that sees one: a --system-site-packages environment that gets only what
#          lacks. Nothing that the image brought is replaced: pip is held to the versions that it found.
#          requirements/test.txt comes along for `host` only: a vendor image can test without it, slower.
# LIMITS   Python 3.10 to 3.12. About 2 GB of disk for `host`. Where the index serves a CUDA build of torch, that is
#          several GB more: let PIP_EXTRA_INDEX_URL name an index with CPU builds to avoid it. Processes of other containers
#          and hosts are not seen.
# EXIT     0 done, 2 a bad PYTHON or VENV, 3 the environment cannot be made, or is in use
set -euo pipefail
export LC_ALL=C PIP_DISABLE_PIP_VERSION_CHECK=1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
req=$root/requirements
readonly SCHEMA=2 # of .complete: another one means another way of building

fail() { echo "setup_env.sh: error: $2" >&2; exit "$1"; }

# ---- the calling Python

describe_python() { # PYTHON: sets python, prefix, base, program (the base's), version and torch; false if it does not fit
    local facts
    facts=$("$1" -c 'import importlib.util, os, sys
if not (3, 10) <= sys.version_info[:2] <= (3, 12):
    sys.exit(1)
print(sys.executable, *map(os.path.realpath, (sys.prefix, sys.base_prefix, sys._base_executable)), sys.version.split()[0],
      "torch" if importlib.util.find_spec("torch") else "none", sep="\n")' 2>/dev/null) || return 1
    { read -r python; read -r prefix; read -r base; read -r program; read -r version; read -r torch; } <<< "$facts"
}

find_python() { # describes the calling Python, or in place of VENV's own the one that VENV was made with
    local names=(python3 python3.12 python3.11 python3.10) name
    [ -z "${PYTHON:-}" ] || names=("$PYTHON")
    for name in "${names[@]}"; do
        describe_python "$name" || continue
        [ "$prefix" != "$venv" ] || describe_python "${was[python]:-$program}" || describe_python "$program"
        return
    done
    [ -z "${PYTHON:-}" ] || fail 2 "PYTHON: $PYTHON: is no Python 3.10 to 3.12; name one, as in PYTHON=python3.11"
    fail 3 "python3: no Python 3.10 to 3.12 on PATH; install one, or name it: PYTHON=/path/to/python3.11"
}

# A torch that is not there, or broken, or whose accelerator does not answer in time, sees none.
sees_accelerator() {
    [ "$torch" = torch ] && (cd "$root" && "$python" -c 'import os, sys
from common import ask_torch
sys.exit(ask_torch.ask_count(sys.executable, os.environ)["count"] == 0)') 2>/dev/null
}

# ---- what there is

read_marker() { # sets was, from lines KEY=VALUE
    local key value
    was=()
    [ -f "$venv/.complete" ] || return 0
    while IFS='=' read -r key value; do [ -z "$key" ] || was[$key]=$value; done < "$venv/.complete"
}

digest_requirements() { # HOST|VENDOR: a line FILE=DIGEST for each file that such an environment is built from
    local files=(core.txt host.txt)
    [ "$1" = vendor ] || files+=(test.txt torch.txt)
    (cd "$req" && sha256sum "${files[@]}" | sed -E 's/^([0-9a-f]+) +(.*)/\2=\1/')
}

find_reason() { # sets reason: why VENV must be built; empty if it can stay
    local line key=prefix
    reason=''
    if [ -z "${was[schema]:-}" ]; then reason='there is no finished one'; return; fi
    if [ "${was[schema]}" != $SCHEMA ]; then reason='made by another setup_env.sh'; return; fi
    if [ ! -x "$venv/bin/python" ]; then reason="its Python has gone: ${was[python]}"; return; fi
    while read -r line; do
        [ "${was[${line%%=*}]:-}" = "${line#*=}" ] || reason="requirements/${line%%=*} changed since"
    done <<< "$(digest_requirements "${was[kind]}")"
    [ -z "$reason" ] || return 0
    [ "${was[kind]}" = vendor ] || key=base # what a virtual environment has of its own does not reach `host`
    if [ -n "${PYTHON:-}" ] && [ "${was[$key]} ${was[version]}" != "${!key} $version" ]; then
        reason="made with another Python: ${was[python]} (${was[version]}), now $python ($version)"
    elif [ "$prefix" != "${was[prefix]}" ] && sees_accelerator; then
        reason="made with ${was[python]}, and now $python sees an accelerator"
    fi
}

refuse_users() { # WHY: exit 3 if a process runs from VENV
    local file first command
    for file in /proc/[0-9]*/cmdline; do
        { IFS= read -r -d '' first < "$file"; } 2>/dev/null || continue
        [[ $first == */bin/python* ]] || continue
        [[ $first == /* ]] || first=$(readlink "${file%/cmdline}/cwd")/$first # a name is relative to where its process is
        [ "$(realpath -m -- "${first%/bin/*}")" = "$venv" ] || continue
        file=${file%/cmdline}
        command=$(tr '\0' ' ' < "$file/cmdline" 2>/dev/null | head -c 100) || true
        fail 3 "$venv: $1, but process ${file#/proc/} runs from it ($command); wait for it, or end it"
    done
}

refuse_other_folder() { # exit 2 if VENV holds something else: it is going to be removed
    [ ! -e "$venv" ] || [ -e "$venv/pyvenv.cfg" ] || [ -z "$(ls -A "$venv")" ] ||
        fail 2 "VENV: $venv: is no virtual environment; name another place"
}

# ---- building

pip_install() { "$venv/bin/python" -m pip install --quiet "$@" 2> >(grep -v 'is ignored: it is neither' >&2); }

build_host() {
    "$python" -m venv "$venv" ||
        fail 3 "$python: cannot make a virtual environment; on Debian: apt-get install python3-venv"
    echo "setup_env.sh: installing torch, triton, flag_gems and the rest into $venv (a minute or two)"
    pip_install -r "$req/torch.txt" -c "$req/core.txt" && pip_install -r "$req/core.txt" -r "$req/test.txt" &&
        pip_install --no-deps -r "$req/host.txt"
}

build_vendor() {
    # pip is only needed where something lacks, and then the image's own does too.
    "$python" -m venv --system-site-packages "$venv" 2>/dev/null ||
        "$python" -m venv --clear --system-site-packages --without-pip "$venv" ||
        fail 3 "$python: cannot make a virtual environment"
    local packages; packages=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
    # Where the image's Python is a virtual environment itself, system-site-packages would mean the Python below it.
    "$python" -c 'import site, sys
if sys.prefix != sys.base_prefix:
    print(*site.getsitepackages(), sep="\n")' > "$packages/calling_python.pth"
    local held; held=$(mktemp)
    # shellcheck disable=SC2064
    trap "rm -f '$held'" RETURN
    "$venv/bin/python" "$req/find_lacking.py" --installed > "$held"
    mapfile -t lacking < <("$venv/bin/python" "$req/find_lacking.py" "$req/core.txt")
    if [ ${#lacking[@]} -gt 0 ]; then
        echo "setup_env.sh: installing what lacks beside $python: ${lacking[*]}"
        pip_install -c "$held" "${lacking[@]%%==*}" || fail 3 "pip: could not install ${lacking[*]}; see above"
    fi
    mapfile -t lacking < <("$venv/bin/python" "$req/find_lacking.py" "$req/host.txt")
    if [ ${#lacking[@]} -gt 0 ]; then
        echo "setup_env.sh: installing ${lacking[*]} (without dependencies)"
        pip_install --no-deps "${lacking[@]}" ||
            echo "setup_env.sh: warning: ${lacking[*]}: not installed; the sample tree needs them" >&2
    fi
}

build() { # VENV anew; an old one is kept beside it until then
    if sees_accelerator; then kind=vendor; else kind=host; fi
    if [ -d "$venv.old" ]; then rm -rf "$venv"; elif [ -e "$venv" ]; then mv "$venv" "$venv.old"; fi
    if ! ("build_$kind"); then
        [ ! -d "$venv.old" ] || { rm -rf "$venv"; mv "$venv.old" "$venv"; }
        fail 3 "$venv: not built; mend what is said above and call make again, it starts anew"
    fi
    printf '%s\n' "schema=$SCHEMA" "kind=$kind" "python=$python" "prefix=$prefix" "base=$base" "version=$version" \
        "$(digest_requirements $kind)" > "$venv/.complete.tmp"
    mv "$venv/.complete.tmp" "$venv/.complete"
    rm -rf "$venv.old"
    echo "setup_env.sh: $venv is ready ($kind)"
}

main() {
    local clean=''
    declare -gA was
    case ${1:-} in
        -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        --clean) clean=1; shift ;;
    esac
    if [ $# -gt 1 ] || [[ ${1:-} == -* ]]; then fail 2 "$*: unknown; usage: setup_env.sh [--clean] [VENV]"; fi
    venv=$(realpath -m -- "${1:-$root/.venv}") # two names of one place are one, for the lock as well
    if [ -z "$clean" ]; then
        read_marker
        find_python
        find_reason
        [ -n "$reason" ] || exit 0
    fi
    refuse_other_folder
    mkdir -p "$(dirname "$venv")"
    exec 9> "$venv.lock" # two makes at once: the second waits, then finds the work done
    flock 9
    if [ -n "$clean" ]; then
        refuse_users "is to be removed"
        rm -rf "$venv" "$venv.old"
        exit 0
    fi
    read_marker
    find_reason
    [ -n "$reason" ] || exit 0
    refuse_users "is to be built again ($reason)"
    [ ! -e "$venv" ] || echo "setup_env.sh: building $venv again: $reason"
    build
}

main "$@"; exit # bash reads a script as it goes, and so never reads what an edit meanwhile put here
