"""view.py - a view in front of every tuner's cache, through which configs are recorded and replayed.

Triton's Autotuner keeps its winners in `self.cache`, a dict; FlagGems' LibTuner in `self.cache`, a view on a SQLite
table. Both are used alike:

    if key not in self.cache:  tune; self.cache[key] = best
    config = self.cache[key]                                # <- the config of this very launch

So a CacheView in its place
  records   on the read, so that a warm database is recorded like a cold one;
  replays   by answering with the record's config, whatever the database holds, and without writing it there;
  rejects   a replayed (or stored) config that does not compile: the key then looks untuned, and the config is no
            candidate, until it is tuned again, although ConfigCache cannot delete a row.

Limits: after its first launch LibEntry keeps a compiled kernel and asks no tuner any more, so nothing is paid there;
a plain Autotuner pays one look-up per launch (`make bench`), a longer one for keys with floats in them.
"""
import functools
import hashlib
import inspect
import math
import re

import torch
import triton
from triton.runtime.autotuner import Autotuner

from . import codec
from .session import ReplayError

PLAIN_TYPES = frozenset((int, bool, str, type(None), torch.dtype))  # equal values of one type are one value


class CacheView:
    """Stands before one tuner's cache. `inner` is the tuner's own: a dict or a ConfigCache."""

    def __init__(self, tuner, inner, session):
        self.tuner, self.inner, self.session = tuner, inner, session
        self.chosen = {}       # typed key -> config
        self.proven = set()    # typed keys whose config has been launched in this process
        self.settled = {}      # key -> (types, config) of those, for a quick answer
        self.rejected = {}     # typed key -> config that failed; the key looks untuned until it is set again
        self.origin = {}       # typed key -> replayed | tuned | fallback | cached
        self.entry = {}        # typed key -> the record's entry, where replayed
        self.seen_key = self.seen_config = None  # what `in` just answered for, so that `[]` need not look again
        self.pending = None    # (key, typed key) of the launch under way, if its config is not proven
        self.excluding = ()    # attributes of the tuner that stand in for its own while a rejected key is tuned

    @functools.cached_property
    def identity(self):
        """(kind, qualified kernel name, digest of its source, digest of its configs)."""
        tuner, function = self.tuner, self.tuner.base_fn
        kind = "autotune" if type(tuner) is Autotuner else "libtuner"
        configs = ",".join(sorted(str(c) for c in tuner.configs))
        module = re.sub(r"_pid_\d+", "_pid", function.__module__)  # upstream so names some modules that it generates
        return (kind, f"{module}.{function.__qualname__}", digest(read_source(tuner)), digest(configs))

    # ---- what a tuner does with its cache

    def __contains__(self, key):
        settled = self.settled.get(key)
        if settled is not None and settled[0] == tuple(map(type, key)):
            self.seen_key, self.seen_config = key, settled[1]
            return True
        typed = type_key(key)
        if typed in self.chosen:
            return True
        if typed in self.rejected:
            self.exclude(self.rejected[typed])
            return False
        return self.replay(key, typed) or self.ask_inner(lambda: key in self.inner, False)

    def __getitem__(self, key):
        if key is self.seen_key:
            return self.seen_config
        typed = type_key(key)
        config = self.chosen.get(typed)
        if config is None:
            config = self.chosen[typed] = self.inner[key]
            self.origin.setdefault(typed, "cached")
        if typed not in self.proven:
            self.pending = key, typed
        return config

    def __setitem__(self, key, config):
        typed = type_key(key)
        self.origin[typed] = "fallback" if self.rejected.pop(typed, None) else "tuned"
        self.forget(key, typed)
        self.chosen[typed] = config
        self.ask_inner(lambda: self.inner.__setitem__(key, config), None)

    def __delitem__(self, key):
        self.forget(key, type_key(key))
        del self.inner[key]

    def clear(self):
        """Everything looks untuned again; what is replayed is replayed again."""
        self.chosen, self.proven, self.settled, self.seen_key = {}, set(), {}, None
        self.origin = {t: o for t, o in self.origin.items() if o != "replayed"}
        self.inner.clear()

    def get(self, key, default=None):
        return self[key] if key in self else default

    def __getattr__(self, name):  # whatever else a tuner does with its own cache
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def __iter__(self):
        return iter(self.inner)

    def forget(self, key, typed):
        self.proven.discard(typed)
        self.settled.pop(key, None)
        self.chosen.pop(typed, None)
        self.seen_key = None

    def replay(self, key, typed):
        """Take the record's config for `key`, if there is one. Asked once per key: afterwards it is chosen."""
        if self.session.source is None or typed in self.origin:
            return False
        entry, config = self.session.find(self.tuner, self.identity, codec.encode_key(key))
        self.origin[typed] = "replayed" if entry else "cached"
        if entry:
            self.entry[typed], self.chosen[typed] = entry, config
        return entry is not None

    def ask_inner(self, ask, otherwise):
        """`ask()`, or `otherwise` if the database stayed locked: no operator fails for that."""
        try:
            return ask()
        except Exception as error:
            if type(error).__name__ != "OperationalError" or "locked" not in str(error):
                raise
            self.session.report(f"AUTOTUNE_DATABASE kernel={self.identity[1]} reason=locked: not read or written")
            return otherwise

    # ---- how a launch ended

    def reject(self, error):
        """The launch under way failed with `error`: if its config was replayed or stored, make it look untuned.

        True if the launch is worth a second try, which then tunes live.
        """
        self.stop_excluding()
        pending, self.pending = self.pending, None
        if pending is None or not isinstance(error, Exception) or isinstance(error, ReplayError):
            return False
        key, typed = pending
        if self.origin.get(typed) not in ("replayed", "cached"):
            self.report_no_config(key)
            return False
        stored = self.ask_inner(lambda: key in self.inner, False)  # it stays there until a new winner replaces it
        reason = f"compile_{type(error).__name__}" + ("_no_evict" if stored else "")
        self.rejected[typed] = self.chosen[typed]
        self.forget(key, typed)
        self.report_failure(key, typed, reason, error)
        return True

    def report_failure(self, key, typed, reason, error):
        session, entry, kernel = self.session, self.entry.pop(typed, None), self.identity[1]
        where = f"reason={reason} kernel={kernel} key={codec.encode_key(key)} config={self.rejected[typed]}"
        if entry is None:
            session.retuned += 1
            session.report(f"AUTOTUNE_RETUNED {where}")
            return
        session.mark(entry, "fallback")
        session.report(f"AUTOTUNE_REPLAY_FALLBACK {where}")
        if session.strict:
            raise ReplayError(f"REPLAY_STRICT: {kernel}: the replayed config failed ({reason})") from error

    def report_no_config(self, key):
        """Upstream launches the first config if all of them failed, and its error says nothing of the others."""
        failed = self.list_failed()
        if failed and len(failed) == len(self.tuner.configs_timings):
            self.session.report(f"AUTOTUNE_NO_VALID_CONFIG kernel={self.identity[1]} key={codec.encode_key(key)} "
                                f"reason=none of {len(failed)} configs compiled and fitted")

    def prove(self):
        """The launch under way worked: check the config that it really used, and record it."""
        self.stop_excluding()
        (key, typed), self.pending = self.pending, None
        wanted, used = self.chosen[typed], self.tuner.best_config
        entry = self.entry.get(typed)
        # Upstream's database keeps a True as 1, and LibTuner launches its own config that equals what it read.
        if not (codec.same_config(wanted, used) if entry else wanted.all_kwargs() == used.all_kwargs()):
            raise ReplayError(f"{self.identity[1]}: launched {used}, the cache says {wanted}")
        if entry is not None:
            if entry["config"]["pre_hook"] and used.pre_hook is None:
                raise ReplayError(f"{self.identity[1]}: {used}: was replayed without its pre_hook")
            self.session.mark(entry, "used")
        self.proven.add(typed)
        if isinstance(typed, tuple):  # an equal key of other types replaces it: it is then looked up by its types
            self.settled[key] = typed[1], wanted
        if self.session.record is not None:
            tuned = self.origin[typed] in ("tuned", "fallback")
            found = (self.find_time(used), self.list_failed()) if tuned else ()
            name = codec.encode_key(key)
            if not self.session.record.put(self.identity, name, codec.encode_config(used), self.origin[typed], *found):
                self.session.report(f"AUTOTUNE_AMBIGUOUS kernel={self.identity[1]} key={name} "
                                    "reason=two tuners of this kernel chose different configs for this key")

    def find_time(self, config):
        """ms of `config` in the tuning that just ended, or None."""
        time = (getattr(self.tuner, "configs_timings", None) or {}).get(config)
        return time[0] if isinstance(time, (list, tuple)) else time

    def list_failed(self):
        """The configs that did not compile or fit, as text; Triton gives them an infinite time."""
        timings = getattr(self.tuner, "configs_timings", None) or {}
        return [str(c) for c, t in timings.items() if math.isinf(t[0] if isinstance(t, (list, tuple)) else t)]

    # ---- tuning without a config that failed

    def exclude(self, bad):
        """Until the launch under way ends, `bad` is no candidate, and LibTuner measures instead of reading old timings.

        Its benchmark table still says that `bad` was the fastest; tuning from it would choose that again.
        """
        tuner, prune = self.tuner, self.tuner.prune_configs
        if self.excluding:
            return
        stand_ins = {"prune_configs": lambda *args, **kwargs: without(bad, prune(*args, **kwargs))}
        if hasattr(tuner, "policy"):
            policy = tuner.policy
            stand_ins["policy"] = lambda bench, candidates, args, kwargs: policy(
                lambda config: measure(tuner, config, args, kwargs), candidates, args, kwargs)
        self.excluding = [(name, tuner.__dict__.get(name)) for name in stand_ins]
        tuner.__dict__.update(stand_ins)

    def stop_excluding(self):
        for name, own in self.excluding:
            if own is None:
                del self.tuner.__dict__[name]
            else:
                self.tuner.__dict__[name] = own
        self.excluding = ()


def without(bad, configs):
    """`configs` but `bad`; all of them if none would be left."""
    return [c for c in configs if not codec.same_config(c, bad)] or configs


def measure(tuner, config, args, kwargs):
    """The tuner's own trial of one config, as [p50, p20, p80] in ms; some backends answer with one number."""
    times = tuner._bench(*args, config=config, **kwargs)
    return list(times) if isinstance(times, (list, tuple)) else [times] * 3


def read_source(tuner):
    """The kernel's text as Triton read it. (Not JITFunction.cache_key: for some kernels it holds addresses.)"""
    function = tuner.fn
    while not isinstance(function, triton.runtime.JITFunction):
        function = function.fn
    lines = getattr(function, "raw_src", None)
    return "".join(lines) if lines else inspect.getsource(tuner.base_fn)


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def type_key(key):
    """`key` so that 1, True and 1.0 differ, and 0.0 and -0.0."""
    types = tuple(map(type, key))
    return (key, types) if PLAIN_TYPES.issuperset(types) else codec.encode_key(key)
