"""What a screen.json says of its screen, in words for people: when, on which cards, with what, from which trees.

    list_facts(info)            ["created 2026-11-30T06:29:00Z", "devices 0, 1: NVIDIA H200", "driver 570.86",
                                 "torch 2.11.0, ...", "main at ed2508bcb5a0"]
    list_differences(old, new)  ["main at ed2508bcb5a0 -> 84bb1901e22f", "torch 2.10.0 -> 2.11.0", "DTYPES float16 -> -"]

    describe_machine()          {"driver": "570.86.15", "harness": gemscreen's own commit}, as screen.json has them

`info` is screen.json's content, {} where there is none. What lacks or has another type is left out, never guessed.
Requirements: the standard library, git.
"""

from pathlib import Path

from common.switches import join_switches, show_switch
from common.trees import ROOT, find_commit

# Of the kernel modules that drive a card; torch says nothing of them.
DRIVERS = ("nvidia", "mtgpu", "amdgpu", "metax")
# Of `versions`, in this order; the others tell builds apart.
PACKAGES = ("torch", "triton", "flagtree", "flag_gems", "flaggems_vllm", "python")
COMMIT_LENGTH = 12
SAMPLES = "samples"     # the tree that comes with gemscreen: it has gemscreen's commit


def describe_machine():
    """{"driver": version of the cards' kernel module, "harness": commit of gemscreen}, "" for what is not known."""
    versions = [Path(f"/sys/module/{name}/version") for name in DRIVERS]
    driver = next((path.read_text(encoding="utf-8").strip() for path in versions if path.is_file()), "")
    return {"driver": driver, "harness": find_commit(ROOT, {})}


def list_facts(info):
    """What `info` says, as short texts."""
    versions, facts = find_part(info, "versions"), []
    if find_text(info, "created"):
        facts.append(f"created {info['created']}")
    devices = info.get("devices")
    if isinstance(devices, list) and devices:
        models = ", ".join(list_models(info))
        facts.append("devices " + ", ".join(map(str, devices)) + (f": {models}" if models else ""))
    facts += [f"driver {info['driver']}"] if find_text(info, "driver") else []
    named = [f"{name} {versions[name]}" for name in PACKAGES if find_text(versions, name)]
    facts += [", ".join(named)] if named else []
    switches = find_part(info, "switches")
    facts += [f"switches {join_switches(switches)}"] if switches else []
    return facts + [_describe_tree(info, repo) for repo in find_part(info, "repos")]


def list_differences(old, new):
    """What two screens do not share, but for their dates, as short texts."""
    before, after = _flatten(old), _flatten(new)
    if "switches" in old and "switches" in new:     # an older screen.json does not say
        before, after = ({name: show_switch(value) for name, value in find_part(info, "switches").items()} | flat
                         for info, flat in ((old, before), (new, after)))
    found = []
    for label in {**before, **after}:
        sides = before.get(label) or "", after.get(label) or ""     # unset is empty
        if sides[0] != sides[1]:
            is_text = all(isinstance(side, str) for side in sides)
            found.append(f"{label} {sides[0] or '-'} -> {sides[1] or '-'}" if is_text else label)
    return found


def list_models(info):
    """The models of the screen's cards, each once."""
    models = info.get("models")
    return [model for model in models if isinstance(model, str) and model] if isinstance(models, list) else []


def name_model(info):
    """The model that all cards of the screen are of, "" if there are several or `info` does not say."""
    models = list_models(info)
    return models[0] if len(models) == 1 else ""


def find_part(info, name):
    """The dict `name` of `info`, {} if there is none."""
    part = info.get(name)
    return part if isinstance(part, dict) else {}


def find_text(info, name):
    """The text `name` of `info`, "" if there is none."""
    text = info.get(name)
    return text if isinstance(text, str) else ""


def _describe_tree(info, repo):
    tree = find_part(find_part(info, "repos"), repo)
    commit, changed = find_text(tree, "commit")[:COMMIT_LENGTH], find_text(tree, "changes")
    if not commit and repo == SAMPLES:
        own = find_text(info, "harness")[:COMMIT_LENGTH]
        return f"sample tree of gemscreen {own}".rstrip()
    return f"{repo} at {commit or 'an unknown commit'}" + (" (changed, or a copy without .git)" if commit and changed else "")


def _flatten(info):
    """{label: value} of what a figure may depend on; a value that is no text is compared, not shown."""
    devices, flat = info.get("devices"), {}
    for repo, tree in find_part(info, "repos").items():
        tree = tree if isinstance(tree, dict) else {}
        flat[f"{repo} at"] = find_text(tree, "commit")[:COMMIT_LENGTH]
        flat[f"{repo}'s files outside benchmark/ and tests/"] = [tree.get("changes")]
    if isinstance(devices, list):
        flat["devices"] = ",".join(map(str, devices))
        flat["cards"] = ",".join(list_models(info))
    versions = find_part(info, "versions")
    flat |= {name if isinstance(value, str) else f"build of {name}": value for name, value in versions.items()}
    flat |= {"driver": find_text(info, "driver"), "gemscreen": find_text(info, "harness")[:COMMIT_LENGTH]}
    return flat | find_part(info, "knobs")
