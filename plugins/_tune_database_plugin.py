"""pytest plugin: a LibTuner's sweep asks its database once and writes its timings at once, instead of both at each trial.

Purpose  FlagGems keeps each trial's timing in SQLite: a SELECT before it, a SELECT, an INSERT and a commit, which waits for the
         disk three times, after it. Of mm on an H200 (5,478 trials) that was 5.4 ms for each trial, 29 of 152 s; a short
         kernel's trial itself takes 2 ms.
Use      PYTHONPATH=plugins python -m pytest -p _tune_database_plugin NODE ...
How      The database's timings of a sweep are read at its first question. Its own are kept until its winner is stored, the test
         ends or WRITE_SECONDS have passed, and then written in one transaction, before the winner. What the tables are called,
         what is in them and what a later sweep finds there is as ever.
Safe     SQLite's settings are not touched: each transaction is whole or not there, also after a power failure. A process that is
         killed has lost the timings of at most WRITE_SECONDS. Of two processes that tune one key each does so by its own
         timings; the database keeps those that were written first.
Limits   SQLite, and keys that upstream does not pack into one column (more than 64 columns); others are left alone, and so is a
         FlagGems whose classes are others (before 4.2).
"""
import sys
import time

import pytest

WRITE_SECONDS = 2.0
TIMES = ("p50", "p20", "p80")
MODEL = ("engine", "get_key_dict", "get_config_dict", "get_sql_model")     # what is used of a cache's


def pytest_collection_finish(session):
    """Once they are imported."""
    modules = [sys.modules.get(f"{name}.utils.libentry") for name in ("flag_gems", "flaggems_vllm")]
    caches = {tuple(getattr(module, name, None) for name in ("BenchmarkCache", "ConfigCache")) for module in modules}
    sweeps = Sweeps()
    for timings, winners in caches:
        if all(hasattr(cls, name) for cls in (timings, winners) for name in ("get", "set")):
            sweeps.watch(timings, winners)
    session.config.pluginmanager.register(sweeps, "gemscreen-tune-database")


class Sweeps:
    """What stands before the caches of all tuners: the timings of the sweep that is under way."""

    def __init__(self):
        self.sweep = None

    def watch(self, timings, winners):
        """Patch both classes of caches."""
        get, put, put_winner = timings.get, timings.set, winners.set

        def get_from_sweep(cache, config):
            sweep = self.find_sweep(cache, config)
            return sweep.get(config) if sweep else get(cache, config)

        def put_into_sweep(cache, config, benchmark):
            sweep = self.find_sweep(cache, config)
            return sweep.put(config, benchmark) if sweep else put(cache, config, benchmark)

        def put_winner_after_timings(cache, key, config):
            self.end_sweep()
            return put_winner(cache, key, config)

        timings.get, timings.set, winners.set = get_from_sweep, put_into_sweep, put_winner_after_timings

    def find_sweep(self, cache, config):
        """The Sweep of `cache`, None where it is left alone. Another one's ends."""
        if self.sweep is None or self.sweep.cache is not cache:
            self.end_sweep()
            model, columns = getattr(cache, "model", None), len(cache.key) + len(config.all_kwargs())
            is_known = all(hasattr(model, name) for name in MODEL) and model.engine.dialect.name == "sqlite"
            if is_known and columns <= getattr(model, "key_count_limit", columns):
                self.sweep = Sweep(cache)
        return self.sweep

    def end_sweep(self):
        sweep, self.sweep = self.sweep, None
        if sweep:
            sweep.write()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self):
        """A sweep that raised has no winner."""
        self.end_sweep()


class Sweep:
    """The timings of one BenchmarkCache: of one key of one tuner."""

    def __init__(self, cache):
        self.cache, self.keys = cache, cache.model.get_key_dict(cache.key)
        self.found, self.unwritten = {}, {}      # {names of the columns: {values: timing}}, {the same: [row]}
        self.written = time.monotonic()

    def get(self, config):
        columns = self.cache.model.get_config_dict(config)
        return self.load(columns).get(tuple(columns.values()))

    def put(self, config, benchmark):
        columns, benchmark = self.cache.model.get_config_dict(config), tuple(benchmark)
        self.load(columns)[tuple(columns.values())] = benchmark
        self.unwritten.setdefault(tuple(columns), []).append({**self.keys, **columns, **dict(zip(TIMES, benchmark))})
        if time.monotonic() - self.written > WRITE_SECONDS:
            self.write()

    def load(self, columns):
        """{values of `columns`: timing} that the database has of this key, or this sweep; configurations with other columns have
        another table."""
        if tuple(columns) not in self.found:
            import sqlalchemy

            model, rows = self.cache.model.get_sql_model(self.cache.table_name, self.keys | columns), []
            if model is not None:
                table = model.__table__
                question = sqlalchemy.select(table).where(*(table.c[name] == value for name, value in self.keys.items()))
                with self.cache.model.engine.connect() as connection:
                    rows = connection.execute(question).mappings().all()
            self.found[tuple(columns)] = {tuple(row[name] for name in columns): tuple(row[name] for name in TIMES)
                                          for row in rows}
        return self.found[tuple(columns)]

    def write(self):
        """One transaction for each table; there is one, as a rule."""
        import sqlalchemy

        for rows in self.unwritten.values():
            columns = {name: value for name, value in rows[0].items() if name not in TIMES}
            times = {name: rows[0][name] for name in TIMES}
            table = self.cache.model.get_sql_model(self.cache.table_name, columns, times).__table__
            with self.cache.model.engine.begin() as connection:
                connection.execute(sqlalchemy.insert(table).prefix_with("OR IGNORE"), rows)
        self.unwritten, self.written = {}, time.monotonic()
