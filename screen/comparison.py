"""Two screens, row by row: what is worse, and which latencies may be compared at all. Pure, but for reading the files.

compare_screens.py says what the verdicts mean. Nothing is compared silently: a row gets a ratio only where the timer, the
cache state and the card's model are known and the same on both sides; else its reason says what is not.
Requirements: the standard library.
"""

import csv
import math
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import INTEGRITY, REFUSED, UserError
from common.noise import read_single_band
from common.state import SCHEMA, read_json
from common.tablerow import find_doubt
from screen.facts import find_part, find_text, name_model
from screen.figures import SUMMARY_COLUMNS

DEFAULT_BAND, STEADY_TIMERS = 0.05, ("graph", "event")
ROW_KEY = ("repo", "op", "dtype", "mode", "shape")
# Equal ranks are neither worse nor better. A dismissed operator, or one that BUDGET left out, has none: that was a decision.
RANK = {"ok": 0, "partial": 1, "skipped": 1, "failed": 2, "timeout": 2, "crashed": 2, "not_found": 2, "interrupted": 2}
GAP = re.compile("launch gap ")  # between two processes it is a doubt, too


@dataclass
class Side:
    """One screen: ops {(repo, op): its first row}, rows {(repo, op, dtype, mode, shape): its rows, often one}, models
    {device: the card's model, "" where nothing names it}."""
    path: Path
    info: dict
    ops: dict = field(default_factory=dict)
    rows: dict = field(default_factory=dict)
    models: dict = field(default_factory=dict)

    def read_record(self, line):
        """The autotune.json of the attempt that `line` is of, {} if there is none."""
        record = read_json(self.path / line["repo"] / line["op"] / "attempts" / line["attempt"] / "autotune.json")
        return record if isinstance(record, dict) else {}

    def find_model(self, line):
        """The model of the card that `line` was measured on: what screen.json says of all cards, else a record."""
        device = line["device"]
        if not self.models.get(device):
            self.models[device] = name_model(self.info) or find_text(find_part(self.read_record(line), "meta"), "device")
        return self.models[device]


@dataclass
class Change:
    """One line of compare.csv; old and new are statuses or ms."""
    verdict: str
    repo: str
    op: str
    dtype: str = ""
    mode: str = ""
    timer: str = ""
    cache: str = ""
    shape: str = ""
    old: object = ""
    new: object = ""
    ratio: float = None
    torch_ratio: float = None
    band: float = None
    reason: str = ""


def read_side(path):
    """Side of a screen's directory or of a summary.csv. UserError if there is none (usage) or it is damaged (integrity)."""
    path = path / "summary.csv" if path.is_dir() else path
    csv.field_size_limit(sys.maxsize)   # a shape or an error may be of any length
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            names, lines = reader.fieldnames, list(reader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; name a screen that ended, or make its summary: "
                        f"make summarize RUN={path.parent}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: {error}; make it again: make summarize RUN={path.parent}", INTEGRITY) from None
    if tuple(names or ()) != SUMMARY_COLUMNS or any(None in (*line, *line.values()) for line in lines):
        raise UserError(f"{path}: is no whole summary.csv of schema {SCHEMA}; make it again: make summarize RUN={path.parent}",
                        INTEGRITY)
    bad = next((line for line in lines if line["row_status"] == "SUCCESS" and not has_times(line)), None)
    if bad:
        raise UserError(f"{path}: {bad['repo']}/{bad['op']}: {bad['latency_base_ms']!r}, {bad['latency_ms']!r}: "
                        f"are no latencies; make it again: make summarize RUN={path.parent}", INTEGRITY)
    info = read_json(path.with_name("screen.json"))
    side = Side(path.parent, info if isinstance(info, dict) else {})
    for line in lines:
        side.ops.setdefault((line["repo"], line["op"]), line)
        if line["row_status"]:
            side.rows.setdefault(tuple(line[name] for name in ROW_KEY), []).append(line)
    return side


def has_times(line):
    """True if a SUCCESS row has a latency, and torch's is one or empty."""
    try:
        times = [float(line[name]) for name in ("latency_ms", "latency_base_ms") if line[name] or name == "latency_ms"]
    except ValueError:
        return False
    return all(0 < time < math.inf for time in times)


# ---- operators

def compare_ops(old, new):
    """A Change per operator of either side."""
    return [judge_op(*key, old.ops.get(key), new.ops.get(key)) for key in sorted({**old.ops, **new.ops})]


def judge_op(repo, op, old, new):
    """Change of one operator, by the statuses and dtype fallbacks of its rows `old` and `new`; None where it is not there."""
    before, after = name_status(old), name_status(new)
    if old is None or new is None:
        return Change("new" if old is None else "missing", repo, op, old=before, new=after)
    ranks = [RANK.get(line["status"]) for line in (old, new)]
    if before == after:
        verdict = "same"
    elif None in ranks or (old["status"] == "interrupted" and ranks[1] < 2) or (new["status"] == "skipped" and ranks[0] > 0):
        verdict = "changed"
    elif ranks[0] != ranks[1]:
        verdict = "worse" if ranks[0] < ranks[1] else "better"
    else:   # the same status with another fallback: fewer dtypes than were asked for, or all again
        verdict = "changed" if old["status"] != new["status"] else "better" if not new["fallback"] else "worse"
    return Change(verdict, repo, op, old=before, new=after, reason=new["reason"] if after != "ok" else "")


def name_status(line):
    """`ok`, or `ok (own dtypes)` after a fallback; "" for None."""
    return "" if line is None else line["status"] + (f" ({line['fallback']} dtypes)" if line["fallback"] else "")


# ---- rows

