"""refresh.py - run the sessions in examples/*.txt again, so that they stay true (`make examples`).

USAGE   python examples/refresh.py [NAME.txt ...]      all of them without names; about 5 minutes on the host device
INPUT   a session: narration, `$ command` lines, and below each command what it printed
OUTPUT  the same file with the output as it is today. What changes from run to run is evened out: stamps, durations,
        memory sizes, and the project's own place, which reads /home/you/gemscreen.
SAMPLE  Screen two operators.

        $ make screen OPS=abs,mm
        [1/2] ok        samples/abs                          7.7 s  device host:0
        (exit 0)
LIMITS  All commands of a session run in one fresh clone, with a HOME of their own; its .venv is this one's. A line of narration never begins with `$ `;
        output that does is not supported.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVEN_OUT = ((re.compile(r"\b20\d{6}T\d{6}Z"), "20261130T060000Z"), (re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "2026-11-30T06:00:00Z"),
            (re.compile(r" +\d+\.\d s\b"), "     7.0 s"), (re.compile(r"in \d+\.\d+s"), "in 7.00s"), (re.compile(r"\b(?:\d+ MB|\d+ GB)\b"), "70 GB"),
            (re.compile(r"^(SUCCESS +)\S+( +)\S+", re.M), r"\g<1>0.010000\g<2>7.000000"), (re.compile(r"\b[0-9a-f]{40}\b"), "0" * 40),
            (re.compile(r"seconds: \d+"), "seconds: 7"), (re.compile(r"pid \d+|process \d+"), "process 4711"))


def read_session(path):
    """[(narration, command)] of a session; the last command may be None. Output is dropped."""
    parts, narration, printing = [], [], False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("$ "):
            parts.append(("\n".join(narration), line[2:]))
            narration, printing = [], True
        elif printing:
            printing = not line.startswith("(exit ")  # that line ends a command's output
        else:
            narration.append(line)
    return [*parts, ("\n".join(narration), None)]


def run_command(command, clone, home):
    """What `command` prints in `clone`, evened out, and its exit status."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8", "COLUMNS": "120"}
    environ |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    done = subprocess.run(["bash", "-c", command], cwd=clone, env=environ, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    text = done.stdout.replace(str(clone), "/home/you/gemscreen").replace(str(ROOT), "/home/you/gemscreen").replace(str(home), "/home/you")
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
    """Run the session in `path` and write it anew."""
    with tempfile.TemporaryDirectory() as folder:
        clone, home = Path(folder) / "gemscreen", Path(folder) / "home"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        link_environment(ROOT / ".venv", clone / ".venv")
        home.mkdir()
        lines = []
        for narration, command in read_session(path):
            lines.append(narration)
            if command is not None:
                print(f"{path.name}: $ {command}", flush=True)
                output, status = run_command(command, clone, home)
                lines += [f"$ {command}", *filter(None, [output]), f"(exit {status})"]
    path.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(p.name for p in Path(__file__).parent.glob("*.txt"))
    for name in names:
        refresh(Path(__file__).parent / name)
