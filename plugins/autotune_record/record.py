"""record.py - autotune.json: what every autotuned launch chose, and whether that may be replayed here.

    {"schema": 1,
     "meta": {"triton": "3.6.0", "triton_minor": "3.6", "compiler": "<hash>", "device": "NVIDIA H200",
              "capability": "9.0", "use_flagtune": "0", "packages": {"torch": "2.11.0"}, "harness_commit": "...", ...},
     "entries": [{"kind": "libtuner", "kernel": "flag_gems.ops.mm.mm_kernel_general", "source": "<sha256>",
                  "configs": "<sha256>", "key": "[[\"int\",4096]]", "config": {...}, "origin": "tuned",
                  "best_ms": 0.21}]}

`origin` says where the config came from in this run: tuned (measured now), cached (the tuner's database had it),
replayed, or fallback (tuned now because the replayed one failed).
"""
import hashlib
import importlib.metadata
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import triton

SCHEMA = 1
FILE_NAME = "autotune.json"
MUST_MATCH = ("use_flagtune", "device", "triton_minor")  # another value: another search, another machine, another compiler


class RecordError(ValueError):
    """A record that cannot be read or must not be replayed here. The message names file, value and mend."""


@dataclass
class Record:
    """The entries of one run by (kind, kernel, source, configs, key), and its meta."""
    meta: dict = field(default_factory=dict)
    entries: dict = field(default_factory=dict)

    def put(self, identity, key, config, origin, best_ms=None):
        kind, kernel, source, configs = identity
        self.entries[(*identity, key)] = {"kind": kind, "kernel": kernel, "source": source, "configs": configs,
                                          "key": key, "config": config, "origin": origin, "best_ms": best_ms}

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
        raise RecordError(f"REPLAY_FROM: {place}: holds no {FILE_NAME}; name a run directory that was recorded")
    return path


def load_record(path):
    """Read a record. RecordError if it is none."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise RecordError(f"{path}: schema {data['schema']}: this version reads {SCHEMA}; record again")
        record = Record(meta=data["meta"])
        for e in data["entries"]:
            record.entries[(e["kind"], e["kernel"], e["source"], e["configs"], e["key"])] = e
        return record
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{path}: is no autotune record ({type(error).__name__}: {error}); record again") from None


def save_record(record, path):
    """Write a record: NAME.tmp, fsync, rename."""
    data = {"schema": SCHEMA, "meta": record.meta, "entries": list(record.entries.values())}
    temporary = Path(f"{path}.tmp")
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump(data, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def find_differences(recorded, here):
    """["device: recorded on NVIDIA H200, this is NVIDIA H100", ...] for what makes a record unfit for this run.

    A field that the record lacks is a difference: where it was made is then unknown.
    """
    return [f"{name}: recorded with {recorded.get(name, 'nothing said')}, this run has {here[name]}"
            for name in MUST_MATCH if recorded.get(name) != here[name]]


def describe_run(torch_device):
    """The meta of this run. `torch_device` is the device module (torch.cuda, torch.musa, ...) that measures."""
    capability = getattr(torch_device, "get_device_capability", lambda: None)()
    return {"triton": triton.__version__, "triton_minor": ".".join(triton.__version__.split(".")[:2]),
            "compiler": hash_compiler(), "target": str(triton.runtime.driver.active.get_current_target()),
            "device": torch_device.get_device_name(),
            "capability": ".".join(map(str, capability)) if capability else None,
            "use_flagtune": os.environ.get("USE_FLAGTUNE") or "0",
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
