"""shape_uses.py - ops/shape_uses.csv: how each benchmark takes its shapes, and what is wrong with a shape file for them.

FORMAT   One row per op_name, class chain and form (scan_shapes.py writes it, merge_shapes.py and check_ops.py read it):
           schema,repo,op_name,classes,key,reads,default,counts,least,flat,note,source,where
           1,main,mm,BlasBenchmark;Benchmark,BlasBenchmark,yes,no,4,4,no,"b, m, n, k",ast,benchmark/test_mm.py:88
           1,main,topk,TopKBenchmark;...;Benchmark,Benchmark,no,no,2,2,no,"m, n",ast,benchmark/test_topk.py:50
         key     the key of the tree's core_shapes.yaml that it reads; empty: none
         reads   yes: shapes come from the file's key op_name, else the first of `classes` that is a key, else DEFAULT_SHAPES
                 no:  the class sets its shapes itself; a key for it changes nothing
                 fit: as yes, but shapes of another length are replaced by the class's own without a word
         default the class has DEFAULT_SHAPES of its own
         counts  numbers of values that it unpacks (`3;4`), empty: any;  least  at least so many;  flat  all are sizes
         source  ast, hand (ops/shape_hand.csv says it), unknown (nothing is checked)
HAND     ops/shape_hand.csv: schema,repo,key,counts,reason - what the source does not say plainly: `key` is an op_name or a
         class (the op_name wins, then the nearest class), counts `4`, `2;3` or `2+` (at least two). repo `*`: all repos.
NEEDS    The standard library.
"""

import csv
import io
from dataclasses import dataclass, replace
from pathlib import Path

from common.errors import UserError
from common.state import write_text_atomic
from ops.reading.shape_form import Form

OPS = Path(__file__).resolve().parent.parent
USES, HAND = OPS / "shape_uses.csv", OPS / "shape_hand.csv"
SCHEMA = "1"
COLUMNS = tuple("schema,repo,op_name,classes,key,reads,default,counts,least,flat,note,source,where".split(","))
HAND_COLUMNS = ("schema", "repo", "key", "counts", "reason")


@dataclass(frozen=True)
class Use:
    """One way a benchmark takes shapes. `classes`: its class and bases, nearest first; `op_name` "" if it is not literal."""

    op_name: str
    classes: tuple
    key: str
    reads: str
    has_default: bool
    form: Form
    source: str
    where: str

    def find_key(self, keys):
        """The key of a shape file that upstream's set_shapes takes for this use; None: DEFAULT_SHAPES."""
        return next((key for key in (self.op_name, *self.classes) if key and key in keys), None)

    def takes(self, key):
        """True if shapes under `key` must fit: always under its own name, else if it reads the file and replaces nothing."""
        return self.reads == "yes" or key == self.op_name

    def describe(self):
        return f"{self.op_name or self.classes[0]} ({self.classes[0]}, {self.where})"


@dataclass(frozen=True)
class Fault:
    """A shape that a use cannot take. `key` None: it comes from DEFAULT_SHAPES."""

    key: str | None
    shape: list
    text: str
    use: Use


def find_faults(uses, table, default=()):
    """Faults of a shape file's `table` {key: [shape, ...]}: what each use would get and cannot take.

    `default`: shapes where no key fits.
    """
    faults = []
    for use in uses:
        key = use.find_key(table)
        if key is None:
            shapes = default if use.reads == "yes" and not use.has_default else ()
        else:
            shapes = table[key] if use.takes(key) else ()
        for shape in shapes:
            text = use.form.find_fault(shape)
            if text:
                faults.append(Fault(key, shape, text, use))
    return faults


def find_set_faults(uses, table):
    """Faults of a set's `table` merged over upstream's keys, which the uses know; also for uses that set their own shapes."""
    faults = []
    for use in uses:
        key = use.find_key({*table, use.key})
        if key in table and use.takes(key):
            faults += [Fault(key, shape, text, use) for shape in table[key] if (text := use.form.find_fault(shape))]
    return faults


def group_faults(faults):
    """[(key, shape, text, [uses])]: one entry per shape and fault, in the order found."""
    grouped = {}
    for fault in faults:
        grouped.setdefault((fault.key, str(fault.shape), fault.text), (fault, []))[1].append(fault.use)
    return [(fault.key, fault.shape, fault.text, uses) for fault, uses in grouped.values()]


