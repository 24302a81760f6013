"""_rlc_switch_plugin - stock Triton 3.6.0 on NVIDIA: the removal of layout conversions as a switch.

USAGE     RLC_STOCK_ENHANCE=1 RLC_STOCK_PHASE_MASK=15 python -m pytest -p _rlc_switch_plugin ...
          RLC_STOCK_ENHANCE unset: the plugin does nothing.
SWITCHES  RLC_STOCK_ENHANCE=0|1, RLC_STOCK_PHASE_MASK=0..15 (default 15); rlc_switch/policy.py names the cells,
          rlc_switch/choice.py the phases.
OUTPUT    a line in the terminal summary (run.log):
            RLC_SWITCH cell=candidate policy=rlc-stock-3-5ae19c02-e1-m15 kernels=12 changed=3 converts=31->12
          and in each compiled kernel's metadata: rlc_policy, rlc_choice, rlc_converts_stock, rlc_converts.
WHAT      A stand-in for FlagTree's pass (FLAGTREE_MUSA_RLC_ENHANCE and its kin), not that pass: it lowers a kernel
          again with one layout anchor less and keeps the result if it has fewer converts. Say so where its results
          are shown. The policy is part of the compile key: three cells may share a TRITON_CACHE_DIR and never a kernel.
COST      A candidate lowers each kernel that has converts up to three times (TTGIR only; PTX and cubin once).
EXIT      2 for a bad value, 3 for another Triton. A switch that changes inside the process fails the test that changed
          it, or the next that compiles; a kernel that some other backend compiled, or that was lowered without the switch,
          fails its test.
LIMITS    Kernels for NVIDIA targets (the host device's cuda:90 counts); Gluon kernels are left alone.
"""
import os
import sys

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Before any conftest can import, and compile, anything."""
    from rlc_switch.policy import SwitchError, read_policy

    try:
        policy = read_policy(os.environ)
        if policy is None:
            return
        from rlc_switch.pipeline import Switch

        switch = Switch(policy)
        switch.install()
    except SwitchError as error:
        print(f"_rlc_switch_plugin: error: {error}", file=sys.stderr)
        raise SystemExit(error.code) from None
    early_config.pluginmanager.register(SwitchSession(switch), "rlc-switch-session")


class SwitchSession:
    """The hooks of a session under the switch."""

    def __init__(self, switch):
        self.switch = switch

    def pytest_report_header(self):
        return f"rlc switch: cell {self.switch.policy.cell}, {self.switch.policy.key}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        result = yield
        self.switch.check()  # kernels that were in memory are launched without any compile
        return result

    def pytest_terminal_summary(self, terminalreporter):
        kernels = self.switch.compiled.values()
        changed = sum(1 for choice, _, _ in kernels if choice != "stock")
        before, after = (sum(counts[i] or 0 for counts in kernels) for i in (1, 2))
        policy = self.switch.policy
        line = f"RLC_SWITCH cell={policy.cell} policy={policy.key} kernels={len(kernels)}"
        terminalreporter.write_line(line + (f" changed={changed} converts={before}->{after}" if policy.enhance else ""))