def compare_rows(old, new, band=None, noise=None):
    """A Change per row of either side. Rows that share a key are told apart by their order.

    `band` holds for all rows; else `noise` names a noise.json. UserError for one that does not fit the card.
    """
    keys, bands, changes = list({**old.rows, **new.rows}), {}, []
    for key in keys:
        befores, afters = old.rows.get(key, []), new.rows.get(key, [])
        if befores and afters and len(befores) != len(afters):
            change = Change("not compared", *key[:4], afters[0]["timer"], afters[0]["cache"], key[4],
                            reason=f"{len(befores)} such rows against {len(afters)}")
            changes.append(change)
            continue
        for number in range(max(len(befores), len(afters))):
            before, after = (lines[number] if lines else None for lines in (befores, afters))
            line = after or before
            change = Change("", *key[:4], line["timer"], line["cache"], key[4] + (f" #{number + 1}" if number else ""))
            judge_row(change, before, after, old, new)
            if not change.verdict:
                method = new.find_model(line), line["timer"], line["cache"]
                if method not in bands:
                    bands[method] = find_band(*method, band, noise, len(keys))
                judge_times(change, before, after, bands[method])
            changes.append(change)
    mark_retuned(changes, old, new)
    return changes


def judge_row(change, old, new, old_side, new_side):
    """Set the verdict of a row whose latencies cannot be compared; "" is left where they can."""
    change.old, change.new = (line["row_status"] if line else "" for line in (old, new))
    change.reason = new["reason"] if new else ""
    if old is None or new is None:
        change.verdict = "new row" if old is None else "missing row"
    elif "SUCCESS" not in (change.old, change.new):
        change.verdict = "same"
    elif change.old != change.new:
        change.verdict = "better" if change.new == "SUCCESS" else "worse"
    elif why := find_difference(old, new, old_side, new_side):
        change.verdict, change.reason = "not compared", why


def find_difference(old, new, old_side, new_side):
    """Why the latencies of two rows must not be compared, or ""."""
    if "host" in (old["cache"], new["cache"]):
        return "the host device measures no time"
    for name in ("timer", "cache"):
        if old[name] != new[name]:
            return f"{name} {old[name] or 'not known'} against {new[name] or 'not known'}"
    models = old_side.find_model(old), new_side.find_model(new)
    if not all(models):
        return f"the card's model is not known of {'OLD' if not models[0] else 'NEW'} (screen.json, autotune.json)"
    if models[0] != models[1]:
        return f"{models[0]} against {models[1]}"
    if "replay forced from" in old["reason"] + new["reason"]:
        return "a record was replayed by force"
    return ""


def find_band(model, timer, cache, band, noise, rows):
    """The band for rows of one timer, or the text that says why there is none."""
    if band is not None:
        return band
    if not noise:
        return DEFAULT_BAND if timer in STEADY_TIMERS else f"no noise band for timer {timer}: give BAND or NOISE"
    try:
        return read_single_band(Path(noise), model, timer, cache, rows)
    except UserError as error:
        if error.code != REFUSED or "says nothing of" not in str(error):
            raise
        return str(error)


def judge_times(change, old, new, band):
    """Set verdict, ratios and reason of a row that has comparable latencies on both sides."""
    if isinstance(band, str):
        change.verdict, change.reason = "not compared", band
        return
    change.old, change.new = float(old["latency_ms"]), float(new["latency_ms"])
    change.ratio, change.band = change.new / change.old, band
    if old["latency_base_ms"] and new["latency_base_ms"]:
        change.torch_ratio = float(new["latency_base_ms"]) / float(old["latency_base_ms"])
    way = find_way(change.ratio, band)
    doubt = next((side["reason"] for side in (old, new) if find_doubt(side["reason"]) or GAP.search(side["reason"])), "")
    change.verdict = way
    if way != "same" and doubt:
        change.verdict, change.reason = "unclear", doubt
    elif way != "same" and change.torch_ratio and find_way(change.ratio / change.torch_ratio, band) != way:
        change.verdict, change.reason = "unclear", "torch's own latency moved alike"


def find_way(ratio, band):
    """slower, faster, or same: within the band."""
    return "slower" if ratio > 1 + band else "faster" if ratio < 1 / (1 + band) else "same"


def note_rows(ops, rows):
    """Say in the Changes of operators that both sides have how many of their rows are on one side only."""
    counts = Counter(((row.repo, row.op), row.verdict) for row in rows)
    for op in ops:
        gone, come = (counts[(op.repo, op.op), verdict] for verdict in ("missing row", "new row"))
        if (gone or come) and op.verdict not in ("missing", "new"):
            op.verdict = "changed" if op.verdict == "same" else op.verdict
            told = [f"{gone} rows gone"] * bool(gone) + [f"{come} rows new"] * bool(come)
            op.reason = "; ".join(filter(None, (op.reason, *told)))


def mark_retuned(changes, old, new):
    """Make rows unclear whose operator's tuner chose other configs: two runs that tuned by themselves differ by that."""
    found = {}
    for change in changes:
        if change.verdict in ("slower", "faster"):
            key = change.repo, change.op
            if key not in found:
                found[key] = count_retuned(read_configs(old, key), read_configs(new, key))
            if found[key]:
                change.verdict, change.reason = "unclear", f"tuned anew: {found[key]}"


def read_configs(side, key):
    """{(kernel, key): config} that the tuner chose in the attempt that counts; {} where there is no record."""
    entries = side.read_record(side.ops[key]).get("entries")
    entries = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return {(str(entry.get("kernel")), str(entry.get("key"))): entry.get("config") for entry in entries}


def count_retuned(old, new):
    """`3 of 18 configs differ`, or "" if none of those that both sides have does."""
    both = old.keys() & new.keys()
    differing = sum(old[key] != new[key] for key in both)
    return f"{differing} of {len(both)} configs differ" if differing else ""
