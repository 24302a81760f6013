"""What goes wrong on the host device, as errors a user can act on."""


class HostDeviceError(RuntimeError):
    """A mistake or a refusal: the message names the value and the mend.

    ``code`` is the exit code that fits: 2 for a bad value, 3 for an environment that is refused.
    """

    def __init__(self, message, code=3):
        super().__init__(message)
        self.code = code


class HostKernelError(RuntimeError):
    """A kernel failed while it was executed on the host; the message names the kernel and the program."""


class HostAccessError(HostKernelError):
    """A kernel touched memory that belongs to none of its arguments."""


class UnsupportedOnHost(NotImplementedError):
    """A kernel uses something that only a real device can execute (inline PTX, an unknown extern)."""
