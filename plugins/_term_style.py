"""How the plugins write: colours for a live terminal, and tables without what all their rows share.

Use:     style = TermStyle.for_stream(sys.stdout, os.environ); print(style.paint("SUCCESS", "good"))
         fold_details([[8, torch.Size([64])], [9, torch.Size([64])]])  ->  (["[8, #1]", "[9, #1]"], ["torch.Size([64])"])
Colours: the same rule as pytest's own, strongest first: PY_COLORS=1|0, NO_COLOR, FORCE_COLOR, is it a terminal.
         Where none is wanted, a text comes back as it is. run.log is stripped by run_pytest.sh in any case.
"""

CODES = {"title": "1", "good": "32", "bad": "1;31", "warn": "33", "dim": "2"}
MAX_SYMBOLS = 9  # one digit: replacing `#1` by its text can never hit a `#10`
MIN_FOLDED = 4  # characters; below that the symbol saves nothing


def wants_colour(stream, environ):
    """True if text written to `stream` may carry escape codes."""
    if environ.get("PY_COLORS") in ("0", "1"):
        return environ["PY_COLORS"] == "1"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return bool(getattr(stream, "isatty", lambda: False)()) and environ.get("TERM") != "dumb"


class TermStyle:
    """Paints words, or leaves them alone."""

    def __init__(self, colour):
        self.colour = colour

    @classmethod
    def for_stream(cls, stream, environ):
        return cls(wants_colour(stream, environ))

    def paint(self, text, name):
        """`text` in the style `name` (a key of CODES)."""
        return f"\033[{CODES[name]}m{text}\033[0m" if self.colour else text


def fold_details(details):
    """Replace what all rows share.

    `details`: one Size Detail per row (nested lists, tuples, dicts of sizes, dtypes, scalars, None; None for an
    unknown one). Returns (texts, legend): a text per row, and the texts behind #1, #2, ... An empty legend means
    that nothing was folded. Replacing the symbols gives str(detail) back, or nothing is folded.
    """
    plain = [str(detail) for detail in details]
    known = [detail for detail in details if detail is not None]
    if len({str(detail) for detail in known}) < 2 or any("#" in text for text in plain):
        return plain, []
    legend = []
    folded = iter(_fold_values(known, legend))
    texts = [str(None) if detail is None else next(folded) for detail in details]
    lossless = [unfold(text, legend) for text in texts] == plain
    return (texts, legend) if lossless else (plain, [])


def unfold(text, legend):
    """`text` with every `#N` replaced by legend[N - 1]."""
    for number, meaning in enumerate(legend, 1):
        text = text.replace(f"#{number}", meaning)
    return text


def _fold_values(values, legend):
    """Texts of `values`, one per row, all taken from the same place of the rows' details."""
    texts = [repr(value) for value in values]
    if len(set(texts)) == 1:
        return [_find_symbol(texts[0], legend)] * len(texts)
    first = values[0]
    kind = type(first)
    if kind not in (list, tuple, dict) or any(type(v) is not kind or len(v) != len(first) for v in values):
        return texts
    if kind is dict:
        if any(list(v) != list(first) for v in values):
            return texts
        columns = [_fold_values([v[key] for v in values], legend) for key in first]
        return ["{" + ", ".join(f"{k!r}: {t}" for k, t in zip(first, row)) + "}" for row in zip(*columns)]
    rows = [", ".join(row) for row in zip(*(_fold_values(list(column), legend) for column in zip(*values)))]
    if kind is list:
        return [f"[{row}]" for row in rows]
    return [f"({row},)" if len(first) == 1 else f"({row})" for row in rows]


def _find_symbol(text, legend):
    if len(text) < MIN_FOLDED or "\n" in text:
        return text
    if text not in legend:
        if len(legend) == MAX_SYMBOLS:
            return text
        legend.append(text)
    return f"#{legend.index(text) + 1}"
