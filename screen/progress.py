"""What a screen says while it runs: one line per operator, and on a terminal a bar with the time left.

    [ 17/1188] ok       main/abs                     41.3 s  device 6
    [ 18/1188] failed   main/addmv                   92.0 s  device 7  RuntimeError: CUDA error (attempt 2)

Requirements: rich, only for the bar.
"""

import os
import shutil
import sys
import time

REFRESH = 0.25      # seconds between two updates of the bar


def say(text):
    """Print `text` as a line, at once.

    Where nobody reads any more (`| tee` that Ctrl-C ended, a lost terminal) it goes nowhere: a screen is not stopped by
    that, and its summary is still written.
    """
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class Progress:
    """Tells about `total` operators, of which `done` have their outcome from an earlier start."""

    def __init__(self, total, done):
        self._total, self._done, self._bar = total, done, None
        self._running = {}
        self._next = 0.0
        if sys.stdout.isatty() and total > done:
            self._bar, self._bar_id = _make_bar(total, done)

    def started(self, device, row, number):
        """Attempt `number` of the planned `row` started on `device`."""
        self._running[device] = (row.op if number == 1 else f"{row.op} (attempt {number})", time.monotonic())

    def freed(self, device):
        """The attempt on `device` ended."""
        self._running.pop(device, None)

    def ended(self, device, row, attempt, seconds):
        """The planned `row` has its outcome, by `attempt`, after `seconds` in all."""
        self._done += 1
        width = len(str(self._total))
        dtypes = f"dtypes: {','.join(attempt.dtypes) or 'its own'} (fallback: {attempt.fallback})" if attempt.fallback else ""
        notes = [part for part in (attempt.reason, dtypes, f"attempt {attempt.number}" if attempt.number > 1 else "") if part]
        self.note(f"[{self._done:>{width}}/{self._total}] {attempt.status:<9} {row.name:<32} {seconds:>7.1f} s  "
                  f"device {device}{'  ' if notes else ''}{'; '.join(notes)}")
        if self._bar:
            self._bar.update(self._bar_id, completed=self._done)

    def note(self, text):
        """Say `text` on a line of its own."""
        if self._bar:
            self._draw(lambda: self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True))
        else:
            say(text)

    def tick(self):
        """Called many times per second: redraw the bar now and then."""
        now = time.monotonic()
        if self._bar and now >= self._next:
            self._next = now + REFRESH
            text = "  ".join(f"{device}: {name} {now - since:.0f}s" for device, (name, since) in self._running.items())
            self._bar.update(self._bar_id, running=text[:max(20, shutil.get_terminal_size().columns - 60)])
            self._draw(self._bar.refresh)

    def close(self):
        """Leave the terminal as it was."""
        if self._bar:
            self._draw(self._bar.refresh)
        if self._bar:
            self._draw(self._bar.stop)
            self._bar = None

    def _draw(self, action):
        try:
            action()
        except OSError:         # the terminal is gone
            self._bar = None


def _make_bar(total, done):
    """(bar, its task), or (None, None) without rich."""
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress as RichProgress, TextColumn, TimeRemainingColumn
    except ImportError:
        return None, None
    # No thread of its own: children are forked with code of ours between fork and exec.
    bar = RichProgress(BarColumn(20), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=True),
                       TextColumn("{task.fields[running]}", markup=False), auto_refresh=False)
    task = bar.add_task("screen", total=total, completed=done, running="")
    bar.start()
    return bar, task
