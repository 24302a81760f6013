"""printed_tables.py - pieces of a run.log, as upstream and our plugins print them."""

# The pieces of the tables that upstream's BenchmarkResult.__str__ prints (ed2508b).
HEADER = ("Status       Torch Latency (ms)    Gems Latency (ms)         Gems Speedup"
          "{more}           Size Detail\n" + "-" * 90 + "\n")
PLAIN = HEADER.format(more="")
TFLOPS = HEADER.format(more="               TFLOPS")
GBPS = HEADER.format(more="          Torch GBPS            Gems GBPS ")
ALL = HEADER.format(more="               TFLOPS          Torch GBPS            Gems GBPS ")


def title(op="mm", dtype="torch.float16", mode="kernel", level="core"):
    return f"\nOperator: {op}  Performance Test (dtype={dtype}, mode={mode},level={level})\n"


def row(status, *figures, detail):
    return f"{status:<10}" + "".join(f"{figure:>20}" for figure in figures) + " " * 10 + detail + "\n"


def figures(parsed):
    return (parsed.latency_base_ms, parsed.latency_ms, parsed.speedup, parsed.tflops, parsed.gbps_base, parsed.gbps)


# Tables that _pretty_report_plugin folded, and rescued.
FOLDED = (title("addmm") + "Legend: #1 = torch.Size([384, 384])\nLegend: #2 = {'alpha': 1e-05}\n"
          "Legend: #12 = torch.float16\n" + PLAIN
          + row("SUCCESS", "0.2", "0.1", "2.000", detail="([torch.Size([384]), #1, #12], #2)")
          + row("SUCCESS", "0.4", "0.1", "4.000", detail="([torch.Size([512]), #1, #3], #2)"))

RESCUED = (title("mm", "torch.float16") + TFLOPS
           + row("SUCCESS", "0.2", "0.1", "2.000", "1.000", detail="[torch.Size([1])]")
           + row("SUCCESS", "0.2", "0.1", "2.000", "1.000", detail="[torch.Size([2])]") + "\n"
           + "\x1b[31mFAILED\x1b[0m: Operator=mm dtype={dtype} err=<<<{e}>>>\n"
           + title("mm", "torch.float32") + TFLOPS
           + row("SUCCESS", "0.4", "0.1", "4.000", "1.000", detail="[torch.Size([1])]")
           + row("FAILED", "N/A", "N/A", "N/A", detail="[torch.Size([2])]") + "\n"
           + "FAILED: Operator=mm dtype=torch.float32 row=2 err=<<<RuntimeError: got <<<x>>> and >>>\n"
           + "NOT MEASURED: Operator=mm dtype=torch.bfloat16 reason=<<<after failure of torch.float32>>>\n"
           + "F\n")

BANNERS = ("==== gemscreen begin ====\nschema: 1\nrepo: main\nop: mm\nnodes: benchmark/test_mm.py::test_mm[a: b]\n"
           "shapes:\ncache: cold\n====\nkey: no banner\n{}"
           "==== gemscreen end ====\npytest_exit: 1\nseconds: 2.5\n====\n")
