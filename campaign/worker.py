"""worker.py - one step of a campaign: one fresh process group through run_pytest.sh, and a marker of how it ended.

    <step>/attempts/<n>/    claimed by run_pytest.sh: run.log, exit.json, tests.jsonl, index.tsv, ir/, autotune.json
    <step>/command.txt      the exact command, to be pasted into a shell at the project's root
    <step>/driver.log       what run_pytest.sh said
    <step>/.complete        {"status": "ok", "attempt": 1, "seconds": 9.1, "inputs_sha256": ..., "device_before": {...}, ...}
    status   ok | failed | crashed | timeout         an interrupted or killed step has no marker, and is run again

Every process has empty compile and tuner caches of its own (TUNER_CACHE=isolated), which is stricter than one per cell:
no cell can be served another's kernels. They are removed afterwards; the dumps in ir/ are what stays.
With WARM=1, the default, it is a fork of its cell's parent: one per cell and device, started with that cell's environment, which
has imported everything, has never touched the device and runs no test (warm/server.py). `warm` in the marker says whether it was.
A fork ends with its parent; that is no outcome of its task, and the step is run again, as a plain process.

Requirements: Linux; torch only in the child.
"""
import shlex
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from campaign.layout import SHAPES, attempt_dir, step_dir
from common.devices import apply_changes, child_environment
from common.errors import REFUSED, UserError
from common.inputs import list_knobs
from common.process import Child
from common.session import read_session
from common.state import read_json, read_marker, sha256_file, sha256_json, utc_now, write_marker, write_text_atomic
from common.switches import is_secret, list_switches
from common.trees import ROOT, VARIABLES
from warm.client import LOST, PLAIN

GRACE_S = 10.0
# Of the caller's environment these never reach a step: they would change what is run.
UNSET = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "TRITON_CACHE_DIR", "FLAGGEMS_CACHE_DIR", "FLAGGEMS_DB_URL", "RUN_DIR",
         "REPLAY_FROM", "SHAPES", "DEVICE", "HOST_TARGET", "ATTEMPT", "FALLBACK", "IR_META", "RUN_PYTEST", "DEVICES",
         "PYTHONHASHSEED")


@dataclass(frozen=True)
class Session:
    """What all steps of a run share. `probe`: a function that describes the state of a device now. `interrupts`
    (common/interrupts.py): counted while steps run. `pool`: the warm parents (warm/pool.py), or None."""
    run: Path
    run_id: str
    frozen: object
    tree: Path
    devices: tuple
    python: str
    run_pytest: Path
    environ: dict
    probe: object
    interrupts: object
    pool: object

    def device_of(self, task):
        """The one device on which all cells and rounds of a task run."""
        return self.devices[list(self.frozen.order).index(task) % len(self.devices)]


def list_settings(session, step):
    """{variable: value} that makes the step what it is; all else is the caller's environment without knobs."""
    manifest, task = session.frozen.manifest, session.frozen.tasks[step.task]
    timing = manifest.timing
    settings = {"REPO": manifest.source.repo, "PYTHON": session.python, "TUNER_CACHE": "isolated", "SEED": "0",
                "DTYPES": ",".join(task["dtypes"]), "DEVICE": session.device_of(step.task).name}
    if manifest.source.repo in VARIABLES:
        settings[VARIABLES[manifest.source.repo]] = str(session.tree)
    if step.is_tests:
        words = [*manifest.correctness_options.split(), *(["-k", task["k"]] if task["k"] else [])]
        settings |= {"SUITE": "tests", "PYTEST_EXTRA": " ".join(words)}
    else:
        settings |= {"SUITE": "benchmark", "IR_META": str(int(not step.is_recording)), "MODE": "kernel", "LEVEL": timing.level,
                     "CHECK_SHAPES": "0"}
        if manifest.has_times:
            settings |= {"TIMER": timing.timer, "CACHE": timing.cache}
        lengths = {"WARMUP_MS": timing.warmup_ms, "ITER_MS": timing.iter_ms}
        settings |= {name: str(value) for name, value in lengths.items() if value is not None}
        if (session.run / "frozen" / SHAPES).exists():
            settings["SHAPES"] = str(session.run / "frozen" / SHAPES)
        if not step.is_recording:
            settings |= {"REPLAY_STRICT": "1", "REPLAY_FROM": find_record(session.run, step)}
    return {**settings, **manifest.environment, **manifest.cells[step.cell], **task["environment"]}


def find_record(run, step):
    """The run directory that holds the configs to replay. "" where off has none: the step then cannot run."""
    marker = read_marker(step_dir(run, step.recording))
    return str(attempt_dir(run, step.recording, marker)) if marker else ""


def list_nodes(session, step):
    task = session.frozen.tasks[step.task]
    return task["tests"] if step.is_tests else task["benchmark"]


def digest_inputs(session, step):
    """Digest of all that decides the step: the frozen campaign, its settings and nodes, and the record it replays."""
    settings = list_settings(session, step)
    record = Path(settings.get("REPLAY_FROM") or "/nonexistent") / "autotune.json"
    return sha256_json([session.frozen.digest, settings, list_nodes(session, step), session.device_of(step.task).name,
                        sha256_file(record) if record.is_file() else None])


def is_done(session, step):
    """True if the step's marker is there and of these inputs."""
    marker = read_marker(step_dir(session.run, step))
    return marker is not None and marker["inputs_sha256"] == digest_inputs(session, step)


def drop_knobs(environ):
    """What of the caller's `environ` reaches every step."""
    unwanted = {*UNSET, *list_knobs()}
    return {name: value for name, value in environ.items() if name not in unwanted}


