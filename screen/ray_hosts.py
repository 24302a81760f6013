"""ENGINE=ray: the devices of a Ray cluster in place of this host's. docs/many-hosts.md has the recipe.

A node counts if it has the resource `gemscreen_device` (ray start --resources='{"gemscreen_device": 8}') or, where no node
has, Ray's own GPU. On each of its devices an actor (ray_worker.py) is pinned to it, that holds one of the resource: other
jobs of the cluster stay off. A device is called <node>/<its name there>; by that name it keeps its operators.

The scheduler, the attempts, the retries and all files are those of the local engine: only who starts a process differs
(ray_engine.py).

Requirements: ray, in one version and one Python minor version on all nodes (requirements/ray.txt).
Limits: Ray Client (ray://) is not used: the driver runs on a node of the cluster, one without devices too.
"""

import contextlib
import secrets
import socket
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from common import inputs
from common.errors import REFUSED, UserError
from common.trees import ROOT, find_trees
from screen.options import find_run_pytest
from screen.ray_engine import RayEngine, first_line
from screen.ray_worker import Worker, describe_sources, strip_times

RESOURCE = "gemscreen_device"
REACH_LIMIT = 10.0      # seconds for the head to accept a connection
JOIN_LIMIT = 300.0      # seconds for all devices to answer: each node imports torch once


