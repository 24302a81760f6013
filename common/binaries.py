"""binaries.py - what a Triton cache directory holds: the compiled kernels, each with an identity.

    <cache>/<hash>/mm_kernel.{json,ttgir,ptx,cubin,...}     one directory per compiled variant
    Kernel(name="mm_kernel", code="5c1e...", converts=4, shared=16384, num_warps=4)

A process with an empty cache of its own that replays its tuning compiles exactly what it launches: comparing two such
directories says whether two runs executed the same code. `code` is the digest of TTGIR and PTX without locations and
debug lines, since these hold paths and differ between processes.

Requirements: the standard library. Limits: a backend without PTX is compared by TTGIR and its binary's bytes.
"""
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from common.ttgir import NotTtgir, count_converts, digest_ptx, digest_ttgir

TEXT_STAGES = {"json", "source", "ttir", "ttgir", "llir", "ptx"}  # all others hold machine code


@dataclass(frozen=True, order=True)
class Kernel:
    """One compiled variant; `converts` is None where its TTGIR is missing, cut or of another kind."""
    name: str
    code: str
    converts: int | None
    shared: int | None
    num_warps: int | None


def read_cache(directory):
    """The set of Kernels in a Triton cache directory; empty for one that is not there."""
    groups = (path for path in Path(directory).glob("*/*.json") if not path.name.startswith("__grp__"))
    return {kernel for kernel in map(read_kernel, groups) if kernel is not None}


def read_kernel(metadata_file):
    """The Kernel whose metadata lie in `metadata_file`, or None if that is no kernel's (an autotune cache, say)."""
    try:
        metadata = json.loads(metadata_file.read_text(encoding="utf-8"))
        name = metadata["name"]
    except (ValueError, KeyError, TypeError):
        return None
    ttgir = _read_text(metadata_file.with_suffix(".ttgir"))
    try:
        converts = count_converts(ttgir)
    except NotTtgir:
        converts = None
    return Kernel(name, _digest_code(metadata_file, ttgir), converts.static if converts else None, metadata.get("shared"),
                  metadata.get("num_warps"))


def _digest_code(metadata_file, ttgir):
    parts = [digest_ttgir(ttgir)]
    ptx = _read_text(metadata_file.with_suffix(".ptx"))
    if ptx:
        parts.append(digest_ptx(ptx))
    else:
        binaries = (p for p in sorted(metadata_file.parent.iterdir()) if p.suffix[1:] not in TEXT_STAGES)
        parts += [hashlib.sha256(p.read_bytes()).hexdigest() for p in binaries]
    return hashlib.sha256("-".join(parts).encode()).hexdigest()


def _read_text(path):
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def compare_kernels(one, other):
    """("identical" | "different" | "unknown", text) for two sets of Kernels; unknown where a side compiled nothing."""
    if not one or not other:
        return "unknown", "a side compiled nothing: it ran what was there before, or no kernel at all"
    codes, others = {(k.name, k.code) for k in one}, {(k.name, k.code) for k in other}
    if codes == others:
        return "identical", f"{len(codes)} kernels, the same code on both sides"
    changed = sorted({name for name, _ in codes ^ others})
    return "different", f"{len(codes & others)} kernels the same, other code in {', '.join(changed)}"
