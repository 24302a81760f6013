"""pins.py - ops/mthreads_guards.csv: which guards may be dropped on Moore Threads.

    # comment lines say where the list was scanned
    schema,repo,file,reason,guards,status,date,device,commit,note
    1,main,benchmark/test_fft.py,CUDA is not available,decorator:test_perf_fft,unverified,,,,
    1,main,benchmark/test_x.py,CUDA required,module:,verified,2026-10-09,MTT S5000,ed2508b,runs/s5000/main/x: ok

A pin names one file and one exact skip reason. `guards` is what the scan saw there (form:scope;...), for the reader.
status: unverified (a candidate of the scan, never applied), verified (somebody dropped it on a card, the test passed,
and date, device and commit say when, where and with which tree), left (deliberately never dropped; note says why).
"""
import csv
import io
from dataclasses import asdict, dataclass, fields
from pathlib import Path

SCHEMA = "1"
STATUSES = ("unverified", "verified", "left")

# Never dropped, whatever a pin says: file name -> why. _mthreads_guard_plugin.py's text names both as well.
LEFT_IN_PLACE = {
    "test_grid_sample.py": 'its input helper\'s device defaults to the literal "cuda": unskipped, all 90 cases fail in '
                           "aten::empty",
    "test_cutlass_scaled_mm.py": "its guard asks for vLLM as well: without vLLM there is nothing to run",
}


@dataclass
class Pin:
    schema: str
    repo: str
    file: str
    reason: str
    guards: str
    status: str
    date: str
    device: str
    commit: str
    note: str

    def find_fault(self):
        """What is wrong with the pin, or "": an unknown value, or verified without evidence."""
        if self.schema != SCHEMA:
            return f"schema: {self.schema}: unknown; this version reads {SCHEMA}"
        if self.status not in STATUSES:
            return f"status: {self.status}: unknown; valid are {', '.join(STATUSES)}"
        if not self.repo or not self.file or not self.reason:
            return "repo, file and reason must be given"
        lacking = [name for name in ("date", "device", "commit") if not getattr(self, name)]
        if self.status == "verified" and lacking:
            return f"verified without {', '.join(lacking)}; give the evidence or set status to unverified"
        if self.status == "verified" and Path(self.file).name in LEFT_IN_PLACE:
            return f"verified, but {LEFT_IN_PLACE[Path(self.file).name]}; set status to left"
        if self.status == "left" and not self.note:
            return "left without a note; say why it stays"
        return ""

    def applies(self):
        """True if the guard may be dropped: verified, with its evidence, and not deliberately left."""
        return self.status == "verified" and not self.find_fault()


COLUMNS = [field.name for field in fields(Pin)]


def read_pins(path):
    """[(line number, Pin)] of the file. ValueError "FILE: what is wrong" if it is no such table; OSError if unreadable."""
    lines = [(number, line) for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1)
             if line.strip() and not line.startswith("#")]
    if not lines or next(csv.reader([lines[0][1]])) != COLUMNS:
        raise ValueError(f"{path}: has no header {','.join(COLUMNS)}")
    pins = []
    for number, line in lines[1:]:
        values = next(csv.reader([line]))
        if len(values) != len(COLUMNS):
            raise ValueError(f"{path}: line {number}: {len(values)} values for {len(COLUMNS)} columns")
        pins.append((number, Pin(*values)))
    return pins


def format_pins(comments, pins):
    """The file's text: comment lines, header, rows sorted by repo, file and reason."""
    text = io.StringIO()
    text.writelines(f"# {comment}\n" for comment in comments)
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(pin) for pin in sorted(pins, key=lambda pin: (pin.repo, pin.file, pin.reason)))
    return text.getvalue()
