"""test_autotune_record.py - record and replay with the real LibTuner, SQLite and Triton's compiler, on the host device.

Most tests look at a few pytest processes over autotune_kernels.py, started once each: `cold`, then `warm` on the same
database, then replays of `edited`, the cold record with other winners. On the host device BLOCK 64 wins every tuning;
512 never compiles; so 128 can only come out of a record or a database.
"""
import csv
import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from autotune_runs import Folder, choose_block, edit_record, find_tables

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "plugins"))

LIB, PLAIN = ("lib-64", "lib-100", "lib_hook-64"), ("plain-64", "plain-100", "plain_hook-64")


def choose_others(case, entry):
    """128 everywhere, which has a pre_hook in the hooked kernels; lib-64 lacks, lib-100 does not compile."""
    if case == "lib-64":
        return None
    return choose_block(entry, 512 if case == "lib-100" else 128, pre_hook="hook" in case)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("autotune"))


@pytest.fixture(scope="module")
def cold(folder):
    return folder.run("cold", TYPED="1", HOPELESS="1")


@pytest.fixture(scope="module")
def warm(folder, cold):
    """On the database of `cold`, in which another config is now the winner for lib-64, and one that fails for lib-100."""
    with sqlite3.connect(folder.path / "db") as database:
        table, bench = find_tables(database, "lib_kernel")
        database.execute(f"UPDATE '{table}' SET BLOCK=128 WHERE key_0=64")
        database.execute(f"UPDATE '{table}' SET BLOCK=512 WHERE key_0=100")
        # As if it had been the fastest once: tuning from this table would choose it again.
        assert database.execute(f"UPDATE '{bench}' SET p50=1e-6, p20=1e-6, p80=1e-6 WHERE BLOCK=512 AND key_0=100").rowcount == 1
    return folder.run("warm")


@pytest.fixture(scope="module")
def edited(folder, cold):
    return edit_record(cold.path, folder.path / "edited", choose_others)


@pytest.fixture(scope="module")
def replayed(folder, warm, edited):
    """Over the warm database."""
    return folder.run("replayed", REPLAY_FROM=str(edited))


# ---- record

def test_a_cold_run_records_every_tuned_launch(cold):
    assert set(cold.launched) == {*LIB, *PLAIN, "other-64"}
    assert set(map(tuple, cold.launched.values())) == {(64, 64)}
    for case in cold.launched:
        entry = cold.entries[case]
        assert (entry["origin"], entry["best_ms"], entry["config"]["kwargs"]) == ("tuned", 1.0, {"BLOCK": ["int", 64]})
        assert [text.partition(",")[0] for text in entry["failed"]] == ["BLOCK: 512"]
        assert entry["config"]["fields"]["num_warps"] == ["int", 2]
    assert {c: cold.entries[c]["kind"] for c in ("lib-64", "plain-64", "other-64")} == {
        "lib-64": "libtuner", "plain-64": "autotune", "other-64": "libtuner"}
    assert f"AUTOTUNE_RECORD libtuner=4 autotune=9 retuned=0 file={cold.path}/autotune.json" in cold.text


def test_the_record_says_where_it_was_made(cold):
    meta = json.loads((cold.path / "autotune.json").read_text())["meta"]
    assert (meta["device"], meta["capability"], meta["use_flagtune"]) == ("Host device (sm_90)", "9.0", "0")
    assert "backend='cuda', arch=90" in meta["target"] and meta["packages"]["flag_gems"] and len(meta["compiler"]) == 64
    assert meta["triton"].startswith(meta["triton_minor"] + ".")


def test_equal_keys_of_different_types_are_different_entries(cold):
    keys = [entry["key"] for entry in cold.entries.values() if "typed" in entry["kernel"]]
    record = json.loads((cold.path / "autotune.json").read_text())
    raw = [json.loads(e["key"])[0] for e in record["entries"] if "typed" in e["kernel"]]
    assert keys and raw == [["bool", True], ["int", 1], ["float", "0x1.0000000000000p+0"], ["float", "0x0.0p+0"],
                            ["float", "-0x0.0p+0"], ["NoneType", None]]


def test_no_config_at_all_is_said(cold):
    assert cold.code == 1 and "test_it.py::test_no_config_compiles - triton.compiler.errors.Compil" in cold.text
    said = r"AUTOTUNE_NO_VALID_CONFIG kernel=test_it.hopeless_kernel key=\S+ reason=none of 2 configs compiled"
    assert re.search(said, cold.text)
    assert not [case for case in cold.entries if case.startswith("hopeless")]