def name_uses(uses, most=3):
    """`mm (BlasBenchmark, benchmark/test_mm.py:88), ... and 5 more`."""
    more = f" and {len(uses) - most} more" if len(uses) > most else ""
    return ", ".join(use.describe() for use in uses[:most]) + more


# ---- tables

def read_table(path, columns, mend="see ops/README.md"):
    """[(line number, row)] of a CSV with exactly these columns; `#` lines are comments. UserError naming file and line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {mend}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no UTF-8 text ({error.reason} at byte {error.start}); {mend}") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    if not lines or tuple(next(csv.reader([lines[0][1]]))) != tuple(columns):
        raise UserError(f"{path}: has not the header {','.join(columns)}; {mend}")
    rows = []
    for number, line in lines[1:]:
        values = next(csv.reader([line]))
        if len(values) != len(columns):
            raise UserError(f"{path}: line {number}: {len(values)} values for {len(columns)} columns; {mend}")
        if values[0] != SCHEMA:
            raise UserError(f"{path}: line {number}: schema {values[0]!r}: this version reads {SCHEMA}; {mend}")
        rows.append((number, dict(zip(columns, values))))
    return rows


def parse_counts(text):
    """(counts, least) of `4`, `2;3`, `2+` or nothing. ValueError for anything else."""
    if text.endswith("+"):
        return (), int(text[:-1])
    counts = tuple(sorted(int(part) for part in text.split(";") if part))
    return counts, min(counts, default=0)


def read_uses(path, repo):
    """The uses of one repo. UserError for a file that is no such table."""
    uses = []
    for number, row in read_table(path, COLUMNS, "make it again: ops/scan_shapes.py"):
        if row["repo"] == repo:
            try:
                counts, least = parse_counts(row["counts"])[0], int(row["least"])
            except ValueError as error:
                raise UserError(f"{path}: line {number}: {error}; make it again: ops/scan_shapes.py") from None
            form = Form(counts, least, row["flat"] == "yes", row["note"], row["source"] != "unknown")
            uses.append(Use(row["op_name"], tuple(row["classes"].split(";")), row["key"], row["reads"],
                            row["default"] == "yes", form, row["source"], row["where"]))
    return uses


def write_uses(path, repo, uses):
    """Write the uses of `repo`; the rows of other repos stay as they are."""
    rows = [row for _, row in read_table(path, COLUMNS)] if Path(path).exists() else []
    rows = [row for row in rows if row["repo"] != repo] + [format_use(use, repo) for use in uses]
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(sorted(rows, key=lambda row: [row[name] for name in ("repo", "op_name", "classes", "where")]))
    write_text_atomic(path, text.getvalue())


def format_use(use, repo):
    form = use.form
    return {"schema": SCHEMA, "repo": repo, "op_name": use.op_name, "classes": ";".join(use.classes), "key": use.key,
            "reads": use.reads, "default": "yes" if use.has_default else "no",
            "counts": ";".join(map(str, form.counts)), "least": form.least,
            "flat": "yes" if form.flat else "no", "note": form.note, "source": use.source, "where": use.where}


def read_hand(repo, path=HAND):
    """{key: (Form)} of ops/shape_hand.csv for one repo. UserError for counts that are no numbers or a key given twice."""
    said = {}
    for number, row in read_table(path, HAND_COLUMNS):
        if row["repo"] not in ("*", repo):
            continue
        try:
            counts, least = parse_counts(row["counts"])
        except ValueError:
            raise UserError(f"{path}: line {number}: counts: {row['counts']}: give numbers, as 4, 2;3 or 2+") from None
        if row["key"] in said or not row["reason"]:
            raise UserError(f"{path}: line {number}: {row['key']}: is there twice, or gives no reason; mend the row")
        said[row["key"]] = Form(counts, least, False, row["reason"])
    return said


def apply_hand(uses, said):
    """The uses with what the hand table says, where the source itself unpacks no exact number."""
    result = []
    for use in uses:
        form = next((said[key] for key in (use.op_name, *use.classes) if key in said), None)
        if form is not None and not (use.form.known and use.form.counts):
            use = replace(use, form=replace(form, flat=use.form.flat), source="hand")
        result.append(use)
    return result
