"""pipeline.py - the switch inside Triton 3.6.0's CUDA backend.

On 3.6.0 the hook that may replace a stage is in no cache key: with it alone the candidate is served off's kernels. So
the policy enters CUDABackend.hash (outside its lru_cache, which freezes the first answer), the options, and through
these the kernel's metadata. JITFunction, LibEntry and the tuners keep compiled kernels in memory without any of that:
one process is one cell, and a flip is an error at the next compile and at the end of each test.

Metadata of a compiled kernel: rlc_policy (the key), rlc_choice (stock, nocoalesce, late), rlc_converts_stock and
rlc_converts (static counts before and after), rlc_rejected (lowerings that failed, or empty).
"""
import contextlib
import dataclasses
import os
import tempfile
import threading

from .choice import STOCK, choose, describe_lowered, list_eligible
from .policy import SwitchError, read_policy

TRITON = "3.6.0"


class Switch:
    """The policy of this process, installed in Triton."""

    def __init__(self, policy):
        self.policy = policy
        self.lowering = threading.local()  # .active: [Lowering, calls so far]; Triton may compile on threads
        self.compiled = {}  # kernel hash -> (name, choice, converts stock, converts)

    def check(self):
        """The policy's key. SwitchError if the environment asks for another cell by now."""
        live = read_policy(os.environ)
        if live != self.policy:
            raise SwitchError(f"RLC_STOCK_ENHANCE, RLC_STOCK_PHASE_MASK: changed inside one process, from "
                              f"{self.policy.cell} to {live.cell if live else 'unset'}; kernels are kept in memory, "
                              "so give each cell a process of its own", 3)
        return self.policy.key

    # Lowering ---------------------------------------------------------------------------------------------------

    def wrap_passes(self, ttgpuir):
        """Make Coalesce and RemoveLayoutConversions obey the active Lowering; without one they are themselves."""
        add_coalesce, add_conversions = ttgpuir.add_coalesce, ttgpuir.add_remove_layout_conversions

        def add_coalesce_if_asked(pass_manager):
            active = getattr(self.lowering, "active", None)
            if active is None or active[0].coalesce:
                add_coalesce(pass_manager)

        def add_conversions_if_asked(pass_manager):
            active = getattr(self.lowering, "active", None)
            if active is not None:
                active[1] += 1
                if not all(active[0].calls[active[1] - 1:active[1]]):
                    return
            add_conversions(pass_manager)

        ttgpuir.add_coalesce = add_coalesce_if_asked
        ttgpuir.add_remove_layout_conversions = add_conversions_if_asked

    def lower(self, make_ttgir, module, metadata, lowering):
        """One Lowering of a kernel. Checks that the pipeline still is the one that the phases were made for."""
        self.lowering.active = active = [lowering, 0]
        try:
            lowered = make_ttgir(module, metadata)
        finally:
            self.lowering.active = None
        if active[1] != len(lowering.calls):
            raise SwitchError(f"triton: make_ttgir calls RemoveLayoutConversions {active[1]} times, expected "
                              f"{len(lowering.calls)}; this is not the pipeline of {TRITON}", 3)
        return describe_lowered(lowering, lowered, metadata)

    def make_stage(self, make_ttgir):
        """The replacement of the `ttgir` stage for mask0 and candidate."""

        def choose_ttgir(module, metadata):
            ttir, context, before = str(module), module.context, dict(metadata)
            eligible = list_eligible(ttir, self.policy.mask)
            stock = self.lower(make_ttgir, module, dict(before), STOCK)
            alternatives, rejected = [], []
            for lowering in eligible if stock.converts.static else ():
                try:
                    alternatives.append(self.lower(make_ttgir, parse_module(ttir, context), dict(before), lowering))
                except RuntimeError as error:  # Triton's own failures: this lowering is out, stock stands
                    rejected.append(f"{lowering.name}: {' '.join(str(error).split())[:200]}")
            chosen = choose(stock, alternatives)
            metadata.update(chosen.metadata, rlc_choice=chosen.name, rlc_converts_stock=stock.converts.static,
                            rlc_converts=chosen.converts.static, rlc_rejected="; ".join(rejected))
            return chosen.module

        return choose_ttgir

    # Identity ---------------------------------------------------------------------------------------------------

    def key_backend(self, nvidia):
        """Put the policy into the backend's hash and into its options."""
        backend = nvidia.CUDABackend
        compute_hash, parse = backend.hash, backend.parse_options
        Options = dataclasses.make_dataclass("RlcOptions", [("rlc_policy", str, "")], bases=(nvidia.CUDAOptions,),
                                             frozen=True)

        def parse_options(backend, options):
            stock = parse(backend, {k: v for k, v in options.items() if k != "rlc_policy"})
            values = {field.name: getattr(stock, field.name) for field in dataclasses.fields(stock)}
            return Options(**values, rlc_policy=self.check())

        backend.hash = lambda backend: f"{compute_hash(backend)}-{self.check()}"
        backend.parse_options = parse_options

    def note_compilation(self, src, metadata, metadata_group, **event):
        """Triton's compilation listener: also called for a kernel from the compile cache."""
        if metadata.get("rlc_policy") != self.policy.key:
            found = metadata.get("rlc_policy") or "no switch"
            raise SwitchError(f"kernel {metadata.get('name')}: compiled under {found}, this process is "
                              f"{self.policy.key}; the switch needs an NVIDIA target", 3)
        if self.policy.enhance and "rlc_choice" not in metadata and src.language.name == "TRITON":  # Gluon is left alone
            raise SwitchError(f"kernel {metadata.get('name')}: was lowered without the switch: something replaced "
                              "triton.knobs.runtime.add_stages_inspection_hook; remove that", 3)
        self.compiled[metadata["hash"]] = (metadata.get("rlc_choice", STOCK.name), metadata.get("rlc_converts_stock"),
                                           metadata.get("rlc_converts"))

    # Installing -------------------------------------------------------------------------------------------------

    def install(self):
        """Into the imported Triton. SwitchError for another version than TRITON."""
        import triton

        if triton.__version__ != TRITON:
            raise SwitchError(f"triton: {triton.__version__}: the switch is made for the pipeline of {TRITON} only; "
                              "install that, or unset RLC_STOCK_ENHANCE", 3)
        from triton import knobs
        from triton._C.libtriton import passes
        from triton.backends.compiler import Language
        from triton.backends.nvidia import compiler as nvidia

        self.key_backend(nvidia)
        knobs.compilation.listener = chain(knobs.compilation.listener, self.note_compilation)
        if self.policy.enhance:  # off stays Triton's own pipeline
            self.wrap_passes(passes.ttgpuir)

            def replace_stage(backend, stages, options, language, capability):
                if language == Language.TRITON and isinstance(backend, nvidia.CUDABackend):
                    stages["ttgir"] = self.make_stage(stages["ttgir"])

            runtime = knobs.runtime
            runtime.add_stages_inspection_hook = chain(runtime.add_stages_inspection_hook, replace_stage)


def chain(first, second):
    """A hook that calls `first` if there is one, then `second`."""
    if first is None:
        return second

    def both(*args, **kwargs):
        first(*args, **kwargs)
        second(*args, **kwargs)

    return both


def parse_module(text, context):
    """A second module from its text: Triton's binding has no clone(), and reads files only."""
    from triton._C.libtriton import ir

    descriptor, path = tempfile.mkstemp(suffix=".ttir")
    with contextlib.ExitStack() as stack:
        stack.callback(os.unlink, path)
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        module = ir.parse_mlir_module(path, context)
    module.context = context
    return module
