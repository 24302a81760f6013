"""parallel_warmup: the autotune sweep of one operator over several devices. Used by _parallel_warmup_plugin.

    shards.py     the parent: starts one child per device, waits, ends them all whatever happens
    sharding.py   a child: takes its share of the inputs, runs each operator once, measures nothing
    merge.py      the children's records as one, and where they disagree
"""