class RayHosts:
    """The nodes of the cluster that RAY_ADDRESS names. See engine.py."""

    def __init__(self, environ):
        self._ray = _import_ray()
        self._address = environ.get("RAY_ADDRESS") or "auto"
        if "://" in self._address:
            raise UserError(f"RAY_ADDRESS: {self._address}: Ray Client is not used; run this on a node of the cluster, with its "
                            "HOST:PORT or `auto`")
        mend = "start a cluster (ray start --head), with the same Python and Ray as here (docs/many-hosts.md)"
        try:
            _reach(self._address)
            self._ray.init(address=self._address, log_to_driver=False, logging_level="ERROR", namespace="gemscreen")
        except (OSError, RuntimeError, ValueError, OverflowError, self._ray.exceptions.RayError) as error:
            raise UserError(f"RAY_ADDRESS: {self._address}: {first_line(error)}; {mend}", REFUSED) from None
        self._slots = {}        # {name: (actor, Device as its node calls it, node)}

    def find_devices(self, environ, python):
        """A Device per device of each node, of which all have gemscreen, trees and versions as they are here."""
        actors = self._start_actors()
        joined = self._ask_all({key: actor.join.remote(environ, python) for key, actor in actors.items()})
        firsts = {}
        for (node, number), device in joined.items():
            if device is not None:
                self._slots[f"{node}/{device.name}"] = actors[node, number], device, node
                firsts.setdefault(node, actors[node, number])
        self._slots = dict(sorted(self._slots.items()))     # which actor got which card of Ray's differs from start to start
        self._firsts = firsts
        self._refuse_others(environ, python)
        return [replace(device, name=name) for name, (_, device, _) in self._slots.items()]

    def ask_arch(self, device, environ, python):
        """See LocalHost."""
        actor, own, _ = self._slots[device.name]
        return self._ask_all({device.name: actor.ask_arch.remote(own)})[device.name]

    def check(self, screen, repo):
        """See LocalHost; asked on each node."""
        self._ask_all({node: actor.check.remote(self._show_node(screen, node), repo) for node, actor in self._firsts.items()})

    @contextlib.contextmanager
    def hold(self, devices, environ, run):
        """See LocalHost; the locks are the nodes' own."""
        self._ask_all({name: actor.hold.remote(device, str(run)) for name, (actor, device, _) in self._slots.items()})
        yield {}

    def open(self, screen, say):
        """See LocalHost."""
        left = self._ask_all({node: actor.end_leftovers.remote(screen.run_id, screen.grace)
                              for node, actor in self._firsts.items()})
        for node, ended in left.items():
            for pid, command in ended.items():
                say(f"left by an earlier driver on {node}, ended: {pid} {command}")
        token = screen.run / f".token-{secrets.token_hex(8)}", secrets.token_hex(16)
        shapes = {repo: (Path(path).name, Path(path).read_text(encoding="utf-8")) for repo, path in screen.shapes.items()}
        token[0].write_text(token[1], encoding="utf-8")
        try:
            shared = self._ask_all({name: actor.open.remote(self._show_node(screen, node), token, shapes)
                                    for name, (actor, _, node) in self._slots.items()})
        finally:
            token[0].unlink()
        apart = sorted({self._slots[name][2] for name, is_shared in shared.items() if not is_shared})
        if apart:
            say(f"results are sent back by {', '.join(apart)}, which {'do' if len(apart) > 1 else 'does'} not see {screen.run}")
        if int(screen.environ.get("COMPILE_AHEAD") or 0):
            say("compile-ahead: off: not with ENGINE=ray")
        return RayEngine(self._ray, screen, self._slots)

    def close(self):
        """End the actors, and leave the cluster."""
        self._ray.shutdown()

    def _start_actors(self):
        """{(node's name, number): actor}, one for each device of the cluster."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        resource = RESOURCE if any(node["Resources"].get(RESOURCE) for node in alive) else "GPU"
        nodes = {name: node for name, node in _name_nodes(alive).items() if node["Resources"].get(resource, 0) >= 1}
        if not nodes:
            raise UserError(f"RAY_ADDRESS: {self._address}: no node of the cluster has a device; start them with "
                            f"--resources='{{\"{RESOURCE}\": 8}}' (the number of their devices)", REFUSED)
        wanted = {"num_gpus": 1} if resource == "GPU" else {"resources": {RESOURCE: 1}}
        actor = self._ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0, **wanted)(Worker)
        return {(name, number): actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
                .remote(name, number, resource == "GPU")
                for name, node in sorted(nodes.items()) for number in range(int(node["Resources"][resource]))}

    def _refuse_others(self, environ, python):
        """UserError for a node on which something else would be measured than here."""
        trees, run_pytest = find_trees(environ), find_run_pytest(environ)
        here = {"gemscreen": describe_sources(), "run_pytest.sh and plugins": inputs.digest_runner(run_pytest)}
        here |= strip_times(inputs.read_versions(python, environ))
        here |= {f"{repo} at {tree}": inputs.describe_tree(tree) for repo, tree in trees.items()}
        found = self._ask_all({node: actor.describe.remote(trees, run_pytest) for node, actor in self._firsts.items()})
        for node, there in found.items():
            other = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
            if other:
                raise UserError(f"node {node}: {', '.join(other)}: not as on this host; the same checkouts, Python and packages "
                                "have to be at the same paths on every node", REFUSED)

    def _show_node(self, screen, node):
        """`screen` as a node sees it: with its own devices."""
        return replace(screen, devices=[device for _, device, its_node in self._slots.values() if its_node == node])

    def _ask_all(self, references):
        """{key: value} of the answers of workers. UserError for the first that has another one, or none in time."""
        found, end = {}, time.monotonic() + JOIN_LIMIT
        for key, reference in references.items():
            name = "/".join(map(str, key)) if isinstance(key, tuple) else key
            try:
                answer = self._ray.get(reference, timeout=max(0.0, end - time.monotonic()))
            except self._ray.exceptions.GetTimeoutError:
                raise UserError(f"node {name}: does not answer within {JOIN_LIMIT:.0f} s, or another job of the cluster has its "
                                "device; `ray status` says which", REFUSED) from None
            except self._ray.exceptions.RayError as error:
                raise UserError(f"node {name}: {first_line(error)}; gemscreen has to be at {ROOT} on every node",
                                REFUSED) from None
            if "error" in answer:
                raise UserError(f"node {name}: {answer['error'][0]}", answer["error"][1])
            found[key] = answer["value"]
        return found


def _import_ray():
    try:
        import ray
    except ImportError:
        raise UserError("ENGINE: ray: Ray is not installed here; install it on every node: "
                        ".venv/bin/python -m pip install -r requirements/ray.txt", REFUSED) from None
    return ray


def _reach(address):
    """OSError if nothing listens at HOST:PORT: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_LIMIT).close()


def _name_nodes(nodes):
    """{name: node}: the name that `ray start --node-name` gave, else the host's."""
    def name(node):
        own = node.get("NodeName")
        return own if own and own != node["NodeManagerAddress"] else node["NodeManagerHostname"]
    twice = [each for each, count in Counter(map(name, nodes)).items() if count > 1]
    if twice:
        raise UserError(f"RAY_ADDRESS: two nodes are called {twice[0]}; start them with --node-name", REFUSED)
    return {name(node): node for node in nodes}
