"""The parts of a screen: run_batch.py's (directory, plan, history, sharding, budget, order, engine, scheduler, attempts,
retry, settling, progress) and batch_summary.py's (results, merge, figures, report). What other scripts need as well lies in
common/."""