def test_a_warm_database_is_recorded_like_a_cold_one(cold, warm):
    assert warm.code == 0, warm.text
    assert set(warm.entries) == {case for case in cold.entries if not case.startswith("typed")}
    assert (warm.entries["lib-64"]["origin"], warm.entries["lib-64"]["best_ms"]) == ("cached", None)
    assert warm.launched["lib-64"] == [128, 128] and warm.entries["lib-64"]["config"]["kwargs"] == {"BLOCK": ["int", 128]}
    assert warm.entries["plain-64"]["origin"] == "tuned"  # its cache is of the process


def test_a_database_that_keeps_true_as_1_is_recorded_as_launched(folder):
    """As upstream's of 2026 does: here the column is made one of integers by hand."""
    words = "-k", "config_with_a_bool"
    first = folder.run("bool", *words, database="db-bool", BOOL="1")
    with sqlite3.connect(folder.path / "db-bool") as database:
        database.execute("PRAGMA writable_schema=ON")
        assert database.execute("UPDATE sqlite_master SET sql = replace(sql, '\"ON\" BOOLEAN', '\"ON\" BIGINT')").rowcount
    second = folder.run("bool-again", *words, database="db-bool", BOOL="1")
    assert (first.code, second.code) == (0, 0), second.text
    found = [run.entries["lib_bool-64"] for run in (first, second)]
    assert [(e["origin"], e["config"]["kwargs"]["ON"]) for e in found] == [("tuned", ["bool", True]), ("cached", ["bool", True])]


def test_a_stored_config_that_fails_is_tuned_once_and_replaced(folder, warm):
    assert warm.launched["lib-100"] == [64, 64]
    assert (warm.entries["lib-100"]["origin"], warm.entries["lib-100"]["failed"]) == ("fallback", [])  # 512 was no candidate
    assert warm.text.count("AUTOTUNE_RETUNED reason=compile_CompileTimeAssertionFailure_no_evict kernel=test_it.lib_kernel") == 1
    assert "AUTOTUNE_RECORD libtuner=4 autotune=3 retuned=1 " in warm.text
    with sqlite3.connect(folder.path / "db") as database:
        table, _ = find_tables(database, "lib_kernel")
        assert database.execute(f"SELECT BLOCK FROM '{table}' WHERE key_0=100").fetchall() == [(64,)]


# ---- replay

def test_replay_rules_over_a_database_with_other_winners(replayed):
    assert replayed.code == 0, replayed.text
    assert replayed.launched == {"lib-64": [128, 128],       # not in the record: from the database
                                 "lib-100": [64, 64],        # its config fails: tuned live
                                 "lib_hook-64": [128, 128], "plain-64": [128, 128], "plain-100": [128, 128],
                                 "plain_hook-64": [64, 64],  # dropped: tuned live
                                 "other-64": [128, 128]}
    origins = {case: entry["origin"] for case, entry in replayed.entries.items()}
    assert origins == {"lib-64": "cached", "lib-100": "fallback", "lib_hook-64": "replayed", "plain-64": "replayed",
                       "plain-100": "replayed", "plain_hook-64": "tuned", "other-64": "replayed"}


def test_every_live_launch_is_said_and_counted(replayed, edited):
    text = replayed.text
    assert text.count("AUTOTUNE_REPLAY_MISSED kernel=test_it.lib_kernel key=[[\"int\",64]") == 1
    fallback = "AUTOTUNE_REPLAY_FALLBACK reason=compile_CompileTimeAssertionFailure_no_evict kernel=test_it.lib_kernel"
    assert text.count(fallback) == 1
    assert re.search(r"AUTOTUNE_REPLAY_DROPPED kernel=test_it.plain_hook_kernel key=\S+ reason=its config has a pre_hook", text)
    assert f"AUTOTUNE_REPLAY autotune: used=2 unused=6 missed=0 fallback=0 dropped=1 from={edited}/autotune.json" in text
    assert f"AUTOTUNE_REPLAY libtuner: used=2 unused=0 missed=1 fallback=1 dropped=0 from={edited}/autotune.json" in text


def test_libtuner_attaches_the_hook_of_a_replayed_config(replayed):
    assert replayed.hooked["lib_hook-64"] == [128, 128]
    assert replayed.entries["lib_hook-64"]["config"]["pre_hook"] is True


