"""The repository itself: what a fresh clone gets, whatever the caller's git and Python are like."""
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import list_knobs

ROOT = Path(__file__).resolve().parent.parent
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "core.autocrlf=true"]


def git(cwd, *words):
    return subprocess.run([*GIT, *words], cwd=cwd, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", [
    "manifest.yaml", "matrix.csv", "receipt.json", "a.py", "a.sh", "Makefile", "index.tsv", "a.ttgir"])
def test_crlf_is_checked_out_as_lf(tmp_path, name):
    repository, clone = tmp_path / "r", tmp_path / "c"
    repository.mkdir()
    git(repository, "init", "-q")
    shutil.copy(ROOT / ".gitattributes", repository)
    (repository / name).write_bytes(b"one\r\ntwo\r\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "a file with CRLF")
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    assert (clone / name).read_bytes() == b"one\ntwo\n"


def make(*words):
    return subprocess.run(["make", "--no-print-directory", *words], cwd=ROOT, capture_output=True, text=True)


def test_make_alone_prints_help():
    done = make()
    assert done.returncode == 0
    assert "make screen" in done.stdout and "make test" in done.stdout


def test_unknown_knob_is_an_error():
    done = make("screen", "OP=abs")
    assert done.returncode == 2
    assert "OP: no such knob" in done.stderr


def test_unknown_target_is_an_error():
    done = make("scren")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "make: scren: no such target; `make` alone lists them"


def test_what_has_a_shebang_can_be_executed():
    names = git(ROOT, "ls-files").splitlines()
    files = [ROOT / name for name in names if (ROOT / name).is_file()]
    assert [f for f in files if (f.read_bytes()[:2] == b"#!") != bool(f.stat().st_mode & 0o100)] == []


def read_config(name):
    """{knob: default} of a script's config section."""
    section = (ROOT / name).read_text().partition("# ---- Config")[2].partition("# ---- End of config")[0]
    return dict(re.findall(r'^: "\$\{([A-Z_]+):?=([^}]*)\}', section, re.M))


def test_every_knob_is_in_the_readme_with_its_default():
    rows = re.findall(r"^\| (`[A-Z].*?) \| (.*?) \| (.*?) \|$", (ROOT / "README.md").read_text(), re.M)
    documented = {knob: (default, meaning) for knobs, default, meaning in rows for knob in re.findall(r"`([A-Z_]+)`", knobs)}
    configs = {**read_config("ab_test.sh"), **read_config("run_pytest.sh")}
    known = {*list_knobs(), *configs}
    assert sorted(known - set(documented)) == []
    others = set(documented) - known    # switches of plugins
    assert others <= set(re.findall(r"[A-Z_]{3,}", "".join(path.read_text() for path in (ROOT / "plugins").rglob("*.py"))))
    wrong = {knob: (default, documented[knob][0]) for knob, default in configs.items()
             if default and knob != "PLUGINS" and default not in documented[knob][0]}
    assert wrong == {}
    assert all(meaning for _, meaning in documented.values())


@pytest.mark.parametrize("name", ["run_pytest.sh", "ab_test.sh"])
def test_help_lists_the_knobs(name):
    done = subprocess.run([ROOT / name, "--help"], capture_output=True, text=True)
    listed = dict(re.findall(r"^KNOB     ([A-Z_]+)=(\S*)  \S", done.stdout, re.M))
    assert done.returncode == 0 and done.stdout.startswith(f"{name} - ")
    assert listed == {knob: default for knob, default in read_config(name).items() if knob != "PLUGINS"}


def test_the_map_in_the_readme_is_whole():
    shown = (ROOT / "README.md").read_text().partition("## Where things are")[2]
    entries = {name.partition("/")[0] + "/" * ("/" in name) for name in git(ROOT, "ls-files").splitlines()}
    entries = {name for name in entries if not name.startswith(".")} - {"README.md", "LICENSE"}
    assert sorted(name for name in entries if f"    {name} " not in shown) == []


def test_no_line_of_code_is_longer_than_130_columns():
    names = git(ROOT, "ls-files", "*.py", "*.sh").splitlines()
    lines = [(name, number, len(line)) for name in names if (ROOT / name).is_file()
             for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)]
    assert [f"{name}:{number}: {length} columns" for name, number, length in lines if length > 130] == []
