# log_pipe.sh - the way from pytest's output to the terminal and to run.log; sourced by run_pytest.sh.
#
# INPUT    RUN_DIR, PYTHON, ROOT, FORCE_COLOR (set: the terminal keeps its colours), die STATUS TEXT
# OUTPUT   fd 4: what is written there reaches stdout and, free of escape codes, RUN_DIR/run.log (log_pipe.py)
# LIMITS   A log that cannot be written to its end sends USR1 to the script.

write_log() { # TEXT -> run.log and stdout. A reader that goes away (`| head`) does not cost the log.
    printf '%s\n' "$1" >> "$RUN_DIR/run.log" || fail_log
    (trap '' PIPE; printf '%s\n' "$1") 2>/dev/null || [ -p /dev/stdout ] || fail_log
}

fail_log() {
    [ -d "$RUN_DIR" ] || die 3 "RUN_DIR: $RUN_DIR: is gone: something that ran in it removed it"
    die 3 "$RUN_DIR/run.log: was not written to its end; free some space and run again"
}

outlive() { trap '' HUP INT TERM; } # for what must end when pytest has ended, not before

open_log() { # fd 4 -> stdout and, stripped, run.log; sets reader, the process at its end, and mark
    mark=$'\x1e'"end of pytest's output $$ $RANDOM$RANDOM"
    exec 4> >(outlive; "$PYTHON" -I -S "$ROOT/common/log_pipe.py" "$RUN_DIR/run.log" "$mark" "${FORCE_COLOR:-}" || kill -USR1 $$)
    reader=$!
}

close_log() { # pytest has ended: what it wrote is in the pipe, and whoever else holds it is not waited for
    # Through /proc, and <> because it never blocks: fd 4 must be closed while `wait` runs, since bash, where a trap ran
    # as pytest ended, may wait for any child, and so for the reader.
    { printf %s "$mark" 1<> "/proc/$reader/fd/0"; } 2>/dev/null || true # no such file: it saw the end of the pipe
    await_end "$reader"
}
