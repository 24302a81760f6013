"""What was compiled and how often each variant was launched, for launches.json.

A variant is one compiled form of a kernel, named by Triton's hash. Compilations come from the documented
``triton.knobs.compilation.listener``; launches are counted by the host's own launcher, which knows the hash.
"""

import collections
import json
import os
import re

import triton

SCHEMA = 1
# The operation at statement position, custom or quoted generic form; not the word in a comment, string or location.
CONVERT_LAYOUT = re.compile(r'^\s*(?:%[^=]+=\s*)?"?(?:ttg|triton_gpu)\.convert_layout\b', re.MULTILINE)


class Recorder:
    """Counts compilations and launches of this process."""

    def __init__(self):
        self.launches = collections.Counter()
        self.kernels = {}  # hash -> name
        self._compiled = {}  # hash -> facts, in order of compilation

    def install(self):
        """Listen to compilations; a listener that is already there is called first."""
        previous = triton.knobs.compilation.listener

        def listen(**event):
            if previous is not None:
                previous(**event)
            self._note_compilation(event["src"], event["metadata"], event["metadata_group"])

        triton.knobs.compilation.listener = listen

    @property
    def total_launches(self):
        return sum(self.launches.values())

    def count_launch(self, kernel_hash, name):
        self.launches[kernel_hash] += 1
        self.kernels[kernel_hash] = name

    @property
    def variant_count(self):
        return len(self._compiled)

    def _note_compilation(self, src, metadata, group):
        self._compiled[metadata["hash"]] = {
            "name": metadata.get("name", src.name),
            "num_warps": metadata["num_warps"],
            "shared": metadata.get("shared", 0),
            "ttgir": next((path for name, path in group.items() if name.endswith(".ttgir")), None),
        }

    def variants(self):
        """One dict per variant: name, hash, launches, num_warps, shared (bytes), convert_layout (operations in TTGIR,
        None where the dump is gone)."""
        return [
            {
                "name": facts["name"],
                "hash": kernel_hash,
                "launches": self.launches[kernel_hash],
                "num_warps": facts["num_warps"],
                "shared": facts["shared"],
                "convert_layout": count_convert_layout(facts["ttgir"]),
            }
            for kernel_hash, facts in self._compiled.items()
        ]

    def write(self, path, target):
        """Write launches.json beside its final name, then rename it: a reader never sees half a file."""
        record = {"schema": SCHEMA, "target": str(target), "mode": target.mode, "variants": self.variants()}
        temporary = f"{path}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def count_convert_layout(path):
    """``ttg.convert_layout`` operations in a TTGIR dump, or None if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return len(CONVERT_LAYOUT.findall(file.read()))
    except (OSError, TypeError):
        return None
