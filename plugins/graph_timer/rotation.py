"""rotation.py - the tensors that a callable reaches, and callables like it on copies of them.

Upstream times `lambda: op(*args, **kwargs)`: the inputs are in the cells of its closure. A copy is one of whole
storages, in one arena per storage:

    storage of x  |abcd....|            arena  |abcd....|abcd....|abcd....|     each copy 512-aligned, as x is

so that strides, offsets, expanded and overlapping views, and two inputs that share memory stay what they are, and
Triton specialises alike. Nothing here calls an operator that FlagGems replaces.
"""
import functools
import types
from collections import deque

import torch

ALIGNMENT = 512  # the caching allocator's
MAX_DEPTH = 8


class NotCopyable(Exception):
    """A tensor that no copy can stand for; the text says which and why."""


class Found:
    """Tensors by id, and `fixed`: a word on state that is reached but cannot be copied ("" if there is none)."""

    def __init__(self):
        self.tensors, self.fixed, self.seen = {}, "", set()


def find_tensors(value, kind):
    """Found of all that `value` (a callable, a nested list, tuple, dict, a tensor) reaches on the device of type `kind`.

    A host tensor beside it (a scalar, lengths) is in no L2, and no kernel of ours can read it: Triton refuses its address, and
    the row would fail.
    """
    found, queue = Found(), deque([(value, 0)])
    while queue:
        item, depth = queue.popleft()
        if isinstance(item, torch.Tensor):
            if item.device.type == kind:
                found.tensors[id(item)] = item
        elif id(item) not in found.seen and depth < MAX_DEPTH:
            found.seen.add(id(item))
            queue.extend((child, depth + 1) for child in list_children(item))
            if isinstance(item, torch.nn.Module) and next(item.parameters(), None) is not None:
                found.fixed = f"the state of a {type(item).__name__}"
    return found


def list_children(value):
    """What rebuild() can replace inside `value`."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, types.FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if not is_empty(cell)]
    return []


def is_empty(cell):
    try:
        cell.cell_contents  # noqa: B018 - reading it is the test
    except ValueError:
        return True
    return False


def rebuild(value, tensors, depth=0):
    """`value` with every tensor t replaced by tensors[id(t)]; itself where nothing in it is replaced."""
    if isinstance(value, torch.Tensor):
        return tensors.get(id(value), value)
    if depth >= MAX_DEPTH:
        return value
    children = list_children(value)
    replaced = [rebuild(child, tensors, depth + 1) for child in children]
    if all(new is old for new, old in zip(replaced, children)):
        return value
    if isinstance(value, dict):
        return type(value)(zip(value, replaced))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*replaced)
    if isinstance(value, (list, tuple)):
        return type(value)(replaced)
    if isinstance(value, functools.partial):
        count = 1 + len(value.args)
        return functools.partial(replaced[0], *replaced[1:count], **dict(zip(value.keywords, replaced[count:])))
    if isinstance(value, types.MethodType):
        return value
    contents = iter(replaced)
    cells = tuple(cell if is_empty(cell) else types.CellType(next(contents)) for cell in value.__closure__)
    copy = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
    copy.__kwdefaults__ = value.__kwdefaults__
    return copy


def list_storages(tensors):
    """{address: storage} of the tensors' distinct storages that hold something."""
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            storages[storage.data_ptr()] = storage
    return storages


def sum_bytes(storages):
    return sum(storage.nbytes() for storage in storages.values())


class Copies:
    """`count` copies of the tensors' storages. `pristine` {address: buffer} is what restore() puts back."""

    def __init__(self, device, tensors, count, pristine=None):
        self.device, self.count = device, count
        self.originals = list(tensors)
        self.storages = list_storages(self.originals)
        self.pristine = pristine or {}
        self.arenas = {}
        for address, storage in self.storages.items():
            arena = device.allocate(align(storage.nbytes()) * count)
            self.arenas[address] = arena
            self._fill(address, self.pristine.get(address, storage))

    def _fill(self, address, source):
        size = self.storages[address].nbytes()
        self.device.replicate(self.arenas[address], source, size, align(size), self.count)

    def restore(self):
        """Put the inputs back into every copy."""
        for address, source in self.pristine.items():
            self._fill(address, source)

    def make_tensors(self, number):
        """{id(original): its copy number `number`}."""
        return {id(tensor): self._view(tensor, number) for tensor in self.originals}

    def _view(self, tensor, number):
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            return tensor
        offset = number * align(storage.nbytes()) // tensor.element_size() + tensor.storage_offset()
        return make_twin(self.device.seed, tensor, self.arenas[storage.data_ptr()], offset)


def make_twin(seed, tensor, storage, offset):
    """A tensor like `tensor`, a leaf like it, on `storage` at `offset` elements. `seed` is an empty one of its device.

    `.data` gives each twin a version counter of its own. A view shares its base's, and set_ counts as a change: the next
    twin would change all twins before it, and a backward pass refuses what was changed after its forward pass.
    """
    with torch.no_grad():
        twin = seed.data.view(tensor.dtype)
        twin.set_(storage, offset, tuple(tensor.size()), tuple(tensor.stride()))
    return twin.requires_grad_() if tensor.requires_grad else twin


def align(size):
    """`size` rounded up so that the next copy begins as the storage does."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def check_copyable(tensors):
    """Raise NotCopyable for a tensor that is more than its storage and shape."""
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise NotCopyable(f"a {type(tensor).__name__} of layout {tensor.layout}")
        if tensor.is_conj() or tensor.is_neg():
            raise NotCopyable("a tensor with a lazy conjugation")


def find_results(found, recipe):
    """The tensors that a backward pass begins with: reached, made under autograd, and no inputs of the recipe. (Inputs may be
    made so, too: baddbmm's second one is a transposed copy of a leaf.)"""
    made = [t for t in found.tensors.values() if t.grad_fn is not None]
    inputs = find_tensors(recipe, made[0].device.type).tensors if made else {}
    return [t for t in made if id(t) not in inputs] if recipe else []


class BackwardCopies:
    """Callables like upstream's backward one, each on a graph of its own.

    `fn` reaches `out` (made by op(*args, **kwargs)), its gradient and the inputs. A copy runs the forward pass again
    on copied inputs, in the stream of the measurement: autograd replays each step in the stream that made it.
    The last step of all is that of an input that wants a gradient, made with the first forward pass through it: upstream's,
    in the default stream. A capture that has to hand over to that stream fails ("would make the legacy stream depend on a
    capturing blocking stream"), so such an input gets a twin, a new leaf on the same memory, where no copy is asked for.
    """

    def __init__(self, fn, recipe, found, made, seed):
        self.fn, self.recipe, self.seed = fn, recipe, seed
        if len(made) != 1:
            raise NotCopyable(f"a backward pass through {len(made)} results")
        self.out = made[0]
        op, args, kwargs = recipe
        inputs = find_tensors((op, args, kwargs), seed.device.type).tensors
        self.leaves = {**inputs, **{i: t for i, t in found.tensors.items() if t is not self.out}}
        check_copyable(self.leaves.values())

    def make(self, tensors):
        """fn on the copies {id(leaf): copy}."""
        tensors = {i: self._free(t) if t is self.leaves.get(i) else t for i, t in tensors.items()}
        op, args, kwargs = rebuild(self.recipe, tensors)
        out = op(*args, **kwargs)
        return rebuild(self.fn, {**tensors, id(self.out): out})

    def _free(self, tensor):
        if not tensor.requires_grad:
            return tensor
        return make_twin(self.seed, tensor, tensor.untyped_storage(), tensor.storage_offset())