def test_a_hook_that_only_this_run_has_is_not_lost(folder, cold):
    """The record is of a time when the config had no pre_hook; without it, plain autotune would launch a half-made kernel."""
    record = edit_record(cold.path, folder.path / "no-hook", lambda case, entry: choose_block(entry, 128))
    run = folder.run("new-hook", "-k", "hook", REPLAY_FROM=str(record))
    assert run.launched == {"lib_hook-64": [128, 128], "plain_hook-64": [64, 64]} and run.hooked["lib_hook-64"] == [128, 128]
    assert "AUTOTUNE_REPLAY_DROPPED kernel=test_it.plain_hook_kernel" in run.text


def test_replay_writes_nothing_into_the_database(folder, replayed):
    with sqlite3.connect(folder.path / "db") as database:
        table, _ = find_tables(database, "lib_hook_kernel")
        assert database.execute(f"SELECT BLOCK FROM '{table}'").fetchall() == [(64,)]


def test_strict_replay_fails_what_cannot_use_the_record(folder, edited):
    run = folder.run("strict", database="empty", REPLAY_FROM=str(edited), REPLAY_STRICT="1")
    assert run.failed == {"lib-64", "lib-100", "plain_hook-64"} and run.code == 1
    assert set(map(tuple, run.launched.values())) == {(128, 128)}
    # The empty database held nothing that could not be evicted.
    assert "REPLAY_STRICT: test_it.lib_kernel: the replayed config failed (compile_CompileTimeAssertionFailure)" in run.text


def test_typed_keys_are_replayed_each_with_its_own_config(folder, cold):
    blocks = {}

    def alternate(case, entry):
        if not case.startswith("typed"):
            return None
        blocks[entry["key"]] = 128 if len(blocks) % 2 else 64
        return choose_block(entry, blocks[entry["key"]])

    data = json.loads((cold.path / "autotune.json").read_text())
    data["entries"] = [alternate("typed", e) for e in data["entries"] if "typed" in e["kernel"]]
    (folder.path / "typed.json").write_text(json.dumps(data))
    run = folder.run("typed", "-k", "typed", TYPED="1", REPLAY_FROM=str(folder.path / "typed.json"), REPLAY_STRICT="1")
    assert run.code == 0, run.text
    record = json.loads((run.path / "autotune.json").read_text())
    launched = {e["key"]: e["config"]["kwargs"]["BLOCK"][1] for e in record["entries"]}
    assert launched == blocks and list(blocks.values()) == [64, 128] * 3


def test_one_key_with_two_configs_is_said_and_never_replayed(folder):
    """No record can tell these tuners apart: replaying the last one's config for both would be a silent change."""
    words = "-k", "tuners_of_one_kernel"
    first = folder.run("made", *words, MADE="1")
    said = 'kernel=generated_pid.make_kernel.<locals>.made_kernel key=[["int",64],["str","torch.float32"]] reason=two tuners'
    assert "MADE 64 128 128 128" in first.text and first.text.count(f"AUTOTUNE_AMBIGUOUS {said}") == 1
    assert [(e["config"]["kwargs"]["BLOCK"][1], e["ambiguous"]) for e in first.entries.values()] == [(128, True), (128, False)]
    again = folder.run("made-again", *words, MADE="1", REPLAY_FROM=str(first.path))
    assert "MADE 64 128 128 128" in again.text and f"AUTOTUNE_REPLAY_DROPPED {said}" in again.text
    assert "AUTOTUNE_REPLAY autotune: used=1 unused=0 missed=0 fallback=0 dropped=1" in again.text


# ---- refusal and force

@pytest.fixture(scope="module")
def foreign(folder, cold):
    """A record made elsewhere, of another source of lib_kernel, without a word about USE_FLAGTUNE."""
    def change(case, entry):
        other = {"source": "0" * 64} if case.startswith("lib-") else {}
        return {**choose_block(entry, 128), **other} if case in ("lib-64", "plain-64") else None

    return edit_record(cold.path, folder.path / "foreign", change, device="NVIDIA H100", triton_minor="3.4", use_flagtune=None,
                       target="GPUTarget(backend='musa', arch=31, warp_size=32)", compiler="f" * 64)


