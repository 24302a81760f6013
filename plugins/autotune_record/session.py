"""session.py - what one pytest session records into, and what it replays from.

An entry of the record that is replayed ends as one of: used (a launch rested on it), fallback (its config failed, the
launch was tuned live), dropped (its config cannot be given to the tuner), unused (no launch asked for it). `missed` counts
the other side: launches for which the record has no entry.
"""
from collections import Counter

from . import codec

OUTCOMES = ("used", "unused", "missed", "fallback", "dropped")


class ReplayError(AssertionError):
    """A launch did not use the config of the record although it had to (REPLAY_STRICT, kernel source)."""


class Session:
    """One pytest session: what is being recorded into `record` and replayed from `source` (None: nothing)."""

    def __init__(self, record, source=None, strict=False, force=False, report=print):
        self.record, self.source, self.force, self.report = record, source, force, report
        self.strict = strict and source is not None
        self.source_names = source.find_names() if source else {}
        self.fates = {}        # entry of the source -> used | fallback | dropped
        self.missed = set()    # (identity, key) that the source lacks
        self.retuned = 0       # stored configs that failed

    def find(self, tuner, identity, key):
        """The record's entry and its config for this launch, or (None, None): that is counted, and said.

        Raises ReplayError if the record is of another kernel source or another list of configs, unless forced.
        """
        entry = self.find_entry(identity, key)
        if entry is None:
            self.missed.add((identity, key))
            return self.refuse("MISSED", identity, key, "no entry for this key")
        try:
            if entry.get("ambiguous"):
                raise codec.NotReplayable("two tuners of this kernel chose different configs for this key")
            check_hook(entry, tuner)
            return entry, codec.decode_config(entry["config"])
        except codec.NotReplayable as error:
            self.mark(entry, "dropped")
            return self.refuse("DROPPED", identity, key, str(error))

    def find_entry(self, identity, key):
        kind, kernel, *variant = identity
        known = self.source_names.get((kind, kernel), ())
        if not known or tuple(variant) in known:
            return self.source.entries.get((*identity, key))
        if not self.force:
            raise ReplayError(f"REPLAY_FROM: {kernel}: was recorded from another source or another list of configs; "
                              "record again, or set REPLAY_FORCE=1")
        return next((e for e in self.source.entries.values() if (e["kind"], e["kernel"], e["key"]) == (kind, kernel, key)), None)

    def mark(self, entry, fate):
        """What became of an entry; one that failed once was not used, whatever other launches made of it."""
        identity = tuple(entry[name] for name in ("kind", "kernel", "source", "configs", "key"))
        if self.fates.get(identity) != "fallback":
            self.fates[identity] = fate

    def refuse(self, what, identity, key, why):
        """Say why a launch is tuned live; in strict mode that is a failure."""
        line = f"AUTOTUNE_REPLAY_{what} kernel={identity[1]} key={key} reason={why}"
        self.report(line)
        if self.strict:
            raise ReplayError(line)
        return None, None

    def count_fates(self):
        """{kind: {outcome: count}} for every kind of tuner that the source or this run has."""
        total = self.source.count_kinds()
        fates = Counter((identity[0], fate) for identity, fate in self.fates.items())
        fates.update((identity[0], "missed") for identity, _ in self.missed)
        counts = {}
        for kind in sorted({*total, *(k for k, _ in fates)}):
            known = sum(fates[kind, fate] for fate in ("used", "fallback", "dropped"))
            counts[kind] = {o: total[kind] - known if o == "unused" else fates[kind, o] for o in OUTCOMES}
        return counts


def check_hook(entry, tuner):
    """NotReplayable for a config with a pre_hook that nothing would attach again: a hook is code, no record holds it."""
    wanted = codec.decode_config(entry["config"]).all_kwargs()
    hooked = any(c.pre_hook is not None and c.all_kwargs() == wanted for c in tuner.configs)
    if entry["kind"] == "autotune" and (hooked or entry["config"]["pre_hook"]):
        raise codec.NotReplayable("its config has a pre_hook, which plain autotune cannot re-attach")
    if entry["config"]["pre_hook"] and not hooked:
        raise codec.NotReplayable("its config had a pre_hook, and no config of this kernel with the same values has one")
