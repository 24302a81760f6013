"""A Philox generator with the interface of torch's CUDA generator.

FlagGems reads its seed and offset as two int64 from ``get_state()``, and writes the advanced offset back with
``set_state()``. Torch's CPU generator is a Mersenne twister with another state, so the host device brings this one.
"""

import os

import torch

DEFAULT_SEED = 67280421310721  # what torch seeds every default generator with (c10::detail::default_rng_seed_val)
STATE_BYTES = 16


class PhiloxGenerator:
    """Seed and offset; seeding, also with the same seed again, starts at offset 0."""

    def __init__(self, seed=DEFAULT_SEED):
        self.device = torch.device("cpu")
        self.manual_seed(seed)

    def manual_seed(self, seed):
        """Seeds must lie in [-2^63, 2^64), as torch has it; negative ones count from the top."""
        seed = int(seed)
        if not -(2**63) <= seed < 2**64:
            raise RuntimeError(f"Overflow when unpacking long long: seed {seed} is not in [-2^63, 2^64)")
        self._seed, self._offset = seed % 2**64, 0
        return self

    def initial_seed(self):
        return self._seed

    def seed(self):
        """Seed from the operating system; returns the seed."""
        return self.manual_seed(int.from_bytes(os.urandom(8), "little")).initial_seed()

    def get_state(self):
        """A new uint8 tensor of 16 bytes: seed, then offset, as little-endian int64."""
        packed = self._seed.to_bytes(8, "little") + self._offset.to_bytes(8, "little")
        return torch.frombuffer(bytearray(packed), dtype=torch.uint8)

    def set_state(self, state):
        """Takes both the seed and the offset of a get_state(); a state of another size is refused."""
        data = state.detach().contiguous().numpy().tobytes()
        if len(data) != STATE_BYTES:
            raise RuntimeError(f"RNG state has {len(data)} bytes; the host device's generator needs {STATE_BYTES}")
        self._seed = int.from_bytes(data[:8], "little")
        self._offset = int.from_bytes(data[8:], "little")
        return self

    def get_offset(self):
        return self._offset

    def set_offset(self, offset):
        self._offset = int(offset)
