"""The write of a cache divides by its scale s. Where s is a power of two, the
kernels multiply by 1 / s instead. This compares both in f32, bit for bit.

usage: division.py            every power of two, sampled x
       division.py --all      every f32 x, powers of two over the whole range;
                              and codes near ties for other s
"""

import sys

import ml_dtypes
import numpy as np

POWERS = [np.float32(2.0**e) for e in range(-126, 128)]


def differing(x, s):
    """How many x have another quotient (bits; one NaN is as good as another)."""
    with np.errstate(all="ignore"):
        exact, replaced = x / s, x * (np.float32(1) / s)
    same = exact.view(np.uint32) == replaced.view(np.uint32)
    return int((~(same | (np.isnan(exact) & np.isnan(replaced)))).sum())


def wrong_codes(x, s):
    with np.errstate(all="ignore"):
        exact, replaced = (
            np.clip(q, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
            for q in (x / s, x * (np.float32(1) / s))
        )
    return int(((exact != replaced) & ~np.isnan(x)).sum())


def near_ties(s):
    """x whose quotient lies around the middle of two codes."""
    codes = np.arange(0x7E, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    x = ((codes[:-1] + codes[1:]) / 2 * s).view(np.uint32)
    return np.concatenate([x + np.uint32(d) for d in range(4)] + [x - np.uint32(d) for d in range(1, 4)]).view(np.float32)


def sampled():
    rng = np.random.default_rng(1)
    bits = np.concatenate([
        np.arange(1 << 16, dtype=np.uint32) << 16,
        rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32),
        # Around the smallest normal number, where rounding could happen twice.
        np.arange(0x007FF000, 0x00801000, dtype=np.uint32),
        np.arange(0, 4096, dtype=np.uint32),
    ])
    return bits.view(np.float32)


def main():
    if "--all" not in sys.argv:
        x = sampled()
        bad = [float(s) for s in POWERS if differing(x, s)]
        # The comparison can fail: other scales do differ, in codes too.
        others = sum(differing(x, np.float32(s)) > 0 for s in (0.05, 0.0123, 3.0))
        wrong = sum(wrong_codes(near_ties(s), s) for s in (np.float32(0.05), np.float32(0.0123)))
        if bad or others != 3 or wrong == 0:
            sys.exit(f"differs for s in {bad}; {others} of 3 other scales differ; {wrong} codes differ")
        print(f"{len(POWERS)} powers of two, {len(x)} values of x: equal")
        return
    powers = [np.float32(2.0**e) for e in (-126, -24, -9, -1, 3, 127)]
    counts = dict.fromkeys(powers, 0)
    step = 1 << 22
    for start in range(0, 1 << 32, step):
        x = np.arange(start, start + step, dtype=np.uint64).astype(np.uint32).view(np.float32)
        for s in powers:
            counts[s] += differing(x, s)
    for s, count in counts.items():
        print(f"s = {float(s):g}: {count} of 2^32 quotients differ")
    # The comparison can fail: other scales give other codes near ties.
    wrong = sum(wrong_codes(near_ties(s), s) for s in (np.float32(0.05), np.float32(0.0123)))
    print(f"other scales: {wrong} codes near ties would be wrong")
    if any(counts.values()) or not wrong:
        sys.exit("the replacement is not exact where it is used, or the test sees nothing")


main()
