"""_term_style: colours only where they are wanted, and folding that loses nothing."""
import random
import sys

import pytest

from stub_tree import ROOT

sys.path.insert(0, str(ROOT / "plugins"))
from _term_style import fold_details, unfold, wants_colour  # noqa: E402


class Terminal:
    isatty = staticmethod(lambda: True)


@pytest.mark.parametrize(
    "stream, environ, colour",
    [
        (Terminal, {"TERM": "xterm"}, True),
        (Terminal, {"TERM": "dumb"}, False),
        (object, {}, False),
        (object, {"FORCE_COLOR": "1"}, True),
        (Terminal, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (object, {"PY_COLORS": "1", "NO_COLOR": "1"}, True),
    ],
)
def test_colour_rule_is_pytests(stream, environ, colour):
    assert wants_colour(stream, environ) is colour


# Folding --------------------------------------------------------------------------------------------------------


class Size(tuple):
    def __repr__(self):
        return f"torch.Size({list(self)})"


@pytest.mark.parametrize(
    "details, texts, legend",
    [
        ([[Size([8]), Size([4])], [Size([9]), Size([4])]],
         ["[torch.Size([8]), #1]", "[torch.Size([9]), #1]"], ["torch.Size([4])"]),
        ([([Size([8])], {"dim": -1}), ([Size([9])], {"dim": -1})],
         ["([torch.Size([8])], #1)", "([torch.Size([9])], #1)"], ["{'dim': -1}"]),
        ([([Size([8])], {"dim": 1, "out": Size([1])}), ([Size([8])], {"dim": 2, "out": Size([1])})],
         ["(#1, {'dim': 1, 'out': #2})", "(#1, {'dim': 2, 'out': #2})"], ["[torch.Size([8])]", "torch.Size([1])"]),
        ([[Size([8]), 1, None], [Size([9]), 1, None]],
         ["[torch.Size([8]), 1, #1]", "[torch.Size([9]), 1, #1]"], ["None"]),
        ([[Size([8]), Size([4])], None, [Size([9]), Size([4])]],
         ["[torch.Size([8]), #1]", "None", "[torch.Size([9]), #1]"], ["torch.Size([4])"]),
        ([[Size([8]), "float"]], ["[torch.Size([8]), 'float']"], []),
        ([[Size([8]), "float"]] * 2, ["[torch.Size([8]), 'float']"] * 2, []),
        ([[Size([8]), "a#1b"], [Size([9]), "a#1b"]], ["[torch.Size([8]), 'a#1b']", "[torch.Size([9]), 'a#1b']"], []),
        ([(Size([8]),), (Size([9]),)], ["(torch.Size([8]),)", "(torch.Size([9]),)"], []),
    ],
)  # fmt: skip
def test_fold_by_example(details, texts, legend):
    assert fold_details(details) == (texts, legend)


def test_fold_stops_at_one_digit():
    details = [[n, *(f"constant {k}" for k in range(12))] for n in range(2)]
    texts, legend = fold_details(details)
    assert legend == [f"'constant {k}'" for k in range(9)]
    assert texts[1] == "[1, #1, #2, #3, #4, #5, #6, #7, #8, #9, 'constant 9', 'constant 10', 'constant 11']"


def make_detail(rng, depth=0):
    kind = rng.choice(["size", "scalar", "list", "tuple", "dict"] if depth < 3 else ["size", "scalar"])
    if kind == "size":
        return Size(rng.randint(1, 99) for _ in range(rng.randint(0, 4)))
    if kind == "scalar":
        return rng.choice([None, True, 3, -1, 1e-05, 12345, float("inf"), "sum", "it's", 'a "b"', "a, b", "x\ny", "", "#1"])
    items = [make_detail(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    if kind == "dict":
        return {rng.choice(["dim", "out", "k"]) + str(n): item for n, item in enumerate(items)}
    return items if kind == "list" else tuple(items)


def change_some(rng, detail):
    """A copy of `detail` with some leaves, lengths or kinds changed."""
    if rng.random() < 0.15:
        return make_detail(rng, 2)
    if type(detail) in (list, tuple):
        return type(detail)(change_some(rng, item) for item in detail)
    if type(detail) is dict:
        return {key: change_some(rng, item) for key, item in detail.items()}
    return detail


def test_folding_loses_nothing():
    rng, folded = random.Random(20261130), 0
    for _ in range(4000):
        first = [make_detail(rng) for _ in range(rng.randint(1, 4))]
        details = [change_some(rng, first) if rng.random() < 0.9 else None for _ in range(rng.randint(1, 5))]
        texts, legend = fold_details(details)
        assert [unfold(text, legend) for text in texts] == [str(detail) for detail in details]
        assert all(len(meaning) > 3 and "#" not in meaning and "\n" not in meaning for meaning in legend)
        folded += bool(legend)
    assert folded > 500
