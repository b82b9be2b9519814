"""Parameters as a formula of their published names; the C++ twin is src/model/hash_fill.h."""
import numpy as np


def fnv1a(name: str) -> int:
    value = 0x811C9DC5
    for byte in name.encode("ascii"):
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def hash_values(name: str, count: int) -> np.ndarray:
    """`count` values in [-1, 1) in double precision."""
    with np.errstate(over="ignore"):
        h = np.uint32(fnv1a(name)) + np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1)
        h ^= h >> np.uint32(16)
        h *= np.uint32(0x85EBCA6B)
        h ^= h >> np.uint32(13)
        h *= np.uint32(0xC2B2AE35)
        h ^= h >> np.uint32(16)
    return 2.0 * ((h >> np.uint32(8)).astype(np.float64) / 2.0**24 - 0.5)


def tensor(name: str, shape, scales: dict, salt: str = "") -> np.ndarray:
    """The tensor called `name`. `salt` in front of the hashed name gives another set of weights."""
    values = hash_values(salt + name, int(np.prod(shape))).reshape(shape)
    if name.endswith("norm.weight"):
        return 1.0 + scales["norm"] * values
    if name == "embed.weight":
        return scales["embedding"] * values
    return scales["other"] * values


def hash_table(vocab_size: int, slots: int, experts: int) -> np.ndarray:
    token = np.arange(vocab_size, dtype=np.int64)[:, None]
    slot = np.arange(slots, dtype=np.int64)[None, :]
    return (5 * token + 1 + 2 * slot) % experts
