"""common/ttgir.py: literal texts, and every kernel in a fresh compile against a walk of Triton's own IR."""
import pytest

from common.ttgir import Converts, NotTtgir, count_converts, digest_ptx, digest_ttgir, strip_noise

MODULE = """#blocked = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#loc = loc("k.py":1:0)
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90"} {
  tt.func public @k(%a: !tt.ptr<f32> loc("a"(#loc))) attributes {noinline = false} {
BODY
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc1 = loc("ttg.convert_layout %x")
"""
CONVERT = "    %1 = ttg.convert_layout %0 : tensor<64xf32, #blocked> -> tensor<64xf32, #blocked1> loc(#loc)"


def module(*body):
    return MODULE.replace("BODY", "\n".join(body))


def test_nothing_to_count():
    assert count_converts(module()) == Converts(0, 0, 0)


def test_only_operations_count():
    body = ['    %5 = tt.elementwise_inline_asm "ttg.convert_layout %0" {constraints = "=r"} %4 : i32 -> i32 loc(#loc)',
            "    // %9 = ttg.convert_layout %8 : a -> b",
            '    %6 = arith.addi %5, %5 : i32 loc("ttg.convert_layout %1"(#loc))',
            '    tt.print " = ttg.convert_layout %: " {hex = false} : %6 : i32',
            "    %7 = ttg.local_load %6 : !ttg.memdesc<64xf32> -> tensor<64xf32, #dot>",
            CONVERT,
            '    %2 = "ttg.convert_layout"(%1) : (tensor<64xf32, #a>) -> tensor<64xf32, #b>',
            "    %3 = triton_gpu.convert_layout %2 : tensor<64xf32, #a> -> tensor<64xf32, #b>"]
    assert count_converts(module(*body)) == Converts(3, 0, 3)


def test_loops_weigh_more():
    body = [CONVERT,
            "    %2 = scf.for %i = %c0 to %c9 step %c1 iter_args(%x = %1) -> (tensor<64xf32>)  : i32 {",
            CONVERT,
            "      scf.if %cond {", CONVERT, "      } else {", CONVERT, "      } loc(#loc)",
            "      scf.while (%y = %x) : (i32) -> i32 {",
            "        scf.condition(%cond) %y : i32", "      } do {", CONVERT, "      } loc(#loc)",
            "    } {tt.num_stages = 2 : i32} loc(#loc)",
            CONVERT]
    assert count_converts(module(*body)) == Converts(6, 4, 2 + 3 * 16 + 256)


def test_attributes_on_a_line_open_no_region():
    assert count_converts(module("    %0 = scf.if %c -> (i32) {", "    } {a = {b = 1}}", CONVERT)) == Converts(1, 0, 1)


@pytest.mark.parametrize("text", ["", "module {\n}\n", "define void @k() {\n}\n", module(CONVERT)[:400]])
def test_what_is_no_whole_ttgir_is_refused(text):
    with pytest.raises(NotTtgir):
        count_converts(text)


def test_noise():
    assert strip_noise('%0 = "x.y"(%1) {s = "a\\"}b"} loc("f(":1:2) // } {') == '%0 = "x.y"(%1) {s = ""}'


def test_digest_ignores_locations_and_nothing_else():
    moved = module(CONVERT).replace('"k.py":1:0', '"/else/where.py":9:9').replace("loc(#loc)", 'loc("x y)"(#loc7))')
    assert digest_ttgir(moved) == digest_ttgir(module(CONVERT))
    assert digest_ttgir(module(CONVERT, CONVERT)) != digest_ttgir(module(CONVERT))
    assert digest_ttgir(module('%0 = tt.asm "loc(1)"')) != digest_ttgir(module('%0 = tt.asm "loc(2)"'))


def test_ptx_digest_ignores_debug_lines():
    ptx = '.visible .entry k()\n{\n\t.loc\t1 9 0\n$L__tmp0:\n\tmov.u32 %r1, %r2;\n\tret;\n}\n\t.file\t1 "/a/k.py"\n'
    other = '.visible .entry k()\n{\n\t.loc\t1 8 0\n\tmov.u32 %r1, %r2;\n$L__tmp1:\n\tret;\n}\n\t.file\t1 "/b/k.py"\n' \
            '\t.section\t.debug_abbrev\n{\n.b8 1\n}\n'
    assert digest_ptx(ptx) == digest_ptx(other) != digest_ptx(ptx.replace("%r2", "%r3"))
