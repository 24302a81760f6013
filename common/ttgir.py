"""ttgir.py - count layout conversions in TTGIR text, and give a text its identity: plugins/ttgir_text.py, for scripts.

Pytest plugins need the same functions and see only plugins/ on their path; the code lies there.
"""
from plugins.ttgir_text import (TRIP, Converts, NotTtgir, count_converts, digest_ptx, digest_ttgir, strip_locations,
                                strip_noise)

__all__ = ["TRIP", "Converts", "NotTtgir", "count_converts", "digest_ptx", "digest_ttgir", "strip_locations", "strip_noise"]
