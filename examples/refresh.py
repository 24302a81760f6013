"""refresh.py - run the sessions in examples/*.txt again, so that they stay true (`make examples`).

USAGE   python examples/refresh.py [NAME.txt ...]      all of them without names; about 5 minutes on the host device
INPUT   a session: narration, `$ command` lines, and below each command what it printed, closed by `(exit N)`. A new command
        has nothing below it yet; that it exits with 0 is then what is expected.
OUTPUT  the same file with the output as it is today. What changes from run to run is evened out: stamps, durations, latencies,
        memory sizes, and the project's own place, which reads /home/you/gemscreen.
SAMPLE  Screen two operators.

        $ make screen OPS=abs,mm
        [1/2] ok        samples/abs                          7.0 s  device host:0
        (exit 0)
EXIT    0 every command ended with the status that the session had, 1 some did not: each is named, and the files are written
LIMITS  All commands of a session run in one fresh clone of what is committed, with a HOME of their own; its .venv is that of
        the Python that runs this. A line of narration or of output that begins with `$ ` is not supported.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pad(text):
    """A replacement that keeps what stands right of it in its column."""
    return lambda match: text.rjust(len(match[0]))


EVEN_OUT = ((re.compile(r"\b20\d{6}T\d{6}Z"), "20261130T060000Z"),
            (re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "2026-11-30T06:00:00Z"),
            (re.compile(r" +\d+\.\d s\b"), pad("7.0 s")), (re.compile(r"in \d+\.\d+s"), "in 7.00s"),
            (re.compile(r"\b(?:\d+ MB|\d+ GB)\b"), "70 GB"),
            (re.compile(r"^=+( .* in 7\.00s )=+$", re.M), lambda match: match[1].center(120, "=")),      # pytest's last line
            (re.compile(r"(?<=^SUCCESS) +\d\S+(?= +\d)", re.M), pad("0.010000")),      # run.log: the base's latency, then ours
            (re.compile(r"(?<=\b0\.010000) +\d\S+", re.M), pad("7.000000")),
            (re.compile(r"(\]\"?,)[\d.]+,[\d.]+(?=,,,,,,SUCCESS)"), r"\g<1>0.01,7"),    # summary.csv
            (re.compile(r"\b[0-9a-f]{40}\b"), "0" * 40), (re.compile(r"seconds: \d+"), "seconds: 7"),
            (re.compile(r"pid \d+|process \d+"), "process 4711"), (re.compile(r"(?<=\[Makefile:)\d+"), "50"))


def read_session(path):
    """[(narration, command, exit status it had)] of a session; the last command may be None. Output is dropped."""
    head, *rest = re.split(r"^\$ (.*)\n?", path.read_text(encoding="utf-8"), flags=re.M)
    parts, narration = [], head
    for command, below in zip(rest[::2], rest[1::2]):
        end = re.search(r"^\(exit (\d+)\)\n?", below, re.M)
        parts.append((narration, command, int(end[1]) if end else 0))
        narration = below[end.end():] if end else below
    return [*parts, (narration, None, None)]


def run_command(command, clone, home):
    """What `command` prints in `clone`, evened out, and its exit status."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8", "COLUMNS": "120"}
    environ |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    done = subprocess.run(["bash", "-c", command], cwd=clone, env=environ, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    text = done.stdout.replace(str(clone), "/home/you/gemscreen").replace(str(ROOT), "/home/you/gemscreen")
    text = text.replace(str(home), "/home/you")
    for pattern, stands_for in EVEN_OUT:
        text = pattern.sub(stands_for, text)
    return text.rstrip("\n"), done.returncode


def link_environment(own, place):
    """`place` holds links to what `own` holds, and is no link itself: should make build it anew, `own` stays whole."""
    place.mkdir()
    for entry in own.iterdir():
        if entry.name == ".complete":
            (place / entry.name).write_bytes(entry.read_bytes())
        else:
            (place / entry.name).symlink_to(entry)


def refresh(path):
    """Run the session in `path` and write it anew. Returns the commands that ended with another status, described."""
    text, surprises = "", []
    with tempfile.TemporaryDirectory() as folder:
        clone, home = Path(folder) / "gemscreen", Path(folder) / "home"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        link_environment(Path(sys.prefix), clone / ".venv")
        home.mkdir()
        for narration, command, expected in read_session(path):
            text += narration
            if command is not None:
                print(f"{path.name}: $ {command}", flush=True)
                output, status = run_command(command, clone, home)
                text += "\n".join([f"$ {command}", *filter(None, [output]), f"(exit {status})\n"])
                if status != expected:
                    surprises.append(f"{path.name}: $ {command}: exit {status}, and not {expected}")
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    return surprises


if __name__ == "__main__":
    folder = Path(__file__).parent
    sessions = [folder / name for name in sys.argv[1:]] or sorted(folder.glob("*.txt"))
    missing = [path for path in sessions if not path.is_file()]
    if missing:
        known = ", ".join(sorted(path.name for path in folder.glob("*.txt")))
        sys.exit(f"refresh.py: error: {missing[0]}: no such session; there are {known}")
    surprises = [line for session in sessions for line in refresh(session)]
    print(*surprises, sep="\n", end="\n" if surprises else "", file=sys.stderr)
    sys.exit(1 if surprises else 0)
