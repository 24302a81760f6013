"""workload.py - what a replay calls: the callable, what it reaches and changes, and the copies that the plan asks for."""
import math

from . import plan, rotation


class Call:
    """A callable, what it reaches, and what a first few calls of it showed."""

    def __init__(self, device, fn, recipe):
        self.device, self.fn = device, fn
        self.kind = device.seed.device.type
        self.found = rotation.find_tensors(fn, self.kind)
        self.backward = None
        self.fixed = self.found.fixed
        self.tensors = list(self.found.tensors.values())
        try:
            if made := rotation.find_results(self.found, recipe):
                self.backward = rotation.BackwardCopies(fn, recipe, self.found, made, device.seed)
                self.tensors = list(self.backward.leaves.values())
            rotation.check_copyable(self.tensors)
        except rotation.NotCopyable as error:
            self.fixed, self.backward = str(error), None
        self.storages = rotation.list_storages(self.tensors)
        self.input_bytes = rotation.sum_bytes(self.storages)
        self.versions = [t._version for t in self.tensors]
        self.pristine, self.mutates, self.output_bytes = {}, False, 0

    def save_inputs(self, budget):
        """Keep a copy of the inputs, if it fits: only so can it be seen, and undone, that a call changes them."""
        if self.fixed:
            return
        if self.input_bytes <= budget:
            for address, storage in self.storages.items():
                self.pristine[address] = self.device.allocate(storage.nbytes())
                self.device.replicate(self.pristine[address], storage, storage.nbytes(), 0, 1)

    def look(self, output):
        """Note what one call returned and whether it changed its inputs; then undo that."""
        storages = rotation.list_storages(rotation.find_tensors(output, self.kind).tensors.values())
        self.output_bytes = rotation.sum_bytes({a: s for a, s in storages.items() if a not in self.storages})
        changed = [a for a, saved in self.pristine.items()
                   if self.device.differs(self.storages[a], saved, saved.nbytes())]
        self.mutates = bool(changed)
        if self.storages and not self.pristine:  # without a copy of them only torch's own operators tell
            self.mutates = [t._version for t in self.tensors] != self.versions
            self.fixed = self.fixed or f"inputs of {self.input_bytes / 2**20:.0f} MiB"
        self.restore()
        if not self.mutates:
            self.pristine = {}

    def restore(self):
        """Put the original inputs back as they were."""
        for address, saved in self.pristine.items():
            self.device.replicate(self.storages[address], saved, saved.nbytes(), 0, 1)

    def on(self, tensors):
        """The callable on {id(input): its copy}; a backward pass with a forward pass of its own in this stream."""
        return self.backward.make(tensors) if self.backward else rotation.rebuild(self.fn, tensors)

    def facts(self, call_ms, host_ms=0.0):
        return plan.Facts(call_ms, self.input_bytes, self.output_bytes, self.mutates, self.fixed, host_ms)


class Workload:
    """The calls of one replay, on copies of the inputs as the plan says; after a run() `host_ms` is the quickest call's time on
    the host."""

    def __init__(self, device, call, chosen):
        self.device, self.plan, self.call = device, chosen, call
        self.written, self.is_noted, self.host_ms = {}, False, math.inf
        self.outputs = self.copies = None
        if chosen.copies == 1 and not chosen.restore:
            self.calls = [call.on({id(tensor): tensor for tensor in call.tensors})]
            return
        self.copies = rotation.Copies(device, call.tensors, chosen.copies, call.pristine)
        self.calls = [call.on(self.copies.make_tensors(number)) for number in range(chosen.copies)]

    def prepare(self):
        """Outside the timed span: restore the inputs, then flush what that left in the L2."""
        if self.plan.restore and self.copies:
            self.copies.restore()
        if self.plan.flush:
            self.device.flush()

    def run(self):
        """All calls. As many outputs stay alive as there are copies, so that each call writes memory of its own."""
        outputs = [None] * len(self.calls)
        for number in range(self.plan.launches):
            slot = number % len(self.calls)
            if self.plan.how == "":  # warm: the same memory again
                outputs[slot] = None
            began = self.device.clock()
            outputs[slot] = self.calls[slot]()
            if not self.is_noted:
                self.host_ms = min(self.host_ms, 1e3 * (self.device.clock() - began))
                self._note(outputs[slot])
        self.outputs, self.is_noted = outputs, True

    def _note(self, output):
        for address, storage in rotation.list_storages(rotation.find_tensors(output, self.call.kind).tensors.values()).items():
            if address not in self.call.storages:
                self.written[address] = storage.nbytes()
