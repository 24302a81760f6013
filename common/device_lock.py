#!/usr/bin/env python3
"""device_lock.py - one user per physical device and host: who times on a device holds its lock.

USAGE    with hold_devices(devices, environ, run) as held:      children get {**environ, **held}
         device_lock.py COMMAND [ARGUMENT ...]   takes the first device selected, shows COMMAND it alone (DEVICE and the
                                                 vendor's variable) and becomes COMMAND; what that leaves running holds on
INPUT    DEVICES and the vendor's variable (devices.py).  GEMSCREEN_HELD   what a caller of ours holds: not asked for again
         GEMSCREEN_LOCKS   where the locks lie (/tmp: all users of a machine have it, whatever their TMPDIR)
OUTPUT   /tmp/gemscreen-device-<uuid, or vendor and name>.lock, by flock:
         {"pid": ..., "host": ..., "started": ..., "directory": ...}
EXIT     COMMAND's own; 3 naming the device and its holder
NEEDS    Linux, the standard library; torch in the child that devices.py asks.
LIMITS   Containers with a /tmp each do not see each other. Programs other than ours do not ask. Host slots are no devices.
"""
import contextlib
import os
import re
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.devices import apply_changes, child_environment, select_devices
from common.errors import UserError, run_main
from common.state import take_lock

HELD = "GEMSCREEN_HELD"


@contextlib.contextmanager
def hold_devices(devices, environ, directory, check=""):
    """Hold the locks of `devices` inside a `with`; gives the variable that tells children so.

    UserError REFUSED, beginning with `check`, names the device that is in use, its user's process and directory.
    """
    descriptors = []
    try:
        for descriptor in take_devices(devices, environ, directory, check):
            descriptors.append(descriptor)
        yield name_held(devices, environ)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def take_devices(devices, environ, directory, check=""):
    """Yields the descriptor of each lock as it is taken."""
    for device in devices:
        if not device.is_host and device.identity not in _read_held(environ):
            name = re.sub(r"[^\w-]", "_", device.identity)
            yield take_lock(Path(environ.get("GEMSCREEN_LOCKS") or "/tmp") / f"gemscreen-device-{name}.lock",
                            f"{check}device {device.name}", "wait for it, end it, or select other devices: DEVICES=...",
                            mode=0o666, directory=str(directory))


def name_held(devices, environ):
    """{HELD: the devices that are held now}."""
    own = {device.identity for device in devices if not device.is_host}
    return {HELD: " ".join(sorted(own | _read_held(environ)))}


def _read_held(environ):
    return set(environ.get(HELD, "").split())


def main(argv):
    if not argv or argv[0].startswith("-"):
        raise UserError("COMMAND: missing; usage: device_lock.py COMMAND [ARGUMENT ...]")
    device = select_devices(os.environ, sys.executable)[0]
    for descriptor in take_devices([device], os.environ, os.getcwd()):
        os.set_inheritable(descriptor, True)
    environ = apply_changes(os.environ, child_environment(device, os.environ))
    environ |= {"DEVICE": device.name, "DEVICES": device.name, **name_held([device], os.environ)}
    os.execvpe(argv[0], argv, environ)


if __name__ == "__main__":
    run_main(main)
