"""ledger.py - which compiled kernels were loaded, and how often each was launched in which phase.

Triton's own hooks say it: kernel_load_end_hook gives (function handle, name, files, hash) once per loaded variant, also
where it came from a warm compile cache; launch_enter_hook gives the function handle at every launch, whoever launched
(plain JITFunction, Autotuner, FlagGems' LibEntry). The first hook stays; the second is taken out of Triton's chain to
stop counting, and then a launch costs what it costs without this plugin.
"""
import collections
from dataclasses import dataclass, field

PHASES = ("construction", "tuning", "warmup", "measured", "baseline")
OWN = "gemscreen_"  # kernels of this project's timers: not the benchmark's


class HooksMissing(RuntimeError):
    """This Triton has no hook chains where they are needed."""


@dataclass
class Variant:
    """One compiled form of a kernel: `files` are those of the compile cache, by name."""
    name: str
    hash: str
    files: dict
    launches: collections.Counter = field(default_factory=collections.Counter)


class Ledger:
    """Counts the launches of this process by variant and phase."""

    def __init__(self, runtime_knobs):
        for name in ("kernel_load_end_hook", "launch_enter_hook"):
            if not hasattr(getattr(runtime_knobs, name, None), "add"):
                raise HooksMissing(f"triton.knobs.runtime.{name} is no chain of hooks")
        self.runtime = runtime_knobs
        self.variants = {}  # hash -> Variant
        self.functions = {}  # function handle -> Variant
        self.unknown = {}  # name -> Counter of launches whose function no load hook has announced
        self.phase = "construction"
        self.tuning_depth = 0
        self.loads = None  # the list that stop_counting returned, while nothing is counted

    def install(self):
        self.runtime.kernel_load_end_hook.add(self.note_load)
        self.start_counting("construction")

    def remove(self):
        self.runtime.launch_enter_hook.remove(self.note_launch)
        self.runtime.kernel_load_end_hook.remove(self.note_load)

    def start_counting(self, phase):
        """Count every launch from here on as one of `phase` (a tuner's trials are `tuning` all the same)."""
        self.phase, self.loads = phase, None
        self.runtime.launch_enter_hook.add(self.note_launch)

    def stop_counting(self):
        """Nothing of ours runs at a launch from here on. Returns the list that gets the variants loaded meanwhile."""
        self.runtime.launch_enter_hook.remove(self.note_launch)
        self.loads = []
        return self.loads

    def note_load(self, module, function, name, metadata_group, hash):
        """Triton's kernel_load_end_hook."""
        variant = self.variants.get(hash) or Variant(name, hash, dict(metadata_group))
        self.functions[function] = variant
        if name.startswith(OWN):
            return
        self.variants[hash] = variant
        if self.loads is not None:
            self.loads.append(variant)

    def note_launch(self, launch_metadata):
        """Triton's launch_enter_hook. Reads .data, since .get() would run the kernel's own launch_metadata function."""
        facts = launch_metadata.data
        variant = self.functions.get(facts["function"])
        launches = variant.launches if variant else self.unknown.setdefault(facts["name"], collections.Counter())
        launches["tuning" if self.tuning_depth else self.phase] += 1

    def count_phases(self):
        """Counter of all launches by phase."""
        counters = [v.launches for v in self.variants.values()] + list(self.unknown.values())
        return sum(counters, collections.Counter())
