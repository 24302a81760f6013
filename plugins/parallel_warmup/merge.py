"""merge.py - the shards' autotune records as one record for the serial run.

A key that several shards tuned (the first input goes to all of them, and keys are coarser than shapes) shows how far
the tuning can be trusted: the winner is the one with the smallest time, and different winners are counted.
"""
from collections import Counter
from dataclasses import dataclass, field

from autotune_record import record as records


@dataclass
class Merged:
    """`record` of all shards; `shared` keys that more than one tuned; `disagreed` those whose winners differ."""

    record: records.Record
    shared: int = 0
    disagreed: list = field(default_factory=list)  # (kernel, key, [config per shard])


def merge_records(parts, base=None):
    """Merged of the shards' Records, over the entries of `base` (the record that they replayed), if any.

    Raises records.RecordError if they were made on different devices, compilers or search spaces.
    """
    merged = Merged(records.Record(meta=dict(parts[0].meta), entries=dict(base.entries) if base else {}))
    for number, part in enumerate(parts[1:], 2):
        differences = records.find_differences(part.meta, parts[0].meta)
        if differences:
            raise records.RecordError(f"shard {number}: {'; '.join(differences)}; shard 1 differs: name devices of one kind")
    counts = Counter(identity for part in parts for identity in part.entries)
    for identity, count in counts.items():
        entries = [part.entries[identity] for part in parts if identity in part.entries]
        tuned = [entry for entry in entries if entry["origin"] in ("tuned", "fallback")]
        merged.record.entries[identity] = min(tuned or entries, key=read_time)
        if len(tuned) > 1:
            merged.shared += 1
            if any(entry["config"] != tuned[0]["config"] for entry in tuned):
                merged.disagreed.append((entries[0]["kernel"], entries[0]["key"], [entry["config"]["kwargs"] for entry in tuned]))
    return merged


def read_time(entry):
    """ms of an entry's config, for comparing; an entry without one is slower than any."""
    return entry["best_ms"] if entry["best_ms"] is not None else float("inf")
