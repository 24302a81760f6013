"""preflight.py - what a campaign refuses to start on. Each check has a name, and says it when it refuses.

    run_checks(context)      prints `check NAME: ok` for each; UserError "check NAME: what is wrong; mend" at the first

    run-unsealed       the run root, or a directory above it, is a sealed run
    frozen-unchanged   a file of the frozen directory changed (exit 4)
    tools-unchanged    the driver, run_pytest.sh, a plugin or the inventory is not what was frozen (exit 4)
    source-commit      the tree is not at the manifest's commit
    source-clean       the tree differs from its commit
    targets-resolved   a benchmark or test node of the frozen matrix is not in the tree
    versions           a package is missing or of another version than the manifest says
    switch-unset       a switch variable is set in the caller's environment
    switches-same      a campaign goes on, and of the variables that change a compiler or a library (TRITON_*, ...) one that
                       reaches all cells is not as it was when the campaign was started (exit 4: campaign.json does not say)
    caches-cold        the caller's environment names a compile or tuner cache that is not empty
    device-single      not exactly the device (or as many as the manifest's `count`) is selected, or one of another vendor
    device-present     its product name is not the manifest's
    device-free        another process is on it
"""
import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from campaign import prepare
from campaign.device_state import list_users
from campaign.layout import CAMPAIGN, is_sealed, read_switches
from campaign.worker import list_callers_switches
from common.errors import INTEGRITY, REFUSED, UserError
from common.inputs import read_versions
from common.state import read_json, sha256_file
from common.switches import show_switch
from common.trees import find_commit, run_git

CACHES = ("TRITON_CACHE_DIR", "FLAGGEMS_CACHE_DIR")


@dataclass(frozen=True)
class Context:
    """What the checks look at. `devices` are those selected, `facts` describe them, by name."""
    run: Path
    frozen: object
    tree: Path
    devices: list
    facts: dict
    python: str
    environ: dict


def run_checks(context, checks=None):
    """CHECKS, or those of `checks`. UserError "check NAME: ..." at the first that refuses."""
    for name, check in (checks or CHECKS).items():
        problem, *code = check(context) or (None,)
        if problem:
            raise UserError(f"check {name}: {problem}", code[0] if code else REFUSED)
        print(f"check {name}: ok", flush=True)


def check_unsealed(context):
    if is_sealed(context.run):
        return f"{context.run}: is sealed, or lies in a sealed run; name another: RUN=runs/NAME",


def check_frozen(context):
    changes = prepare.find_changed(context.frozen.path)
    if changes:
        return f"{context.frozen.path}: {'; '.join(changes)}; prepare again and start a new run", INTEGRITY


def check_tools(context):
    now = prepare.digest_tools()
    changed = sorted(name for name in now.keys() | context.frozen.tools.keys() if now.get(name) != context.frozen.tools.get(name))
    inventory = prepare.find_inventory(context.frozen.manifest, context.environ)
    if sha256_file(inventory) != read_json(context.frozen.path / "tools.json")["inventory"]:
        changed.append(str(inventory))
    if changed:
        return f"{changed[0]}: is not what was frozen ({len(changed)} such files); prepare again and start a new run", INTEGRITY


def check_commit(context):
    wanted = context.frozen.manifest.source.commit
    found = find_commit(context.tree, context.environ)
    if wanted and found != wanted:
        return (f"{context.tree}: is at {found or 'an unknown commit'}, the manifest says {wanted}; check that commit out, or "
                f"set FLAGGEMS_COMMIT for a copy without .git"),


def check_clean(context, untracked="normal"):
    top = run_git(context.tree, "rev-parse", "--show-toplevel")
    if not context.frozen.manifest.source.commit or not top or Path(top).resolve() != context.tree.resolve():
        return None  # the sample tree is among the frozen tools; a copy without .git cannot be asked
    changes = (run_git(context.tree, "status", "--porcelain", f"--untracked-files={untracked}") or "").splitlines()
    if changes:
        return f"{context.tree}: {changes[0].strip()} and {len(changes) - 1} more differ from its commit; commit or stash them",


def check_targets(context):
    defined = {}
    for task, target in context.frozen.tasks.items():
        for node in (*target["benchmark"], *target["tests"]):
            if not prepare.is_defined(context.tree, node, defined):
                return f"{task}: {node}: is not in {context.tree}; correct the manifest and prepare again",


def check_versions(context):
    found = read_versions(context.python, context.environ)
    for package, wanted in context.frozen.manifest.versions.items():
        installed = found.get(package, "")
        if not re.fullmatch(re.escape(wanted) + r"(\+.*)?", installed):
            return f"{package}: {installed or 'not installed'} in {context.python}, the manifest says {wanted}; install it",


def check_switch(context):
    for name in context.frozen.manifest.switches:
        if name in context.environ:
            value = show_switch(context.environ[name])
            return f"{name}={value}: is set in the environment; unset it, the cells set it themselves",


def check_switches(context):
    if not read_json(context.run / CAMPAIGN):
        return None
    before, now = read_switches(context.run), list_callers_switches(context.environ, context.frozen.manifest)
    if before is None:
        return f"{context.run / CAMPAIGN}: its `switches` are no table of texts; put back a copy, or start a new run", INTEGRITY
    changed = [f"{name} (is {show_switch(now.get(name))}, was {show_switch(before.get(name))})"
               for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    if changed:
        return f"{', '.join(changed)}: not as when the campaign was started, and all cells get it; set and unset as it was then",


def check_caches(context):
    for name in CACHES:
        folder = context.environ.get(name)
        if folder and os.path.isdir(folder) and os.listdir(folder):
            return f"{name}={folder}: is not empty; unset it, every process gets an empty cache of its own",


def check_single(context):
    wanted = context.frozen.manifest.device
    if [device.vendor for device in context.devices] != [wanted.vendor] * wanted.count:
        names = ", ".join(f"{device.name} ({device.vendor})" for device in context.devices)
        return f"DEVICES: {names or 'none'}: the manifest wants {wanted.count} of {wanted.vendor}; name it: DEVICES=0",


def check_present(context):
    wanted = context.frozen.manifest.device.product
    for name, facts in context.facts.items():
        found = facts.get("name")
        if found is None:
            print(f"check device-present: {name}: this vendor's tools cannot be asked; its name goes unchecked")
        elif not re.search(wanted, found):
            return f"{name}: is {found}, the manifest says {wanted}; choose another device",


def check_free(context):
    for device in context.devices:
        users = list_users(device, context.environ)
        if users is None:
            print(f"check device-free: {device.name}: this vendor's tools cannot be asked; other users go unseen")
        elif users:
            return f"{device.name}: is in use by process {', '.join(users)}; wait for it, or choose another device",


CHECKS = {"run-unsealed": check_unsealed, "frozen-unchanged": check_frozen, "tools-unchanged": check_tools,
          "source-commit": check_commit, "source-clean": check_clean, "targets-resolved": check_targets,
          "versions": check_versions, "switch-unset": check_switch, "switches-same": check_switches, "caches-cold": check_caches,
          "device-single": check_single, "device-present": check_present, "device-free": check_free}
# What must hold at the end, too: a tree that changed meanwhile is not what was measured. Tests may leave files of their own.
AT_THE_END = {"frozen-unchanged": check_frozen, "tools-unchanged": check_tools, "source-commit": check_commit,
              "source-clean": functools.partial(check_clean, untracked="no"), "targets-resolved": check_targets}
