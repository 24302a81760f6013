"""examples/refresh.py on a small session, and what the committed sessions may hold."""
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

BEFORE = r"""A session.

$ echo '[1/2] ok        samples/abs                        123.4 s  device host:0'
old output
(exit 0)

A command that has no output yet.

$ exit 3

Narration below it.

$ printf 'SUCCESS             123.456789            1.234567    N/A\n1,"[torch.Size([4])]",0.1,17.5,,,,,,SUCCESS\n'; pwd; false
(exit 1)
The end.
"""
AFTER = r"""A session.

$ echo '[1/2] ok        samples/abs                        123.4 s  device host:0'
[1/2] ok        samples/abs                          7.0 s  device host:0
(exit 0)

A command that has no output yet.

$ exit 3
(exit 3)

Narration below it.

$ printf 'SUCCESS             123.456789            1.234567    N/A\n1,"[torch.Size([4])]",0.1,17.5,,,,,,SUCCESS\n'; pwd; false
SUCCESS               0.010000            7.000000    N/A
1,"[torch.Size([4])]",0.01,7,,,,,,SUCCESS
/home/you/gemscreen
(exit 1)
The end.
"""


def test_refresh_keeps_narration_and_columns_and_tells_of_failures(tmp_path):
    session = tmp_path / "session.txt"
    session.write_text(BEFORE)
    for status, text in ((1, "session.txt: $ exit 3: exit 3, and not 0\n"), (0, "")):     # the second time it is expected
        done = subprocess.run([sys.executable, ROOT / "examples/refresh.py", session], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (status, text)
        assert session.read_text() == AFTER


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.txt")), ids=lambda path: path.name)
def test_sessions_are_whole_and_name_no_machine(path):
    text = path.read_text()
    commands = [line for line in text.splitlines() if line.startswith("$ ")]
    assert commands and len(commands) == sum(line.startswith("(exit ") for line in text.splitlines())
    assert not [word for word in ("/tmp/", "/root/", "Traceback") if word in text.replace("FLAGGEMS_DIR=/tmp ", "")]
