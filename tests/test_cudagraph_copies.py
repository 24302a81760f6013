"""graph_timer's copies of an operator's inputs on a simulated card (fake_device.py): what they keep, what cannot be copied."""
import functools
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "plugins"), str(ROOT / "tests")]

from fake_device import Card  # noqa: E402
from graph_timer import plan, rotation, workload  # noqa: E402

MIB = 1 << 20


def on_card(fn):
    return rotation.find_tensors(fn, "cpu")


def test_copies_keep_strides_offsets_and_shared_memory():
    base = torch.arange(64.0)
    view, expanded, other = base[8:].view(7, 8).t(), torch.ones(4, 1).expand(4, 6), torch.full((3,), 5, dtype=torch.bool)
    args, kwargs = (view, [base, {"b": expanded}], 3), {"out": other}

    def op(*args, **kwargs):
        return args, kwargs
    fn = lambda: op(*args, **kwargs)  # noqa: E731
    found = on_card(fn)
    assert {id(t) for t in found.tensors.values()} == {id(view), id(base), id(expanded), id(other)}
    copies = rotation.Copies(Card(), found.tensors.values(), 3)
    (x, (y, inner), three), options = rotation.rebuild(fn, copies.make_tensors(2))()
    assert three == 3 and torch.equal(x, view) and torch.equal(y, base) and torch.equal(options["out"], other)
    assert (x.stride(), x.storage_offset() - y.storage_offset()) == (view.stride(), 8)
    assert inner["b"].stride() == (1, 0) and torch.equal(inner["b"], expanded)
    assert x.data_ptr() != view.data_ptr() and (x.data_ptr() - y.data_ptr()) == 32  # they still overlap
    y.zero_()
    assert float(x.abs().sum()) == 0 and float(view.sum()) > 0
    first, second = (copies.make_tensors(n)[id(base)].data_ptr() for n in (0, 1))
    assert (second - first) % 512 == 0


def test_copies_reach_into_partials_methods_and_nested_functions():
    x, weight = torch.ones(4), torch.full((4,), 2.0)
    inner = lambda y: y * weight  # noqa: E731
    fn = functools.partial(lambda f, *args: f(*args), inner, x)
    copies = rotation.Copies(Card(), on_card(fn).tensors.values(), 2)
    copy = rotation.rebuild(fn, copies.make_tensors(1))
    weight.zero_()
    assert copy().tolist() == [2.0] * 4


def test_state_of_a_module_is_no_copy():
    layer, x = torch.nn.Linear(4, 4), torch.ones(4)
    assert on_card(lambda: layer(x)).fixed == "the state of a Linear"
    assert on_card(lambda: layer.forward(x)).fixed == "the state of a Linear"


def test_sparse_and_subclassed_tensors_are_refused():
    for odd in (torch.eye(3).to_sparse(), torch.ones(2, dtype=torch.complex64).conj()):
        with pytest.raises(rotation.NotCopyable):
            rotation.check_copyable([odd])


def test_copies_of_inputs_that_need_gradients_are_leaves():
    x = torch.ones(3, requires_grad=True)
    copy = rotation.Copies(Card(), [x], 2).make_tensors(1)[id(x)]
    assert copy.is_leaf and copy.requires_grad and copy.data_ptr() != x.data_ptr()


def test_a_backward_pass_on_its_own_inputs_still_gets_leaves_of_its_own():
    # else its last step is the one that upstream's forward pass made, in the default stream, which no capture can reach
    x, other = torch.full((3,), 2.0, requires_grad=True), torch.full((3,), 5.0)
    op, args = torch.mul, (x, other)
    out, xs, grad = op(*args), [x], torch.full((3,), 10.0)
    fn = lambda: torch.autograd.grad((out,), xs, grad_outputs=(grad,), retain_graph=True)  # noqa: E731
    call = workload.Call(Card(), fn, (op, args, {}))
    copy = call.on({id(t): t for t in call.tensors})
    held = dict(zip(copy.__code__.co_freevars, (cell.cell_contents for cell in copy.__closure__)))
    made, leaves = held["out"], held["xs"]
    last = made.grad_fn.next_functions[0][0]
    assert last.variable is leaves[0] and leaves[0] is not x and leaves[0].is_leaf
    assert last is not out.grad_fn.next_functions[0][0]
    assert leaves[0].data_ptr() == x.data_ptr()  # warm: the same memory, no copy
    assert copy()[0].tolist() == [50.0] * 3


def test_tensors_of_another_device_are_left_alone():
    """The simulated card's are the host's; a meta tensor stands for the host's on a card, which no kernel of ours may read."""
    x, away, card = torch.ones(8), torch.ones(4, device="meta"), Card()
    args, seen = (x, away), []
    call = workload.Call(card, lambda: seen.append(args) or (x.clone(), away.clone()), (torch.add, args, {}))
    call.save_inputs(1 << 20)
    call.look((torch.ones(8), torch.ones(1024, device="meta")))
    assert (call.tensors, call.input_bytes, call.output_bytes, call.fixed) == ([x], 32, 32, "")
    workload.Workload(card, call, plan.Plan(2, 2, True, False, "flush")).run()
    assert [(a is x, b is away) for a, b in seen] == [(False, True)] * 2


def test_an_input_that_was_made_under_autograd_is_no_result_of_a_backward_pass():
    """As baddbmm's at level comprehensive: x @ (x @ y) was timed for x @ y, and what is not square could not be copied at all."""
    x, y = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True), torch.tensor([[5.0, 6.0], [7.0, 8.0]], requires_grad=True)
    args, card = (x, y.t().contiguous()), Card()
    call = workload.Call(card, lambda: torch.mm(*args), (torch.mm, args, {}))
    calls = workload.Workload(card, call, plan.Plan(2, 2, True, False, "flush")).calls
    assert [made().tolist() for made in calls] == [[[17.0, 23.0], [39.0, 53.0]]] * 2

    out, grad = torch.mm(*args), torch.ones(2, 2)  # and its backward pass is one
    fn = lambda: torch.autograd.grad((out,), list(args), grad_outputs=(grad,), retain_graph=True)  # noqa: E731
    call = workload.Call(card, fn, (torch.mm, args, {}))
    assert call.fixed == "" and call.backward is not None
    copy = workload.Workload(card, call, plan.Plan(2, 2, True, False, "flush")).calls[1]
    assert [g.tolist() for g in copy()] == [[[12.0, 14.0], [12.0, 14.0]], [[4.0, 4.0], [6.0, 6.0]]]


def test_a_copy_does_not_count_as_a_change_of_the_copies_before_it():
    x, card = torch.ones(4, requires_grad=True), Card()
    copies = rotation.Copies(card, [x], 3)
    first = copies.make_tensors(0)[id(x)]
    out = first * first  # saves it
    before = first._version
    copies.make_tensors(1)
    rotation.make_twin(card.seed, x, x.untyped_storage(), 0)
    assert first._version == before
    out.sum().backward()
    assert first.grad.tolist() == [2.0] * 4
