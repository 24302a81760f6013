#!/usr/bin/env bash
# setup_env.sh - make the Python environment that everything runs in, once. `make` calls it by itself.
#
# USAGE    setup_env.sh [VENV]            (default .venv beside this script)
# INPUT    requirements/*.txt
#          PYTHON   the Python to build on; default: the first of python3 python3.12 python3.11 python3.10 that fits
#          pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, ...) are honoured
# OUTPUT   VENV/, and VENV/.complete, written last: it names what was built. Without it, or with another one than
#          this call would write, VENV is built again from nothing: a killed pip is never taken for a finished one.
# TWO KINDS
#   host   The calling Python sees no accelerator: an environment of its own, everything pinned.
#   vendor The calling Python has a torch that sees one: a --system-site-packages environment that gets only what
#          lacks. Nothing that the image brought is replaced: pip is held to the versions that it found.
#          requirements/test.txt comes along for `host` only: a vendor image can test without it, slower.
# LIMITS   Python 3.10 to 3.12. About 2 GB of disk for `host`. Where the index serves a CUDA build of torch, that is
#          several GB more: let PIP_EXTRA_INDEX_URL name an index with CPU builds to avoid it.
# EXIT     0 done, 2 a bad PYTHON, 3 the environment cannot be made
set -euo pipefail
export LC_ALL=C PIP_DISABLE_PIP_VERSION_CHECK=1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${1:-$root/.venv}
req=$root/requirements

fail() { echo "setup_env.sh: error: $2" >&2; exit "$1"; }

fits() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        fits "$PYTHON" || fail 2 "PYTHON: $PYTHON: is no Python 3.10 to 3.12; name one, as in PYTHON=python3.11"
        command -v "$PYTHON"
        return
    fi
    for python in python3 python3.12 python3.11 python3.10; do
        if fits "$python"; then command -v "$python"; return; fi
    done
    fail 3 "python3: no Python 3.10 to 3.12 on PATH; install one, or name it: PYTHON=/path/to/python3.11"
}

# A torch that is not there, or broken, or whose accelerator does not answer in time, sees none.
sees_accelerator() {
    (cd "$root" && "$1" -c 'import os, sys
from common import devices
sys.exit(devices.ask_count(sys.executable, os.environ)["count"] == 0)') 2>/dev/null
}

pip_install() { "$venv/bin/python" -m pip install --quiet "$@" 2> >(grep -v 'is ignored: it is neither' >&2); }

build_host() {
    "$python" -m venv --clear "$venv" ||
        fail 3 "$python: cannot make a virtual environment; on Debian: apt-get install python3-venv"
    echo "setup_env.sh: installing torch, triton, flag_gems and the rest into $venv (a minute or two)"
    pip_install -r "$req/torch.txt" -c "$req/core.txt" && pip_install -r "$req/core.txt" -r "$req/test.txt" &&
        pip_install --no-deps -r "$req/host.txt"
}

build_vendor() {
    # pip is only needed where something lacks, and then the image's own does too.
    "$python" -m venv --clear --system-site-packages "$venv" 2>/dev/null ||
        "$python" -m venv --clear --system-site-packages --without-pip "$venv" ||
        fail 3 "$python: cannot make a virtual environment"
    # Where the image's Python is a virtual environment itself, system-site-packages would mean the Python below it.
    "$python" -c 'import site, sys
if sys.prefix != sys.base_prefix:
    print(*site.getsitepackages(), sep="\n")' > "$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/calling_python.pth"
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

python=$(find_python)
if sees_accelerator "$python"; then kind=vendor; else kind=host; fi
inputs=$(cat "$req"/*.txt "${BASH_SOURCE[0]}" | sha256sum | cut -d' ' -f1)
want="schema=1 kind=$kind python=$("$python" -c 'import sys; print(sys.executable, sys.version.split()[0])') inputs=$inputs"

exec 9> "$venv.lock"   # two makes at once: the second waits, then finds the work done
flock 9
if [ "$(cat "$venv/.complete" 2>/dev/null)" = "$want" ]; then
    touch "$venv/.complete"
    exit 0
fi
rm -f "$venv/.complete"
"build_$kind" || fail 3 "$venv: not built; mend what is said above and call make again, it starts anew"
printf '%s\n' "$want" > "$venv/.complete.tmp"
mv "$venv/.complete.tmp" "$venv/.complete"
echo "setup_env.sh: $venv is ready ($kind)"