def test_a_record_made_elsewhere_is_refused_before_anything_runs(folder, foreign):
    run = folder.run("refused", REPLAY_FROM=str(foreign))
    assert run.code == 3 and run.launched == {}
    said = re.search(r"REPLAY_FROM: \S+: not replayed: .*", run.text)[0]
    assert "device: recorded with NVIDIA H100, this run has Host device (sm_90)" in said
    assert "triton_minor: recorded with 3.4, this run has 3." in said
    assert "use_flagtune: recorded with nothing said, this run has 0" in said
    assert "target: recorded with GPUTarget(backend='musa'" in said and "or set REPLAY_FORCE=1" in said


def test_force_replays_it_and_says_so(folder, foreign):
    run = folder.run("forced", "-k", "64", REPLAY_FROM=str(foreign), REPLAY_FORCE="1")
    assert run.launched["lib-64"] == run.launched["plain-64"] == [128, 128]
    assert "AUTOTUNE_REPLAY_FORCED device: recorded with NVIDIA H100" in run.text
    assert "AUTOTUNE_REPLAY_FOREIGN compiler: recorded with ffff" in run.text
    assert re.search(r"AUTOTUNE_REPLAY libtuner: used=1 unused=0 missed=2 fallback=0 dropped=0 from=\S+ forced", run.text)


def test_every_row_of_a_forced_replay_says_so(tmp_path):
    """run_pytest.sh writes these two lines; batch_summary.py carries them into summary.csv."""
    (tmp_path / "abs").mkdir()
    (tmp_path / "abs/run.log").write_text(
        "==== gemscreen begin ====\nrepo: main\nop: abs\nreplay_from: /runs/other\nreplay:  forced\n====\n"
        "Operator: abs  Performance Test (dtype=torch.float16, mode=kernel,level=core)\n"
        "Status      Torch Latency (ms)    Gems Latency (ms)         Gems Speedup         Size Detail\n"
        "SUCCESS               0.010000            0.020000               0.500          [torch.Size([64, 64])]\n"
        "==== gemscreen end ====\npytest_exit: 0\n====\n")
    (tmp_path / "abs/exit.json").write_text('{"schema": 1, "pytest_exit": 0}')
    subprocess.run([sys.executable, ROOT / "batch_summary.py", "--quiet", tmp_path], check=True)
    rows = list(csv.DictReader(open(tmp_path / "summary.csv")))
    assert [row["row_status"] for row in rows] == ["SUCCESS"] and rows[0]["reason"].startswith("replay forced from /runs/other; ")


def test_another_kernel_source_is_refused_at_the_launch(folder, cold):
    record = edit_record(cold.path, folder.path / "other-source", lambda case, entry: {**entry, "source": "0" * 64})
    run = folder.run("source", "-k", "plain-64", REPLAY_FROM=str(record))
    assert run.failed == {"plain-64"} and run.launched == {}
    assert "REPLAY_FROM: test_it.plain_kernel: was recorded from another source or another list of configs" in run.text


ENTRY = {"kind": "libtuner", "kernel": "k", "source": "s", "configs": "c", "key": "[]",
         "config": {"kwargs": {"B": ["int", 1]}, "fields": {}, "pre_hook": False}}


@pytest.mark.parametrize("text, said", [
    ('{"schema": 1, "meta": {}, "entr', "is no autotune record (JSONDecodeError"),
    ("[]", "is no autotune record (TypeError"),
    ('{"schema": 2}', "schema 2: this version reads 1; record again"),
    ('{"schema": 1, "meta": {}, "entries": [{"kind": "libtuner"}]}', "is no autotune record (KeyError: 'kernel')"),
    (json.dumps({"schema": 1, "meta": {}, "entries": [{**ENTRY, "config": {}}]}), "is no autotune record (KeyError: 'pre_hook')"),
    (json.dumps({"schema": 1, "meta": {}, "entries": [
        {**ENTRY, "config": {"kwargs": {"B": ["int"]}, "fields": {}, "pre_hook": False}}]}),
     "is no autotune record (IndexError")])
def test_a_cut_or_foreign_record_is_refused(tmp_path, text, said):
    from autotune_record import record
    (tmp_path / "autotune.json").write_text(text)
    with pytest.raises(record.RecordError) as refusal:
        record.load_record(record.locate_record(tmp_path))
    assert said in str(refusal.value) and str(tmp_path / "autotune.json") in str(refusal.value)


def test_a_refused_record_ends_pytest_with_3(folder, tmp_path):
    (tmp_path / "autotune.json").write_text('{"schema": 1, "me')
    run = folder.run("cut", REPLAY_FROM=str(tmp_path))
    assert run.code == 3 and f"{tmp_path}/autotune.json: is no autotune record" in run.text
