"""ttgir_text.py - count layout conversions in TTGIR text, and give a text its identity.

    %a = ttg.convert_layout %b : tensor<64xf32, #blocked> -> tensor<64xf32, #blocked1> loc(#loc5)

is one convert. What only looks like one does not count: the words in a string, in a comment, in a loc(...). The older
dialect name (triton_gpu), the generic form `"ttg.convert_layout"(%b)` and converts inside loops do count; for the
latter there is a count of their own and one weighted by the nesting. Dot operands travel through ttg.local_alloc and
ttg.local_load: those are no converts, so keep the shared-memory bytes beside the count.

The one counter of this project: plugins import it as `ttgir_text`, scripts as `common.ttgir`. It lies here because
run_pytest.sh puts plugins/ on Python's path and not the root, whose `tests` and `common` could shadow a tree's own.

Requirements: the standard library. Limits: text as Triton 3.0 to 3.9 prints it, one operation a line.
Cost: about 0.2 s per 100,000 lines for the count, 0.15 s for the digest.
"""
import hashlib
import re
from dataclasses import dataclass

TRIP = 16  # what one loop level weighs: a fixed guess of its trip count, the same for every compiler

_MODULE = re.compile(r"^module\b.*\b(?:ttg|triton_gpu)\.num-warps", re.M)
_CONVERT = re.compile(r'(?:^|=)\s*(?:"(?:ttg|triton_gpu)\.convert_layout"\s*\(|(?:ttg|triton_gpu)\.convert_layout\s+%)')
_LOOP = re.compile(r'(?:^|=)\s*"?scf\.(?:for|while|forall|parallel)\b')
_PLAIN_LOCATION = re.compile(r"(?<![\w.%@#])loc\(#loc\d*\)")  # nearly all of them; it cannot hold a string
_GENERIC_NAME = re.compile(r'"[a-z_]\w*(?:\.\w+)+"')


@dataclass(frozen=True)
class Converts:
    """Numbers of convert_layout operations: in the text, of those inside loops, and with TRIP per loop level."""
    static: int
    in_loop: int
    weighted: int


class NotTtgir(ValueError):
    """The text is no TTGIR module: a count of 0 would be a lie."""


def count_converts(text):
    """Count the converts of one TTGIR module. Raises NotTtgir for anything else (ttir, llir, a cut file)."""
    if not _MODULE.search(text):
        raise NotTtgir("no `module attributes {ttg.num-warps ...}`")
    depths, regions, opener = [], [], "block"
    for line in text.splitlines():
        if _is_plain(line):
            continue
        code = strip_noise(line)
        if _LOOP.search(code):
            opener = "loop"  # its brace may only come on a later line
        if _CONVERT.search(code):
            depths.append(regions.count("loop"))
        opener = _track_regions(code, regions, opener)
    if regions:
        raise NotTtgir(f"the module is cut: {len(regions)} regions are still open at its end")
    return Converts(len(depths), sum(d > 0 for d in depths), sum(TRIP**d for d in depths))


def _is_plain(line):
    """True for most lines: nothing to count, no region opened or closed, and no string or comment that could hide one."""
    return (line.count("{") == line.count("}") and "convert_layout" not in line and "scf." not in line
            and '"' not in line and "//" not in line) or line.startswith("#loc")


def _track_regions(code, regions, opener):
    """Update the stack of open regions by the braces of one line; returns what the next brace opens.

    An attribute dictionary opens and closes on its line. `} do {` and `} else {` go on with the region before them.
    """
    if re.fullmatch(r"\s*}.*{", code):
        return opener
    balance = code.count("{") - code.count("}")
    if balance > 0:
        regions.extend([opener, *["block"] * (balance - 1)])
        return "block"
    if balance < 0:
        del regions[balance:]
    return opener


def strip_noise(line):
    """`line` without comment and loc(...), its strings emptied but for the quoted name of a generic operation."""
    if '"' not in line:
        line = _PLAIN_LOCATION.sub("", line)
        if "//" not in line and "loc(" not in line:
            return line.rstrip()
    kept, at = [], 0
    while at < len(line):
        if line[at] == '"':
            end = _end_of_string(line, at)
            name = _GENERIC_NAME.fullmatch(line[at:end])
            generic = name and line[end:end + 1] == "(" and re.search(r"(?:^|=)\s*$", "".join(kept))
            kept.append(line[at:end] if generic else '""')
            at = end
        elif line.startswith("//", at):
            break
        elif line.startswith("loc(", at) and not re.match(r"[\w.%@#]", line[at - 1:at]):
            at = _end_of_call(line, at + 3)
        else:
            kept.append(line[at])
            at += 1
    return "".join(kept).rstrip()


def _end_of_string(line, at):
    at += 1
    while at < len(line) and line[at] != '"':
        at += 2 if line[at] == "\\" else 1
    return min(at + 1, len(line))


def _end_of_call(line, at):
    """Index after the parenthesis that closes the one at `at`; strings inside do not count."""
    depth = 0
    while at < len(line):
        if line[at] == '"':
            at = _end_of_string(line, at)
            continue
        depth += {"(": 1, ")": -1}.get(line[at], 0)
        at += 1
        if depth == 0:
            break
    return at


def digest_ttgir(text):
    """Digest of a TTGIR text without its locations, which differ from process to process and from path to path."""
    lines = (strip_locations(line) for line in text.splitlines() if not line.startswith("#loc"))
    return hashlib.sha256("\n".join(line for line in lines if line).encode()).hexdigest()


def strip_locations(line):
    """`line` without its loc(...); strings stay (an inline assembly is code)."""
    if '"' not in line:
        line = _drop_last_location(line)
        if "loc(" not in line:
            return line.rstrip()
        line = _PLAIN_LOCATION.sub("", line)
        if "loc(" not in line:
            return line.rstrip()
    kept, at = [], 0
    while at < len(line):
        if line[at] == '"':
            end = _end_of_string(line, at)
            kept.append(line[at:end])
            at = end
        elif line.startswith("loc(", at) and not re.match(r"[\w.%@#]", line[at - 1:at]):
            at = _end_of_call(line, at + 3)
        else:
            kept.append(line[at])
            at += 1
    return "".join(kept).rstrip()


def _drop_last_location(line):
    """`line` without the ` loc(#loc5)` that ends nearly every line; a regular expression takes four times as long."""
    start = line.rfind(" loc(#loc")
    number = line[start + 9:-1]
    return line[:start] if start >= 0 and line.endswith(")") and (number.isdigit() or not number) else line


def digest_ptx(text):
    """Digest of a PTX text without its debug lines (.loc, .file, the debug sections), which hold paths."""
    code = text.split("\n\t.section\t.debug", 1)[0]
    kept = (line for line in code.splitlines() if not re.match(r"\s*(?:\.loc|\.file|//|\$L__tmp)", line))
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()
