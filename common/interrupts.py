"""Ctrl-C, SIGTERM and a lost terminal: counted while children run, so that these are ended first, and none is lost: an exception
that a handler raises inside a hook of fork() is printed and forgotten.

Requirements: the standard library.
"""

import signal
import time

SAME_INTERRUPT = 0.5    # seconds; timeout(1) sends its signal to the process and then to its whole group


class Interrupts:
    """Ctrl-C, SIGTERM and a lost terminal. Inside `with` they are counted, before and after they raise."""

    def __init__(self):
        self.count, self._counting, self._last = 0, False, float("-inf")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:     # nohup, and shells' background jobs
                signal.signal(number, self._receive)

    def __enter__(self):
        self._counting = True

    def __exit__(self, *_):
        self._counting = False

    def _receive(self, *_):
        now = time.monotonic()
        if now - self._last > SAME_INTERRUPT:
            self.count += 1
        self._last = now
        if not self._counting:
            raise KeyboardInterrupt
