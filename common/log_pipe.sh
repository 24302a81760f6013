# log_pipe.sh - the way from pytest's output to the terminal and to run.log; sourced by run_pytest.sh.
#
# INPUT    RUN_DIR, FORCE_COLOR (set: the terminal keeps its colours), die STATUS TEXT
# OUTPUT   fd 4: what is written there reaches stdout and, free of escape codes, RUN_DIR/run.log
# LIMITS   A log that cannot be written to its end sends USR1 to the script.

strip_codes() { # stdin -> stdout without OSC and other strings, CSI, two-character escapes, what a progress bar
    # overwrote, and control characters
    exec sed -u -E -e 's#\x1b\][^\x07\x1b]*(\x07|\x1b\\)?##g' -e 's#\x1b[PX^_][^\x1b]*(\x1b\\)?##g' \
        -e 's#\x1b\[[0-?]*[ -/]*[@-~]##g' -e 's#\x1b[ -/]*[0-~]##g' \
        -e 's#\r+$##' -e 's#.*\r##' -e 's#[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]##g' -e 's#\x00##g'
}

write_log() { # stdin -> stdout and run.log. A reader that goes away (`| head`) does not cost the log.
    tee -p -a "$RUN_DIR/run.log"
}

fail_log() { die 3 "$RUN_DIR/run.log: was not written to its end; free some space and run again"; }

outlive() { trap '' HUP INT TERM; } # for what must end when pytest has closed the pipe, not before

open_log() { # fd 4 -> stdout and, stripped, run.log; sets first and last, the processes at both ends
    if [ -n "${FORCE_COLOR:-}" ]; then
        exec 5> >(outlive; (strip_codes >> "$RUN_DIR/run.log") || kill -USR1 $$)
        last=$!
        exec 4> >(outlive; exec tee -p /dev/fd/5)
    else
        exec 5> >(outlive; write_log || kill -USR1 $$)
        last=$!
        exec 4> >(outlive; strip_codes >&5)
    fi
    first=$!
    exec 5>&-
}
