"""What to do after an attempt of one operator ended: finish, try again, or fall back to other dtypes.

A pure function of the attempts so far, so that every rule can be tried without a process:

    ok, skipped, not_found, timeout         finish (a timeout costs the most and is the least likely to differ)
    a requested dtype is not supported      the supported ones of those requested (`subset`), else the op's `own`
    the same signature twice                finish: it is deterministic
    otherwise                               again, at most `retries` times per set of dtypes

Infrastructure (no memory, a torn compile cache, a locked database) is tried again after a pause: no memory on
another device if there is one, a torn cache with a fresh one. The attempt that counts is the best one at the last
set of dtypes (ok, then partial, then the rest); of equals the latest.

Requirements: the standard library.
"""

import re
from dataclasses import dataclass

FINAL = ("ok", "skipped", "not_found", "timeout")
RANK = {"ok": 0, "partial": 1}
MEMORY, CACHE, LOCK, DISK = "memory", "cache", "lock", "disk"

_MEMORY = re.compile(r"OutOfMemoryError|ERROR_OUT_OF_MEMORY|\bout of memory\b", re.I)
_LOCK = re.compile(r"database (?:table )?is locked")
_DISK = re.compile(r"No space left on device|Disk quota exceeded")
_CACHE_CODE = re.compile(r"triton/(?:runtime/cache|compiler/compiler|runtime/build)\.py")
# What a driver says of a compiled kernel that is cut.
_CACHE_IMAGE = re.compile(r"device kernel image is invalid|CUDA_ERROR_INVALID_IMAGE|invalid ELF header")
_CACHE_ERRORS = ("FileNotFoundError", "ImportError", "EOFError", "OSError")


@dataclass(frozen=True)
class Attempt:
    """One attempt that ended by itself or by a timeout; `dtypes` are those it was asked for (empty: the op's own)."""
    number: int
    status: str
    signature: str = ""
    reason: str = ""
    dtypes: tuple = ()
    fallback: str = ""          # "" | subset | own
    unsupported: tuple = ()     # of `dtypes`, those that upstream refused
    infrastructure: str = ""    # "" | memory | cache | lock


@dataclass(frozen=True)
class Step:
    """What comes next. kind `finish` names the attempt that counts; `run` the dtypes and circumstances."""
    kind: str
    attempt: Attempt = None
    dtypes: tuple = ()
    fallback: str = ""
    pause: bool = False
    fresh_cache: bool = False
    elsewhere: bool = False


def decide_next(attempts, retries):
    """The Step after `attempts` (oldest first, not empty), with at most `retries` repetitions per set of dtypes."""
    last = attempts[-1]
    if last.unsupported and last.status not in FINAL and last.fallback != "own":
        left = tuple(name for name in last.dtypes if name not in last.unsupported)
        return Step("run", dtypes=left, fallback="subset" if left else "own")
    same = [each for each in attempts if (each.fallback, each.dtypes) == (last.fallback, last.dtypes)]
    seen_before = any(each.signature == last.signature for each in same[:-1])
    if last.status in FINAL or seen_before or len(same) > retries:
        return Step("finish", attempt=min(reversed(same), key=lambda each: RANK.get(each.status, 2)))
    return Step("run", dtypes=last.dtypes, fallback=last.fallback, pause=bool(last.infrastructure),
                fresh_cache=last.infrastructure == CACHE, elsewhere=last.infrastructure == MEMORY)


def name_infrastructure(text, cache_dir):
    """Which part of the machine a failed attempt's log blames: memory, cache, lock, disk, or "" for none of them.

    `cache_dir` is the attempt's TRITON_CACHE_DIR. A JSON or file error counts as `cache` only if it came out of
    Triton's cache code or names a file in that directory; an operator may raise them too. The time that this takes is
    linear in `text`, whatever it holds.
    """
    if _DISK.search(text):
        return DISK
    if _LOCK.search(text):
        return LOCK
    if _CACHE_CODE.search(text) and ("JSONDecodeError" in text or _CACHE_IMAGE.search(text)):
        return CACHE
    before = [line.partition(str(cache_dir))[0] for line in text.splitlines() if str(cache_dir) in line]
    if any(error in part for part in before for error in _CACHE_ERRORS):
        return CACHE
    return MEMORY if _MEMORY.search(text) else ""
