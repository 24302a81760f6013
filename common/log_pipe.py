"""log_pipe.py - the way of pytest's output to the terminal and to run.log; started by run_pytest.sh (common/log_pipe.sh).

USAGE    log_pipe.py LOG MARK COLOUR
INPUT    stdin, until MARK (bytes that begin with \\x1e) or its end. What comes after MARK is no longer pytest's: a process
         that the tests left behind may hold the pipe for ever, and is not waited for.
OUTPUT   appended to LOG: the text free of escape codes, of what a progress bar overwrote, and of control characters.
         stdout: the same text, with COLOUR the bytes as they came. A reader that goes away (`| head`) does not cost the log.
LIMITS   MAX_LOG bytes; after that only the lines of benchmark tables are kept, MAX_TABLES bytes of them. A line of more
         than MAX_LINE bytes is taken in pieces.
EXIT     0; 1 if something could not be written: then stdin is read to its end all the same.
"""
import os
import re
import select
import sys
import time

MAX_LOG = 64 << 20
MAX_TABLES = 16 << 20
MAX_LINE = 1 << 20
FULL = b"run_pytest.sh: run.log is full (64 MiB): from here on it has only the lines of benchmark tables\n"
LEFT = b"run_pytest.sh: a process that the tests left behind still held their output\n"
CLOSE_S = 1.0       # seconds that the last holder of the pipe may take to close it

_TABLES = re.compile(rb"SUCCESS  |FAILED[ :]|Operator: |Legend: #|Status  |TIMER: |NOT MEASURED: ")
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
# Operating system and other strings, control sequences, two-character escapes.
_ESCAPES = re.compile(rb"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
                      rb"|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]")


def strip_codes(line):
    """`line` as a terminal would show it in the end."""
    if not _CONTROL.search(line):
        return line
    line = _ESCAPES.sub(b"", line).rstrip(b"\r")
    return _CONTROL.sub(b"", line.rpartition(b"\r")[2])


class Sink:
    """A file descriptor that is written to until it fails."""

    def __init__(self, descriptor):
        self.descriptor, self.is_open, self.error = descriptor, True, None

    def write(self, data):
        try:
            while data and self.is_open:
                data = data[os.write(self.descriptor, data):]
        except BrokenPipeError:
            self.is_open = False
        except OSError as error:
            self.is_open, self.error = False, error


class Text:
    """Bytes in, stripped lines out: as many as the log may have."""

    def __init__(self):
        self.pending, self.length, self.ends_line = b"", 0, True

    def add(self, data):
        """The whole lines of what came so far, stripped."""
        *lines, self.pending = (self.pending + data).split(b"\n")
        text = [self._limit(strip_codes(line) + b"\n") for line in lines]
        if len(self.pending) > MAX_LINE:
            text.append(self._limit(strip_codes(self.pending)))
            self.pending = b""
        return b"".join(text)

    def end(self):
        """What is left, with the newline that it lacks."""
        return self.add(b"\n" if self.pending or not self.ends_line else b"")

    def _limit(self, line):
        before, self.length = self.length, self.length + len(line)
        if self.length > MAX_LOG:
            first = before <= MAX_LOG
            if not _TABLES.match(line) or self.length > MAX_LOG + MAX_TABLES:
                self.length = max(before, MAX_LOG + 1)
                line = b""
            line = (FULL if self.ends_line else b"\n" + FULL) + line if first else line
        if line:
            self.ends_line = line.endswith(b"\n")
        return line


def read_until(mark):
    """The pieces of stdin before `mark`, or all of them."""
    held = b""
    while chunk := os.read(0, 1 << 16):
        data = held + chunk
        end = data.find(mark)
        if end >= 0:
            yield data[:end]
            return
        start = data.rfind(mark[:1], max(0, len(data) - len(mark)))
        if start >= 0 and not mark.startswith(data[start:]):
            start = -1
        held = data[start:] if start >= 0 else b""
        yield data[:start] if start >= 0 else data
    yield held


def is_held(mark):
    """True if somebody still has the other end of stdin open. The mark may come late, after the end that made it needless."""
    end, poller = time.monotonic() + CLOSE_S, select.poll()
    poller.register(0, select.POLLIN)
    while time.monotonic() < end:
        for _, event in poller.poll(50):
            data = os.read(0, 1 << 16) if event & select.POLLIN else b""
            if data != mark:
                return bool(data)
    return True


def main(log, mark, colour):
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    mark, text, terminal, file = os.fsencode(mark), Text(), Sink(1), Sink(os.open(log, flags, 0o644))
    for data in read_until(mark):
        plain = text.add(data)
        file.write(plain)
        terminal.write(data if colour else plain)
    plain = text.end() + (LEFT if is_held(mark) else b"")
    file.write(plain)
    terminal.write(plain if not colour else LEFT if plain.endswith(LEFT) else b"")
    for sink in (file, terminal):
        if sink.error is not None:
            print(f"{log if sink is file else 'stdout'}: {sink.error.strerror}", file=sys.stderr)
    return int(any(sink.error is not None for sink in (file, terminal)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
