"""State in plain files: atomic writes, `.complete` markers, claimed directories, locks, digests.

Every step writes NAME.XXXX.tmp beside its target, fsyncs, renames; so a reader never sees half a file
and a crash leaves the old content. A step that reached a final outcome writes `.complete` last:

    {"finished": "2026-11-30T06:29:00Z", "inputs_sha256": "9f86...", "schema": 1, "status": "ok"}

Requirements: the standard library, Linux. Limits: two writers of one target at the same time must
agree otherwise (see hold_lock); a lock holds on one host and on file systems that support flock.
"""

import contextlib
import datetime
import errno
import fcntl
import hashlib
import json
import os
import secrets
import socket
from pathlib import Path

from common.errors import REFUSED, UserError

SCHEMA = 1
MARKER = ".complete"
# What fields of a marker are, where it has them.
FIELDS = {"status": str, "inputs_sha256": str, "inputs": dict, "attempt": int, "fallback": str, "reason": str, "signature": str,
          "device": str, "seconds": (int, float), "timeout": (int, float), "settings": dict}


def utc_now():
    """Now as `2026-11-30T06:29:00Z`."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_stamp():
    """Now as `20261130T062900Z`, fit for a directory's name."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")


# ---- files

def write_text_atomic(path, text):
    """Write `text` (UTF-8) to `path`; after return it is on disk, after a crash the old one is."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")     # two writers have one each
    try:
        try:
            with open(temporary, "x", encoding="utf-8", newline="") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        error.filename = str(path)      # and not the temporary file, or none
        raise
    sync_directory(path.parent)


def write_json_atomic(path, value):
    """Write `value` as indented JSON with sorted keys, atomically."""
    write_text_atomic(path, json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(path):
    """The JSON in `path`, or None if it is missing, cut or no JSON (a killed writer's trace)."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return None


def sync_directory(path):
    """Make a rename in directory `path` durable. File systems that cannot are let pass."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def link_latest(link, target):
    """Point the symbolic link `link` at `target` (relative where possible), atomically."""
    link, target = Path(link), Path(target).absolute()
    if link.exists() and not link.is_symlink():
        raise UserError(f"{link}: is no link; move it away, the name is used for the newest run", REFUSED)
    temporary = link.with_name(f"{link.name}.{secrets.token_hex(4)}.tmp")     # two hosts may have the same process number
    temporary.symlink_to(os.path.relpath(target, link.parent.absolute()))
    os.replace(temporary, link)


# ---- markers

def read_marker(directory):
    """The `.complete` of `directory` as a dict, or None if there is none that can be trusted."""
    marker = read_json(Path(directory) / MARKER)
    if not isinstance(marker, dict) or marker.get("schema") != SCHEMA or "status" not in marker:
        return None
    is_whole = all(isinstance(marker[name], kind) and not isinstance(marker[name], bool)
                   for name, kind in FIELDS.items() if name in marker)
    return marker if is_whole and all(0 <= marker.get(name, 0) < float("inf") for name in ("seconds", "timeout")) else None


def write_marker(directory, status, inputs_sha256, **more):
    """Write `.complete` into `directory`: the step reached the final outcome `status`."""
    marker = {"schema": SCHEMA, "status": status, "finished": utc_now(), "inputs_sha256": inputs_sha256, **more}
    write_json_atomic(Path(directory) / MARKER, marker)
    return marker


def remove_marker(directory):
    """Take `.complete` away, durably; no error if there is none."""
    with contextlib.suppress(FileNotFoundError):
        (Path(directory) / MARKER).unlink()
        sync_directory(directory)


# ---- directories and locks

def claim_directory(path):
    """Make `path` by a bare mkdir and return it; if it is taken retreat to `path-2`, `path-3`, ...

    Only one of several claimants gets a name, on NFS too. Parents are made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            candidate.mkdir()
            return candidate
        except FileExistsError:
            number += 1


@contextlib.contextmanager
def hold_lock(path, what, mend="wait for it, end it, or choose another directory"):
    """Hold the lock file `path` inside a `with`; see take_lock. Children do not inherit it."""
    descriptor = take_lock(path, what, mend)
    try:
        yield
    finally:
        os.close(descriptor)


def take_lock(path, what, mend, mode=0o644, **facts):
    """Lock the file `path` and return its descriptor. It names its holder: JSON pid, host, started, and `facts`.

    If another process holds it: UserError REFUSED naming that holder. The lock goes with its process however that ends, so
    that a stale file never blocks. `mode` 0o666 is for a lock between users.
    """
    descriptor = _open_lock(path, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        holder = read_json(path)
        holder = holder if isinstance(holder, dict) else {}
        more = "".join(f", {name} {holder[name]}" for name in facts if name in holder)
        raise UserError(f"{path}: {what} is in use by process {holder.get('pid', '?')} on host {holder.get('host', '?')}{more} "
                        f"since {holder.get('started', '?')}; {mend}", REFUSED) from None
    # In place and not by rename: a lock belongs to the file, not to its name.
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": utc_now(), **facts}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, (json.dumps(holder) + "\n").encode(), 0)
    return descriptor


def _open_lock(path, mode):
    """A descriptor of the file, made if need be. O_CREAT on another user's file in /tmp is refused (fs.protected_regular)."""
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        os.fchmod(descriptor, mode)     # whatever the umask says
        return descriptor
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW)


# ---- digests

def sha256_text(text):
    """Hex digest of `text` (str as UTF-8, or bytes)."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def sha256_file(path):
    """Hex digest of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def canonical_json(value):
    """`value` as the one JSON text that stands for it: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_json(value):
    """Hex digest of the canonical JSON of `value`."""
    return sha256_text(canonical_json(value))


def sha256_tree(root, files):
    """Hex digest over names (relative to `root`) and contents of `files`, in whatever order given.

    A missing file counts as missing instead of failing: its appearance later changes the digest.
    """
    root = Path(root)
    content = {}
    for name in files:
        path = root / name
        content[Path(name).as_posix()] = sha256_file(path) if path.is_file() else None
    return sha256_json(content)
