"""record.py - autotune.json: what every autotuned launch chose, and whether that may be replayed here.

    {"schema": 1,
     "meta": {"triton": "3.6.0", "triton_minor": "3.6", "compiler": "<hash>", "device": "NVIDIA H200",
              "capability": "9.0", "use_flagtune": "0", "packages": {"torch": "2.11.0"}, "harness_commit": "...", ...},
     "entries": [{"kind": "libtuner", "kernel": "flag_gems.ops.mm.mm_kernel_general", "source": "<sha256>",
                  "configs": "<sha256>", "key": "[[\"int\",4096]]", "config": {...}, "origin": "tuned",
                  "best_ms": 0.21, "failed": ["BLOCK: 512, num_warps: 8, ..."], "ambiguous": false}]}

`origin` says where the config came from in this run: tuned (measured now), cached (the tuner's database had it),
replayed, or fallback (tuned now because the replayed or stored one failed). `failed` names the configs that did not
compile or did not fit while this one was tuned. `source` is the digest of the kernel's own source: not of the functions
that it calls.
"""
import contextlib
import hashlib
import importlib.metadata
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import triton

from . import codec

SCHEMA = 1
FILE_NAME = "autotune.json"
IDENTITY = ("kind", "kernel", "source", "configs", "key")
# Another value: another search, another machine or backend, another compiler.
MUST_MATCH = ("use_flagtune", "device", "target", "triton_minor")
MUST_SAY = ("compiler",)  # another build of the same Triton: what a comparison of compilers replays across


class RecordError(ValueError):
    """A record that cannot be read or must not be replayed here. The message names file, value and mend."""


@dataclass
class Record:
    """The entries of one run by (kind, kernel, source, configs, key), and its meta."""
    meta: dict = field(default_factory=dict)
    entries: dict = field(default_factory=dict)

    def put(self, identity, key, config, origin, best_ms=None, failed=()):
        """Add an entry; False if this run has launched another config for the same one already: no replay can then be right."""
        kind, kernel, source, configs = identity
        earlier = self.entries.get((*identity, key))
        ambiguous = earlier is not None and (earlier["ambiguous"] or earlier["config"] != config)
        self.entries[(*identity, key)] = {"kind": kind, "kernel": kernel, "source": source, "configs": configs, "key": key,
                                          "config": config, "origin": origin, "best_ms": best_ms, "failed": list(failed),
                                          "ambiguous": ambiguous}
        return not ambiguous

    def count_kinds(self):
        """Counter of the entries per tuner kind."""
        return Counter(e["kind"] for e in self.entries.values())

    def find_names(self):
        """{(kind, kernel): {(source, configs), ...}} of all entries."""
        names = {}
        for kind, kernel, source, configs, _ in self.entries:
            names.setdefault((kind, kernel), set()).add((source, configs))
        return names


def locate_record(place):
    """The record file that REPLAY_FROM means: itself, or the one in that run directory."""
    path = Path(place)
    path = path / FILE_NAME if path.is_dir() else path
    if not path.is_file():
        raise RecordError(f"REPLAY_FROM: {place}: holds no {FILE_NAME}; name a run directory that was recorded "
                          "(of a screen: REPO/OP/attempts/1)")
    return path


def load_record(path):
    """Read a record. RecordError if it is none, or cut, or of another version."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise RecordError(f"{path}: schema {data['schema']}: this version reads {SCHEMA}; record again")
        record = Record(meta=dict(data["meta"]))
        for entry in data["entries"]:
            check_entry(entry)
            record.entries[tuple(entry[name] for name in IDENTITY)] = entry
        return record
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}; make it readable, or record again") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{path}: is no autotune record ({type(error).__name__}: {error}); record again") from None


def check_entry(entry):
    """Raise what load_record catches unless `entry` can be used; a value that cannot be built again is no fault."""
    if not all(isinstance(entry[name], str) for name in IDENTITY) or not isinstance(entry["config"]["pre_hook"], bool):
        raise TypeError(f"entry {str(entry)[:80]}")
    with contextlib.suppress(codec.NotReplayable):
        codec.decode_config(entry["config"])


def save_record(record, path):
    """Write a record: NAME.tmp, fsync, rename."""
    data = {"schema": SCHEMA, "meta": record.meta, "entries": list(record.entries.values())}
    temporary = Path(f"{path}.tmp")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump(data, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def find_differences(recorded, here, names=MUST_MATCH):
    """["device: recorded with NVIDIA H200, this run has NVIDIA H100", ...] for what makes a record unfit for this run.

    A field that the record lacks is a difference: where it was made is then unknown.
    """
    return [f"{name}: recorded with {recorded.get(name, 'nothing said')}, this run has {here.get(name)}"
            for name in names if recorded.get(name) != here.get(name)]


def describe_run(torch_device):
    """The meta of this run. `torch_device` is the device module (torch.cuda, torch.musa, ...) that measures."""
    capability = getattr(torch_device, "get_device_capability", lambda: None)()
    search = [os.environ.get("USE_FLAGTUNE") or "0"]
    if os.environ.get("USE_FLAGTUNE_COST_MODEL"):
        search.append(f"cost model {os.environ['USE_FLAGTUNE_COST_MODEL']}")
    return {"triton": triton.__version__, "triton_minor": ".".join(triton.__version__.split(".")[:2]),
            "compiler": hash_compiler(), "target": str(triton.runtime.driver.active.get_current_target()),
            "device": torch_device.get_device_name(),
            "capability": ".".join(map(str, capability)) if capability else None,
            "use_flagtune": ", ".join(search),
            "packages": {name: find_version(name) for name in ("torch", "triton", "flag_gems", "flaggems_vllm")},
            "upstream_commit": os.environ.get("UPSTREAM_COMMIT"), "harness_commit": os.environ.get("HARNESS_COMMIT")}


def hash_compiler():
    """One digest of the compiler: Triton's own key and the backend's hash, which holds ptxas and its options."""
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import triton_key
    backend = make_backend(triton.runtime.driver.active.get_current_target())
    return hashlib.sha256(f"{triton_key()}-{backend.hash()}".encode()).hexdigest()


def find_version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
