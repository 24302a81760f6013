"""view.py - a view in front of every tuner's cache, through which configs are recorded and replayed.

Triton's Autotuner keeps its winners in `self.cache`, a dict; FlagGems' LibTuner in `self.cache`, a view on a SQLite
table. Both are used alike:

    if key not in self.cache:  tune; self.cache[key] = best
    config = self.cache[key]                                # <- the config of this very launch

So `cache` becomes a property of the class that hands out a CacheView, which
  records   on the read, so that a warm database is recorded like a cold one;
  replays   by answering with the record's config, whatever the database holds, and without writing it there;
  rejects   a replayed (or stored) config that does not compile: the key then looks untuned until it is tuned again,
            although ConfigCache cannot delete a row.

Limits: after its first launch LibEntry keeps a compiled kernel and asks no tuner any more, so nothing is paid there;
a plain Autotuner pays one look-up per launch.
"""
import contextlib
import functools
import hashlib
import inspect
from collections import Counter

from triton.runtime.autotuner import Autotuner

from . import codec


class ReplayError(AssertionError):
    """A launch did not use the config of the record although it had to (REPLAY_STRICT, kernel source)."""


class Session:
    """One pytest session: what is being recorded into `record` and replayed from `source` (None: nothing)."""

    def __init__(self, record, source=None, strict=False, force=False, report=print):
        self.record, self.source, self.strict, self.force, self.report = record, source, strict, force, report
        self.source_names = source.find_names() if source else {}
        self.counts = Counter()  # (kind, used|missed|fallback|dropped)
        self.used = set()        # entries of the source that a launch used

    def find(self, tuner, identity, key):
        """The config that the record holds for this launch, or None. Counts a miss or a dropped hook.

        Raises ReplayError if the record is of another kernel source or another list of configs, unless forced.
        """
        kind, kernel, *variant = identity
        entry = self.source.entries.get((*identity, key))
        known = self.source_names.get((kind, kernel), set())
        if known and tuple(variant) not in known:
            if not self.force:
                raise ReplayError(f"REPLAY_FROM: {kernel}: was recorded from another source or another list of configs; "
                                  "record again, or set REPLAY_FORCE=1")
            entry = next((e for (k, n, _, _, text), e in self.source.entries.items()
                          if (k, n, text) == (kind, kernel, key)), None)
        if entry is None:
            return self.refuse(identity, key, "missed", "no entry for this key")
        if entry["config"]["pre_hook"] and kind == "autotune":  # nothing attaches the hook again there
            return self.refuse(identity, key, "dropped", "its config has a pre_hook, which plain autotune cannot re-attach")
        try:
            config = codec.decode_config(entry["config"])
        except codec.NotReplayable as error:
            return self.refuse(identity, key, "dropped", str(error))
        self.used.add((*identity, key))
        self.counts[kind, "used"] += 1
        return config

    def refuse(self, identity, key, what, why):
        """Say why a launch is tuned live; in strict mode that is a failure."""
        self.counts[identity[0], what] += 1
        line = f"AUTOTUNE_REPLAY_{what.upper()} kernel={identity[1]} key={key} reason={why}"
        self.report(line)
        if self.strict:
            raise ReplayError(line)
        return None


