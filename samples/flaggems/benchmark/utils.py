"""Tensors for the sample benchmarks, and how a row describes them."""

import torch


def generate_tensor_input(shape, dtype, device):
    """A tensor of `shape`: normal values for a float dtype, the full range for integers, 0 or 1 for bool."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype, device=device)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, dtype=dtype, device="cpu").to(device)
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, shape, dtype=dtype, device="cpu").to(device)


def is_float_tensor(value):
    return torch.is_tensor(value) and torch.is_floating_point(value)


def describe(item):
    """What a row's Size Detail shows of an argument: sizes for tensors, plain values, None for anything else."""
    if isinstance(item, torch.Tensor):
        return item.size()
    if isinstance(item, (list, tuple)):
        return [describe(sub) for sub in item]
    if isinstance(item, dict):
        return {key: describe(value) for key, value in item.items()}
    return item if isinstance(item, (int, float, str, torch.dtype)) else None
