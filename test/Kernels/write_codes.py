# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Every f16 and bf16 input, over many scales, becomes the byte that division, clamp and ml_dtypes give."""
import ml_dtypes
import numpy as np

from kernel_build import Layout
from kernel_case import from_bits
from kernel_run import Suite

# Calibrated sizes, their neighbours, ends of the f32 range, powers of two.
SCALES = [1.0, 0.05, 0.0123, 0.003, 1.7, float(np.nextafter(np.float32(0.05), np.float32(1))), 3.1e-5, 777.25,
          1.1754944e-38, 3.0e38, 0.25, 2.0**-9, 2.0**127, 2.0**-126]


def codes(bits, in_type, scale, cache_type=0):
    """Reference: f32 division to nearest, saturation, conversion to nearest; every NaN is 0x7F."""
    with np.errstate(all="ignore"):
        x = from_bits(bits, in_type).astype(np.float32) / np.float32(scale)
    top, kind = ((448, ml_dtypes.float8_e4m3fn), (57344, ml_dtypes.float8_e5m2))[cache_type]
    byte = np.clip(x, -top, top).astype(kind).view(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), byte)


def is_pow2(scale):
    return np.frexp(np.float32(scale))[0] == 0.5


def main():
    suite = Suite(__doc__)
    heads, dim, page = 2, 64, 16
    layout = Layout("nhd", page, heads, dim)
    every = np.arange(65536, dtype=np.uint16).reshape(-1, heads, dim)
    flipped = every[::-1].copy()
    tokens = every.shape[0]
    instances = {}
    for arch in (90, 80):
        for in_type in (0, 1):
            for pow2 in ((0, 0), (0, 1), (1, 0), (1, 1)):
                instances[f"write_{arch}_{in_type}_{pow2[0]}{pow2[1]}"] = dict(
                    arch=arch, in_type=in_type, kv_heads=heads, head_dim=dim, page_size=page, layout=layout,
                    k_scale_is_pow2=pow2[0], v_scale_is_pow2=pow2[1])
    for arch in (90, 80):
        suite.write.add({n: v for n, v in instances.items() if v["arch"] == arch})

    pages = tokens // page
    for arch in (90, 80):
        for in_type in (0, 1):
            for n, scale in enumerate(SCALES):
                scales = (scale, SCALES[(n + 3) % len(SCALES)])
                pow2 = tuple(int(is_pow2(s)) for s in scales)
                # What is a power of two may be divided by all the same.
                for flags in {pow2, (0, 0)} if n == 0 else {pow2}:
                    name = f"write_{arch}_{in_type}_{flags[0]}{flags[1]}"
                    pools, findings = suite.write.run(name, every, flipped, np.arange(tokens), pages, scales)
                    problems = list(findings)
                    for which, pool, bits, s in zip("kv", pools, (every, flipped), scales):
                        want = codes(bits, in_type, s).reshape(-1)
                        if (pool != want).any():
                            at = int(np.flatnonzero(pool != want)[0])
                            problems.append(f"{which} scale {s}: input 0x{bits.reshape(-1)[at]:04x} gives 0x{pool[at]:02x}, "
                                            f"expected 0x{want[at]:02x}; {(pool != want).sum()} differ")
                    suite.check(f"{name} scales {scales}", problems)

    # e5m2: every input at scales that reach its ends, and f32 rows with ties and
    # neighbours of ties of both types.
    finite = np.arange(128, dtype=np.uint8)
    for arch in (90, 80):
        suite.write.add({f"write_{arch}_{in_type}_e5m2": dict(
            arch=arch, in_type=in_type, kv_heads=heads, head_dim=dim, page_size=page, layout=layout, cache_type=1,
            k_scale_is_pow2=0, v_scale_is_pow2=0) for in_type in (0, 1)})
        suite.write.add({f"write_{arch}_f32_{c}": dict(
            arch=arch, in_type=2, kv_heads=heads, head_dim=dim, page_size=page, layout=layout, cache_type=c,
            k_scale_is_pow2=0, v_scale_is_pow2=0) for c in (0, 1)})
        for in_type, scales in ((0, (1.0, 0.0123)), (1, (0.05, 777.25)), (1, (1.0, 2.0**-126))):
            pools, findings = suite.write.run(f"write_{arch}_{in_type}_e5m2", every, flipped, np.arange(tokens), pages, scales)
            for which, pool, bits, s in zip("kv", pools, (every, flipped), scales):
                want = codes(bits, in_type, s, 1).reshape(-1)
                at = np.flatnonzero(pool != want)
                suite.check(f"sm_{arch} e5m2 {which} type {in_type} scale {s}", findings + [
                    f"input 0x{bits.reshape(-1)[i]:04x} gives 0x{pool[i]:02x}, expected 0x{want[i]:02x}" for i in at[:4]])
        for c, kind in ((0, ml_dtypes.float8_e4m3fn), (1, ml_dtypes.float8_e5m2)):
            values = finite.view(kind).astype(np.float32)
            values = np.unique(values[np.isfinite(values)])
            ties = (values[1:] + values[:-1]) / 2
            x = np.concatenate([values, ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(0)),
                                np.float32([464, 465, 57344, 61440, 61441, 1e30, np.inf, np.nan, 1e-40, 2.0**-17])])
            x = np.resize(np.concatenate([x, -x]).astype(np.float32), (16, heads, dim))
            pools, findings = suite.write.run(f"write_{arch}_f32_{c}", x.view(np.uint32), x[::-1].copy().view(np.uint32), np.arange(16),
                                              1, (1.0, 0.3))
            for which, pool, data, s in zip("kv", pools, (x, x[::-1].copy()), (1.0, 0.3)):
                want = codes(data.view(np.uint32), 2, s, c).reshape(-1)
                at = np.flatnonzero(pool != want)
                suite.check(f"sm_{arch} f32 rows to cache type {c} {which}", findings + [
                    f"{data.reshape(-1)[i]} gives 0x{pool[i]:02x}, expected 0x{want[i]:02x}" for i in at[:4]])

    # The vectors of the specification.
    k = np.zeros((1, heads, dim), np.float32)
    for scale, pairs in ((0.05, ((3.5, 0x69), (-3.5, 0xE9), (22.4, 0x7E))),
                         (1.0, ((1, 0x38), (500, 0x7E), (17, 0x58), (19, 0x5A), (2.0**-10, 0x00), (0.001, 0x01),
                                (447, 0x7E), (448, 0x7E), (449, 0x7E), (464, 0x7E), (465, 0x7E), (1e10, 0x7E),
                                (np.inf, 0x7E), (-np.inf, 0xFE), (np.nan, 0x7F)))):
        for x, want in pairs:
            for arch in (90, 80):
                with np.errstate(over="ignore"):
                    k[0, 0, 0] = x
                    bits = k.astype(np.float16).view(np.uint16)
                pools, findings = suite.write.run(f"write_{arch}_0_00", bits, bits, [0], 1, (scale, scale))
                got = int(pools[0][0])
                suite.check(f"{x} / {scale}", findings + ([] if got == want else [f"0x{got:02x}, expected 0x{want:02x}"]))
    suite.finish()


if __name__ == "__main__":
    main()
