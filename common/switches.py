"""The caller's variables that change a compiler or a library: which they are, and how they are shown.

A screen takes them for an input and keeps them in screen.json; a campaign has them in campaign.json and its receipt, and goes on
only with the same. What is recorded is the whole value; of a secret its digest, of bytes that are no UTF-8 their escapes.

Requirements: the standard library.
"""

import re
import shlex

from common.state import sha256_text

# FlagGems reads FLA_*, FLAGTUNE_*, FLAG_GEMS_* and GDN_*; its backends or their compilers ENFLAME_*, KLX_*, TRITONXPU_*, XMLIR_*.
PREFIXES = ("TRITON_", "FLAGTREE_", "FLAGGEMS_", "FLAG_GEMS_", "FLAGTUNE_", "FLA_", "GDN_", "GEMS_", "RLC_", "MLIR_", "LLVM_",
            "AMDGCN_", "NVPTX_", "PTXAS_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "CUBLAS_", "ENFLAME_", "KLX_", "TRITONXPU_",
            "XMLIR_")
# Of Triton 3.6's those without such a prefix, what FlagGems reads (ARCH chooses its configs), and what other libraries read.
# No prefix MUSA_ or XPU_: DEVICES' own *_VISIBLE_DEVICES have it.
NAMES = ("ALLOW_LHS_TMEM_LAYOUT_CONVERSION", "DISABLE_LLVM_OPT", "DISABLE_MMA_V3", "DISABLE_MMA_V5", "DISABLE_PTXAS_OPT",
         "USE_IR_LOC", "ARCH", "USE_C_EXTENSION", "USE_FLAGTUNE_COST_MODEL", "PRECISION_MODE", "MUSA_ENABLE_SQMMA", "XPU_cmp_nan",
         "CUDA_MODULE_LOADING", "NVIDIA_TF32_OVERRIDE", "LD_PRELOAD", "PYTHONPATH")
PLACES = ("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLAGTUNE_MODEL_CACHE",
          "FLAGGEMS_CACHE_DIR", "FLAGGEMS_DB_URL", "FLAGGEMS_DIR", "FLAGGEMS_VLLM_DIR", "FLAGGEMS_COMMIT")
EMPTY_IS_UNSET = ("LD_PRELOAD", "PYTHONPATH")
SHOWN_LENGTH = 200

_STDBUF = re.compile(r"[^\s:]*/libstdbuf\.so[\s:]*")     # `stdbuf -oL make screen | tee log`: changes no figure
# Labels of a vendor's image (CUBLAS_VERSION, PYTORCH_BUILD_NUMBER): nothing reads them.
_LABEL = re.compile(r"PYTORCH_BUILD_\w+|(?!TRITON_MOCK_|FLAGTUNE_)\w+_VERSION")
# By its name; FLAG_GEMS_SUNRISE_ENABLE_MONKEY_PATCH is none, and PASS_ is a compiler's. A URL may have its password in it.
_SECRET = re.compile(r"((?<!MON)KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)|(?<!BY)PASS$")
_NO_SECRET = ("TRITON_REDIS_KEY_FORMAT",)
_SECRET_URL = re.compile(r"://[^/\s]*@")


def list_switches(environ):
    """{name: value} of the variables that may change a compiler or a library, without places of caches and trees, and labels."""
    told = {**environ, "LD_PRELOAD": _STDBUF.sub("", environ.get("LD_PRELOAD", ""))}
    return {name: _record(name, value) for name, value in told.items()
            if (name.startswith(PREFIXES) or name in NAMES) and name not in PLACES and not _LABEL.fullmatch(name)
            and (value or name not in EMPTY_IS_UNSET)}


def is_secret(value):
    """True if `value`, as list_switches gives it, is but the digest of one."""
    return bool(re.fullmatch("sha256:[0-9a-f]{12}", value))


def show_switch(value):
    """A value in one line, as a shell takes it; "unset" for None. A long one is cut, and has a digest that tells it apart."""
    if value is None:
        return "unset"
    quoted = shlex.quote(str(value))
    if not quoted.isprintable():
        quoted = "$'" + value.encode("unicode_escape").decode().replace("'", r"\'") + "'"
    if len(quoted) <= SHOWN_LENGTH:
        return quoted
    return f"{quoted[:SHOWN_LENGTH - 50]}... ({len(str(value))} characters, sha256 {sha256_text(quoted)[:12]})"


def join_switches(switches):
    """They in one line, in the order of their names: "DISABLE_LLVM_OPT=1 TRITON_DEBUG=0"."""
    return " ".join(f"{name}={show_switch(value)}" for name, value in sorted(switches.items()))


def _record(name, value):
    value = value.encode(errors="surrogateescape").decode(errors="backslashreplace")
    is_told = name in _NO_SECRET or not (_SECRET.search(name) or _SECRET_URL.search(value))
    return value if is_told else f"sha256:{sha256_text(value)[:12]}"
