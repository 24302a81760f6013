"""binary.py - what a compiled kernel's ELF file (a cubin) says: registers, spills, and the identity of its code.

A cubin holds its PTX and line tables with paths of the sources, so its bytes differ where the code does not. `digest`
covers the sections that reach the device (SHF_ALLOC) and NVIDIA's .nv.info; for what is no ELF, all bytes.

    registers   per thread, .nv.info's EIATTR_REGCOUNT
    spills      32-bit words of local memory per thread (EIATTR_MIN_STACK_SIZE / 4), as Triton's n_spills

Both are what `cuobjdump -res-usage` prints as REG and STACK; None for another vendor's binary.
"""
import hashlib
import struct
from dataclasses import dataclass

ALLOC, NOBITS = 0x2, 8
INFO_SECTION, SIZED_FORMAT, REGCOUNT, MIN_STACK_SIZE = ".nv.info", 0x04, 0x2F, 0x12


@dataclass(frozen=True)
class BinaryFacts:
    digest: str
    registers: int | None
    spills: int | None


def read_binary(data):
    """BinaryFacts of one kernel's binary, given as bytes."""
    try:
        sections = list(read_sections(data))
    except (struct.error, ValueError):
        return BinaryFacts(hashlib.sha256(data).hexdigest(), None, None)
    hasher = hashlib.sha256()
    for name, flags, size, content in sections:
        if flags & ALLOC or name.startswith(INFO_SECTION):
            hasher.update(f"{name} {size} ".encode() + content)
    facts = {}
    for name, _, _, content in sections:
        if name == INFO_SECTION:
            facts.update(read_info(content))
    stack = facts.get(MIN_STACK_SIZE)
    return BinaryFacts(hasher.hexdigest(), facts.get(REGCOUNT), None if stack is None else stack // 4)


def read_sections(data):
    """(name, flags, size, bytes) of each section of a 64-bit little-endian ELF file. ValueError for anything else."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    count, names = struct.unpack_from("<HH", data, 0x3C)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]
    for name, kind, flags, _, offset, size, *_ in headers:
        start = headers[names][4] + name
        content = b"" if kind == NOBITS else data[offset:offset + size]
        yield data[start:data.index(b"\0", start)].decode(), flags, size, content


def read_info(content):
    """{attribute: value} of .nv.info's records (symbol, value); the largest where several functions have one."""
    found, at = {}, 0
    while at + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == SIZED_FORMAT:
            if size == 8:
                found[attribute] = max(struct.unpack_from("<4xI", content, at)[0], found.get(attribute, 0))
            at += size
    return found
