"""Which operator meets which device, and which come first: what earlier screens recorded, put into sharding.py and budget.py.

Requirements: the standard library.
"""

from common.state import read_marker, sha256_json
from screen import budget, history, plan, sharding


def assign_devices(planned, screen, earlier, past):
    """(the planned rows with a device each, their names in the order to run). `earlier`: the plan of the same screen so far,
    `past`: as history.read_past gives it."""
    seconds = {"/".join(key): each.seconds for key, each in past.items()}
    stored = {"/".join(key): each.device for key, each in past.items() if each.device}
    stored |= {row.name: row.device for row in earlier if row.device}
    shares = sharding.shard(screen.environ["SHARD"], plan.list_names(planned), [device.name for device in screen.devices],
                            seconds, stored)
    return plan.assign(planned, shares), [name for share in shares.values() for name in share]


def order_tasks(tasks, screen, past, order):
    """`tasks` in the `order` of their names, or with BUDGET what matters most first; each with the seconds that it
    took before."""
    if screen.environ.get("BUDGET"):
        drift = history.read_drift(screen)
        order = budget.order_by_need({task.row.name: find_need(task, screen, past, drift) for task in tasks})
    for task in tasks:
        task.recorded = past[task.row.key].seconds if task.row.key in past else None
    place = {name: number for number, name in enumerate(order)}
    return sorted(tasks, key=lambda task: place[task.row.name])


def find_need(task, screen, past, drift):
    """The Need of an operator that is to run."""
    before = past.get(task.row.key)
    if read_marker(screen.op_folder(task.row)) or (before and before.inputs_sha256 != sha256_json(task.inputs)):
        return budget.Need(budget.AGAIN)
    return budget.Need(budget.KNOWN, drift.get(task.row.key, 1.0), before.finished) if before else budget.Need(budget.NEVER)
