"""replay_log.py - whether a run's launches used the configs of the record that it was to replay, by its files alone.

_autotune_record_plugin ends a session with one line per tuner kind, and a run that ended otherwise has none:

    AUTOTUNE_REPLAY libtuner: used=3 unused=0 missed=0 fallback=0 dropped=0 from=other/autotune.json

Requirements: the standard library. Limits: broken content never raises; it is a fault.
"""
import re

from common.state import read_json

REPLAY = re.compile(r"^AUTOTUNE_REPLAY (\w+): (.*?) from=", re.M)
HARMLESS = ("used=", "unused=")  # every other outcome of a replay is a launch that did not use the record


def find_replay_fault(run_dir, text, is_recording):
    """What is wrong with record or replay in `run_dir`, whose run.log is `text`; "" if it recorded, or used the record in every
    launch."""
    record = read_json(run_dir / "autotune.json")
    if not isinstance(record, dict):
        return "autotune.json is missing or broken"
    if is_recording:
        return ""
    found = REPLAY.findall(text)
    for kind, outcomes in found:
        pairs = outcomes.split()
        odd = [pair for pair in pairs if not pair.startswith(HARMLESS) and not pair.endswith("=0")]
        if odd:
            return f"{kind}: {' '.join(odd)}"
        if "used=0" in pairs and "unused=0" not in pairs:
            return f"{kind}: used=0: no launch asked for the record"
    return "run.log says nothing of the replay" if record.get("entries") and not found else ""