def list_callers_switches(environ, manifest):
    """{name: value} of those variables in the caller's `environ` that may change a compiler or a library and reach the steps."""
    return {name: value for name, value in list_switches(drop_knobs(environ)).items() if name not in manifest.environment}


def make_environment(session, device, settings):
    """The child's whole environment: no knob of the caller's reaches it."""
    kept = drop_knobs(session.environ)
    kept |= apply_changes({}, child_environment(device, kept, session.frozen.manifest.jobs))
    return {**kept, **settings}


def write_command(session, step, settings):
    """command.txt: the step by hand, with a run directory of its own, with the caller's switches but for secrets."""
    manifest = session.frozen.manifest
    switches = list_callers_switches(session.environ, manifest)
    public = {name: value for name, value in switches.items() if not is_secret(value)}
    device = apply_changes({}, child_environment(session.device_of(step.task), {}, manifest.jobs))
    shown = {**public, **device, **settings, "RUN_DIR": "/tmp/one-cell"}
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(shown.items())]
    command = ["./run_pytest.sh", session.frozen.tasks[step.task]["op"], *list_nodes(session, step)]
    write_text_atomic(step_dir(session.run, step) / "command.txt",
                      "env " + " \\\n    ".join(words) + " \\\n    " + " ".join(map(shlex.quote, command)) + "\n")


class RunningStep:
    """A step that runs. advance() is True once it has ended and its marker is written; `is_lost`: it ended with its warm parent,
    and has none."""

    def __init__(self, session, step):
        self.session, self.step = session, step
        self.folder = step_dir(session.run, step)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / ".complete").unlink(missing_ok=True)
        self.inputs, settings = digest_inputs(session, step), list_settings(session, step)
        write_command(session, step, settings)
        self.attempt = 1 + max((int(path.name) for path in (self.folder / "attempts").glob("[0-9]*")), default=0)
        self.run_dir = self.folder / "attempts" / str(self.attempt)
        task = session.frozen.tasks[step.task]
        self.limit = task["timeout_s"] or session.frozen.manifest.timeout_s
        self.device = session.device_of(step.task)
        self.before, self.started, self.start = session.probe(self.device), utc_now(), time.monotonic()
        self.is_late = self.is_told = self.is_lost = False
        env = make_environment(session, self.device, {**settings, "RUN_DIR": str(self.run_dir), "ATTEMPT": str(self.attempt)})
        arguments = [task["op"], *list_nodes(session, step)]
        if session.pool is not None and not task["environment"]:     # a parent has its cell's variables, no task's
            env |= session.pool.offer(self.device, session.frozen.manifest.source.repo, arguments, env, step.cell)
        self.is_warm = "WARM_FOLDER" in env
        self.child = Child([str(session.run_pytest), *arguments], cwd=ROOT, env=env, grace=GRACE_S,
                           tag=f"{session.run_id}/{step.name}/{self.attempt}", log=self.folder / "driver.log")

    def advance(self, now):
        if not self.is_late and not self.is_told and now - self.start > self.limit:
            self.is_late = True
            self.child.end(now)
        if not self.child.advance(now):
            return False
        shutil.rmtree(self.run_dir / "cache", ignore_errors=True)
        if not self.is_told:
            self.finish()
        return True

    def end(self, now):
        """Stop it without a marker."""
        self.is_told = True
        self.child.end(now)

    def finish(self):
        status, detail = self.find_status()
        log = self.run_dir / "run.log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if self.is_warm and log.exists() else ()
        self.is_lost = status == "crashed" and LOST in lines
        if self.is_lost:
            return
        self.is_warm = self.is_warm and not any(line.startswith(PLAIN) for line in lines)
        write_marker(self.folder, status, self.inputs, attempt=self.attempt, started=self.started, detail=detail,
                     returncode=self.child.returncode, seconds=round(time.monotonic() - self.start, 1), warm=self.is_warm,
                     settings=list_settings(self.session, self.step), nodes=list_nodes(self.session, self.step),
                     device_before=self.before, device_after=self.session.probe(self.device))

    def find_status(self):
        """(status, detail). UserError REFUSED where run_pytest.sh refused to start, or could not write (a full disk): that is
        no outcome of the task."""
        if self.is_late:
            return "timeout", f"stopped at its limit of {self.limit} s"
        said = (self.folder / "driver.log").read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
        if not self.run_dir.is_dir():
            raise UserError(f"{self.step.name}: run_pytest.sh did not start: {said[-1]}", REFUSED)
        if 0 <= self.child.returncode <= 128 and not (self.run_dir / "exit.json").exists():     # it writes it but after a signal
            raise UserError(f"{self.step.name}: run_pytest.sh could not write {self.run_dir}/exit.json: {said[-1]}; free some "
                            f"space if the disk is full: the same command goes on", REFUSED)
        return describe_end(self.run_dir, self.child.returncode)


def describe_end(run_dir, returncode=None):
    """(ok | failed | crashed, detail) of a run directory whose process has ended."""
    found, session = read_json(Path(run_dir) / "exit.json"), read_session(run_dir)
    exit_ = found.get("pytest_exit") if isinstance(found, dict) else None
    if exit_ is None:
        return "crashed", "pytest never ended by itself" + (f" (status {returncode})" if returncode is not None else "")
    if session and session.started and session.exit is None:
        return "crashed", "pytest was ended from inside, before its session was done"
    return ("ok", "") if exit_ == 0 else ("failed", f"pytest's exit status is {exit_}")