class CacheView:
    """Stands before one tuner's cache. `inner` is the tuner's own: a dict or a ConfigCache."""

    def __init__(self, tuner, inner, session):
        self.tuner, self.inner, self.session = tuner, inner, session
        self.known = {}     # typed key -> config: what this process has already read
        self.rejected = {}  # typed key -> None: looks untuned until it is set again
        self.origin = {}    # typed key -> replayed | tuned | fallback | cached
        self.last = None    # typed key of the read that the launch under way rests on
        self.unproven = False  # that config has not been launched yet in this process

    @functools.cached_property
    def identity(self):
        """(kind, qualified kernel name, digest of its source, digest of its configs)."""
        tuner, function = self.tuner, self.tuner.base_fn
        kind = "autotune" if type(tuner) is Autotuner else "libtuner"
        source = inspect.getsource(function)  # not JITFunction.cache_key: for some kernels it holds addresses
        configs = ",".join(sorted(str(c) for c in tuner.configs))
        return (kind, f"{function.__module__}.{function.__qualname__}",
                hashlib.sha256(source.encode()).hexdigest(), hashlib.sha256(configs.encode()).hexdigest())

    def __contains__(self, key):
        typed = type_key(key)
        if typed in self.known:
            return True
        if typed in self.rejected:
            return False
        return self.replay(key, typed) or key in self.inner

    def replay(self, key, typed):
        """Take the record's config for `key`, if there is one. Asked once per key: afterwards it is known."""
        if self.session.source is None or typed in self.origin:
            return False
        config = self.session.find(self.tuner, self.identity, codec.encode_key(key))
        self.origin[typed] = "replayed" if config else "cached"
        if config:
            self.known[typed] = config
        return config is not None

    def __getitem__(self, key):
        typed = type_key(key)
        config = self.known.get(typed)
        if config is None:
            config = self.known[typed] = self.inner[key]
            self.origin.setdefault(typed, "cached")
        if typed != self.last or self.unproven:
            self.last, self.unproven = typed, True
            self.last_key = key
        return config

    def __setitem__(self, key, config):
        typed = type_key(key)
        self.origin[typed] = "fallback" if self.rejected.pop(typed, 0) is None else "tuned"
        self.inner[key] = config
        self.known[typed] = config

    def get(self, key, default=None):
        return self[key] if key in self else default

    def __getattr__(self, name):  # whatever else a tuner does with its own cache
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def __iter__(self):
        return iter(self.inner)

    def reject(self, error):
        """The launch under way failed with `error`: if its config was replayed or stored, make it look untuned.

        True if the launch is worth a second try, which then tunes live.
        """
        if not self.unproven or self.origin.get(self.last) not in ("replayed", "cached"):
            return False
        stored = self.last_key in self.inner  # this row stays in the database until the new winner replaces it
        reason = f"compile_{type(error).__name__}" + ("_no_evict" if stored else "")
        self.bad = self.known.pop(self.last)
        self.rejected[self.last] = None
        self.unproven = False
        kind, kernel = self.identity[:2]
        self.session.counts[kind, "fallback"] += 1
        self.session.report(f"AUTOTUNE_REPLAY_FALLBACK reason={reason} kernel={kernel} key={codec.encode_key(self.last_key)}")
        if self.session.strict:
            raise ReplayError(f"REPLAY_STRICT: {kernel}: the replayed config failed ({reason})") from error
        return True

    @contextlib.contextmanager
    def exclude_bad(self):
        """Inside the `with`, the rejected config is no candidate, and LibTuner measures instead of reading old timings.

        Its benchmark table still says that the bad config was the fastest; tuning from it would choose that again.
        """
        tuner, configs = self.tuner, self.tuner.configs
        tuner.configs = [c for c in configs if not codec.same_config(c, self.bad)] or configs
        policy = getattr(tuner, "policy", None)
        if policy is not None:
            tuner.policy = lambda bench, candidates, args, kwargs: policy(
                lambda config: tuner._bench(*args, config=config, **kwargs), candidates, args, kwargs)
        try:
            yield
        finally:
            tuner.configs = configs
            if policy is not None:
                del tuner.policy

    def prove(self):
        """The launch under way worked: check the config that it really used, and record it."""
        self.unproven = False
        wanted, used = self.known[self.last], self.tuner.best_config
        if not codec.same_config(wanted, used):
            raise ReplayError(f"{self.identity[1]}: launched {used}, the cache says {wanted}")
        if self.origin[self.last] == "replayed":
            hooked = [c for c in self.tuner.configs if c.pre_hook is not None and codec.same_config(c, used)]
            if hooked and used.pre_hook is None:
                raise ReplayError(f"{self.identity[1]}: {used}: was replayed without its pre_hook")
        if self.session.record is not None:
            best = (getattr(self.tuner, "configs_timings", None) or {}).get(used)
            best_ms = best[0] if isinstance(best, (list, tuple)) else best
            tuned = self.origin[self.last] in ("tuned", "fallback")
            self.session.record.put(self.identity, codec.encode_key(self.last_key), codec.encode_config(used),
                                    self.origin[self.last], best_ms if tuned else None)


def type_key(key):
    """`key` so that 1, True and 1.0 differ, and 0.0 and -0.0."""
    types = tuple(map(type, key))
    return (repr(key), types) if float in types else (key, types)


def install(session):
    """Put a CacheView before the cache of every tuner, those made already and those to come; returns an undo."""
    classes = [Autotuner, *find_subclasses(Autotuner)]
    originals = [(cls, cls.__dict__["run"]) for cls in classes if "run" in cls.__dict__]

    def read_cache(tuner):
        cache = tuner.__dict__["cache"]
        if type(cache) is not CacheView:
            cache = tuner.__dict__["cache"] = CacheView(tuner, cache, session)
        return cache

    def write_cache(tuner, cache):
        tuner.__dict__["cache"] = cache

    def wrap_new_class(cls, **more):
        super(Autotuner, cls).__init_subclass__(**more)
        if "run" in cls.__dict__:
            cls.run = wrap_run(cls.__dict__["run"])

    for cls, run in originals:
        cls.run = wrap_run(run)
    Autotuner.cache = property(read_cache, write_cache)
    Autotuner.__init_subclass__ = classmethod(wrap_new_class)

    def undo():
        for cls, run in originals:
            cls.run = run
        del Autotuner.cache, Autotuner.__init_subclass__
    return undo


def find_subclasses(cls):
    """All classes below `cls`: LibTuner of whatever package was really imported, and its policies."""
    return [c for direct in cls.__subclasses__() for c in (direct, *find_subclasses(direct))]


def wrap_run(run):
    """`run` of a tuner with a second, live-tuned try when a replayed or stored config fails."""
    @functools.wraps(run)
    def run_with_view(tuner, *args, **kwargs):
        if len(tuner.configs) < 2:  # nothing was chosen
            return run(tuner, *args, **kwargs)
        view = tuner.cache
        try:
            result = run(tuner, *args, **kwargs)
        except ReplayError:
            raise
        except Exception as error:
            if not view.reject(error):
                raise
            with view.exclude_bad():
                result = run(tuner, *args, **kwargs)
        if view.unproven:
            view.prove()
        return result
    return run_with_view
