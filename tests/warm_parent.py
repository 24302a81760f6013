"""warm_parent.py - a warm parent in a folder, and `python -m pytest` through it or plainly, for the tests of warm/."""
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "warm" / "client.py"


class Parent:
    """warm/server.py in `folder`/warm, with an environment of its own, and what is run with the same one."""

    def __init__(self, folder, **environ):
        self.folder, self.warm = folder, folder / "warm"
        self.warm.mkdir(parents=True)
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "HOST_TARGET": "cuda:90", "OMP_NUM_THREADS": "2",
                        "PYTHONPATH": str(ROOT / "plugins"), "PYTHONUNBUFFERED": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                        "FLAGGEMS_CACHE_DIR": str(folder / "gems"), "TRITON_CACHE_DIR": str(folder / "triton"), **environ}
        (folder / "conftest.py").write_text("import os, host_device\nhost_device.install(host_device.read_target(os.environ))\n")
        with open(self.warm / "log", "wb") as log:
            self.process = subprocess.Popen([sys.executable, ROOT / "warm" / "server.py", self.warm], env=self.environ,
                                            cwd=self.warm, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True)
        (self.warm / "state").write_text(f"importing {self.process.pid}")

    def read_state(self):
        return (self.warm / "state").read_text()

    def await_state(self, *words, seconds=60):
        """The state once it begins with one of `words`."""
        deadline = time.monotonic() + seconds
        while not self.read_state().startswith(words):
            assert time.monotonic() < deadline, self.read_state() + (self.warm / "log").read_text()
            time.sleep(0.02)
        return self.read_state()

    def list_forks(self):
        """Pids of the parent's children that are alive."""
        return [int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()]

    def start(self, *arguments, warm=True, cwd=None, environ=None, **options):
        """`python -m pytest arguments` as a Popen with its output in one pipe."""
        env = {**self.environ, **(environ or {})}
        if warm:
            env |= {"WARM_FOLDER": str(self.warm)}
        launcher = [sys.executable, "-I", "-S", CLIENT, str(os.getpid())]
        return subprocess.Popen([*(launcher if warm else ()), sys.executable, "-m", "pytest", "-s", "-q",
                                 "-p", "no:cacheprovider", *arguments],
                                env=env, cwd=cwd or self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, start_new_session=True, **options)

    def run(self, *arguments, **options):
        """(returncode, output) of it."""
        process = self.start(*arguments, **options)
        output, _ = process.communicate(timeout=100)
        return process.returncode, output

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=20)
