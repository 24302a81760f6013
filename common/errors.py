"""Exit codes, and how a script ends when the user or the machine is at fault.

Use in a script:

    from common.errors import UserError, run_main

    def main(argv):
        raise UserError("SHAPES: /no/such.yaml: no such file; give an existing shape file")

    if __name__ == "__main__":
        run_main(main)          # stderr: "NAME: error: SHAPES: /no/such...", exit status 2

Requirements: the standard library. Limits: a real programming error keeps its traceback.
"""

import errno
import os
import sys

DONE, BAD_RESULT, USAGE, REFUSED, INTEGRITY, INTERRUPTED = 0, 1, 2, 3, 4, 130

# What an OSError of the machine means to the person who reads it, and what to do.
_MACHINE_ERRORS = {
    errno.ENOSPC: "no space left on the device; free some and start the same command again",
    errno.EDQUOT: "the disk quota is used up; free some and start the same command again",
    errno.EFBIG: "larger than files may become here; raise `ulimit -f` and start the same command again",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EACCES: "permission denied; make it accessible or choose another place",
    errno.EPERM: "not permitted; choose another place",
    errno.ENOENT: "no such file or directory; name another",
    errno.ENOTDIR: "a part of the path is no directory; choose another place",
    errno.EISDIR: "is a directory; name a file",
    errno.ELOOP: "is a link that leads back to itself; choose another place",
    errno.ENAMETOOLONG: "the name is too long; choose another one",
    errno.EIO: "input/output error; check the disk",
    errno.EMFILE: "too many open files; raise `ulimit -n`",
    errno.ENFILE: "too many open files on this machine; end some programs",
    errno.EAGAIN: "no more processes allowed; raise `ulimit -u` or end some programs",
    errno.ENOMEM: "out of memory; end some programs or use fewer devices",
}


class UserError(Exception):
    """A fault that the user can mend.

    The message reads "FILE-OR-VARIABLE: VALUE: what is wrong; mend". `code` is the exit status:
    USAGE (2), REFUSED (3, the environment does not allow it) or INTEGRITY (4).
    """

    def __init__(self, message, code=USAGE):
        super().__init__(message)
        self.code = code


def describe_os_error(error):
    """Text "FILE: what is wrong; mend" for an OSError of the machine, or None for any other one."""
    meaning = _MACHINE_ERRORS.get(error.errno)
    if meaning is None:
        return None
    return f"{error.filename}: {meaning}" if error.filename else meaning


def run_main(main):
    """Run `main(argv)` and exit with what it returns (None is 0). Never returns.

    UserError, a full disk and the like become one line on stderr without a traceback; Ctrl-C
    exits 130; a reader that went away (`| head`) ends the script quietly.
    """
    name = os.path.basename(sys.argv[0]) or "python"
    _open_closed()
    try:
        code = main(sys.argv[1:]) or DONE
        sys.stdout.flush()
    except UserError as error:
        code = _fail(name, str(error), error.code)
    except KeyboardInterrupt:
        code = _fail(name, "interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = BAD_RESULT
    except OSError as error:
        text = describe_os_error(error)
        if text is None:
            raise
        code = _fail(name, text, REFUSED)
    sys.exit(code)


def _open_closed():
    """Let stdin, stdout and stderr that the caller closed be /dev/null, so that no other file gets their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdout, sys.stderr = sys.stdout or open(1, "w", closefd=False), sys.stderr or open(2, "w", closefd=False)


def _fail(name, text, code):
    print(f"{name}: error: {text}", file=sys.stderr)
    return code
