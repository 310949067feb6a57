# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Quantize, dequantize, merge of partial results and page copies, bit by bit or against double precision."""
import ml_dtypes
import numpy as np

from kernel_case import VALUES, from_bits, to_bits, ulp
from kernel_run import Suite

ARCHES = (90, 80)


def main():
    suite = Suite(__doc__)
    kernels = {}
    for arch in ARCHES:
        for t in (0, 1, 2):
            for c in (0, 1):
                kernels[f"quantize_{arch}_{t}_{c}"] = ("kvcache_quantize", dict(arch=arch, in_type=t, cache_type=c))
                kernels[f"dequantize_{arch}_{t}_{c}"] = ("kvcache_dequantize", dict(arch=arch, out_type=t, cache_type=c))
            kernels[f"merge_{arch}_{t}"] = ("kvcache_merge_states", dict(arch=arch, type=t, head_dim=80))
        # Keys of 3 heads of 80 bytes in pages of 4 tokens with gaps, values of 32 bytes with the tokens inside.
        kernels[f"copy_{arch}"] = ("kvcache_copy_pages", dict(
            arch=arch, kv_heads=3, page_size=4, k_row_bytes=80, v_row_bytes=32))
    modules = {}
    for arch in ARCHES:
        built = {n: suite.builder.elementwise(n, f, **v) for n, (f, v) in kernels.items() if v["arch"] == arch}
        module = suite.device.module(suite.builder.ptx(list(built.values()), arch))
        modules.update(dict.fromkeys(built, module))
    d, g = suite.device, suite.builder.geometry

    def launch(name, grid, *arguments):
        """Arrays are buffers, a tuple (array, True) one that is written; the rest are scalars."""
        d.clear()
        values = []
        for n, a in enumerate(arguments):
            if isinstance(a, tuple):
                values.append(np.uint64(d.buffer(a[0], f"argument{n}", writable=True)))
            else:
                values.append(np.uint64(d.buffer(a, f"argument{n}")) if isinstance(a, np.ndarray) else a)
        return d.launch(modules[name], name, grid, 0, values)

    rng = np.random.default_rng(5)
    special = np.float32([np.inf, -np.inf, np.nan, 0, -0.0, 1e-40, 447, 448, 449, 464, 465, 57344, 61440, 1e10, 3.3895314e38])
    for arch in ARCHES:
        for t in (0, 1, 2):
            for c in (0, 1):
                top, kind = ((448, ml_dtypes.float8_e4m3fn), (57344, ml_dtypes.float8_e5m2))[c]
                for count, scale in ((5003, 0.0123), (16, 2.0), (7, 0.05)):
                    x = np.resize(np.concatenate([special, rng.standard_normal(3000) * 10.0 ** rng.uniform(-6, 4, 3000)]), count)
                    with np.errstate(all="ignore"):
                        bits = np.ascontiguousarray(to_bits(x.astype(np.float32), t))
                        y = from_bits(bits, t).astype(np.float32) * (np.float32(1) / np.float32(scale))
                        want = np.where(np.isnan(y), np.uint8(0x7F), np.clip(y, -top, top).astype(kind).view(np.uint8))
                    out = np.full(count + 3, 0xAA, np.uint8)
                    findings = launch(f"quantize_{arch}_{t}_{c}", (g.elementwise_grid(count), 1, 1), bits, (out, True),
                                      np.float32(scale), np.int64(count))
                    suite.check(f"quantize sm_{arch} type {t} to {c}, {count} elements", findings + [
                        f"{x[i]} gives 0x{out[i]:02x}, expected 0x{want[i]:02x}" for i in np.flatnonzero(out[:count] != want)[:4]] +
                        ["bytes behind were written"] * bool((out[count:] != 0xAA).any()))
                for count, scale in ((256, 1.0), (261, 0.0123)):
                    codes = np.resize(np.arange(256, dtype=np.uint8), count)
                    with np.errstate(all="ignore"):
                        want = to_bits(VALUES[c][codes].astype(np.float32) * np.float32(scale), t)
                    out = np.full(count + 2, 0x5A5A, want.dtype)
                    findings = launch(f"dequantize_{arch}_{t}_{c}", (g.elementwise_grid(count), 1, 1), codes, (out, True),
                                      np.float32(scale), np.int64(count))
                    both_nan = np.isnan(from_bits(out[:count].copy(), t)) & np.isnan(from_bits(want, t))
                    suite.check(f"dequantize sm_{arch} {c} to type {t}, {count} codes", findings + [
                        f"code 0x{codes[i]:02x} gives 0x{out[i]:x}, expected 0x{want[i]:x}"
                        for i in np.flatnonzero((out[:count] != want) & ~both_nan)[:4]] +
                        ["elements behind were written"] * bool((out[count:] != 0x5A5A).any()))

            # Partials: far apart, equal, one empty (whose output is NaN), both empty.
            lse_a = np.float32([0, 3, -100, -np.inf, 5, -np.inf, 200, 1, np.nan])
            lse_b = np.float32([0, -2, 90, 7, -np.inf, -np.inf, 199, np.nan, -np.inf])
            rows = len(lse_a)
            a, b = (to_bits(rng.standard_normal((rows, 80)).astype(np.float32), t) for _ in range(2))
            nan = to_bits(np.float32([np.nan]), t)[0]
            a[3], b[4], a[5], b[5] = nan, nan, nan, nan
            out, lse = np.full((rows, 80), 0x5A5A, a.dtype), np.full(rows, 77, np.float32)
            findings = launch(f"merge_{arch}_{t}", (g.elementwise_grid(rows * 80), 1, 1), a, lse_a, b, lse_b, (out, True), (lse, True),
                              np.int32(rows))
            x, y = (np.nan_to_num(from_bits(v, t).astype(np.float64)) for v in (a, b))
            with np.errstate(all="ignore"):
                want_lse = np.logaddexp(lse_a.astype(np.float64), lse_b)
                wa, wb = (np.where(np.isneginf(want_lse), 0, np.exp(l - want_lse)) for l in (lse_a.astype(np.float64), lse_b))
            want = wa[:, None] * x + wb[:, None] * y
            got, problems = from_bits(out, t).astype(np.float64), list(findings)
            for r in range(rows - 2):
                error = np.abs(got[r] - want[r]) - ulp(want[r], t) - 4e-6 * (np.abs(x[r]) + np.abs(y[r]))
                if not (error <= 0).all():
                    problems.append(f"row {r}: {got[r, :3]}, expected {want[r, :3]}")
                if not (lse[r] == want_lse[r] or abs(lse[r] - want_lse[r]) <= 1e-5 * max(1, abs(want_lse[r]))):
                    problems.append(f"LSE {r} is {lse[r]}, expected {want_lse[r]}")
            if not (np.isnan(got[-2:]).all() and np.isnan(lse[-2:]).all()):
                problems.append("an LSE of NaN does not reach its row and LSE")
            suite.check(f"merge sm_{arch} type {t}", problems)

        pools = [rng.integers(0, 256, (9, size)).astype(np.uint8) for size in (2064, 384)]
        pairs, wanted = np.int64([[0, 5], [3, 8], [-1, 2], [4, -7], [9, 1], [2, 1 << 40], [0, 7]]), [p.copy() for p in pools]
        for want, shape, strides in zip(wanted, ((9, 4, 3, 80), (9, 4, 3, 32)), ((2064, 512, 96, 1), (384, 32, 128, 1))):
            rows = np.lib.stride_tricks.as_strided(want, shape, strides)
            rows[[5, 8, 7]] = rows[[0, 3, 0]]
        findings = launch(f"copy_{arch}", (len(pairs), 3, 1), *((pool, True) for pool in pools), pairs, np.int64(9),
                          np.int64(2064), np.int32(512), np.int32(96), np.int64(384), np.int32(32), np.int32(128))
        suite.check(f"copy pages sm_{arch}", findings + [f"page {p} differs" for pool, want in zip(pools, wanted)
                                                         for p in range(9) if (pool[p] != want[p]).any()])
    suite.finish()


if __name__ == "__main__":
    main()
