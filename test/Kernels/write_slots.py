# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Rows land in their slots, in every layout, and nowhere else; negative and too large slots are ignored."""
import ml_dtypes
import numpy as np

from kernel_build import Layout
from kernel_case import bf16_bits, from_bits, to_bits
from kernel_run import Suite


def expected(k, v, slots, pages, values, scales, fill, num_slots):
    """The pools after the write, with numpy."""
    lay, page = values["layout"], values["page_size"]
    pools = [np.full(pages * lay.page_bytes, fill, np.uint8) for _ in range(1 if lay.v_offset is not None else 2)]
    for data, pool, strides, base, scale in ((k, pools[0], lay.k, 0, scales[0]), (v, pools[-1], lay.v, lay.v_offset or 0, scales[1])):
        x = (data.astype(np.uint32) << 16).view(np.float32) / np.float32(scale)
        code = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        for t, slot in enumerate(slots):
            if 0 <= slot < num_slots:
                for h in range(values["kv_heads"]):
                    at = base + slot // page * strides[0] + slot % page * strides[1] + h * strides[2]
                    pool[at:at + code.shape[-1]] = code[t, h]
    return pools


def main():
    suite = Suite(__doc__)
    rng = np.random.default_rng(3)
    for arch in (90, 80):
        instances = {}
        for layout in ("nhd", "hnd", "packed", "packed_head", "mixed"):
            for heads, dim, v_dim, page in ((1, 64, 64, 16), (3, 64, 64, 32), (8, 128, 128, 64), (20, 128, 128, 16), (5, 64, 64, 128), (2, 192, 128, 16), (9, 64, 208, 4)):
                instances[f"write_{arch}_{layout}_{heads}_{dim}_{v_dim}_{page}"] = dict(
                    arch=arch, in_type=1, kv_heads=heads, head_dim=dim, v_head_dim=v_dim, page_size=page, k_scale_is_pow2=0,
                    v_scale_is_pow2=0, layout=Layout(layout, page, heads, dim, v_dim=v_dim))
        suite.write.add(instances)
        for name, values in instances.items():
            heads, page, tokens = values["kv_heads"], values["page_size"], 21
            pages = max(3, 24 // page)
            slots = rng.permutation(pages * page)[:tokens].astype(np.int64)
            slots[[2, 9]] = -1
            slots[5], slots[11], slots[12] = pages * page, 1 << 40, -(1 << 62)
            k, v = (bf16_bits(rng.standard_normal((tokens, heads, values[d])) * 8) for d in ("head_dim", "v_head_dim"))
            for fill in (0x00, 0xAA):
                pools, findings = suite.write.run(name, k, v, slots, pages, (0.05, 0.3), fill=fill)
                want = expected(k, v, slots, pages, values, (0.05, 0.3), fill, pages * page)
                problems = findings + [f"pool {n} differs at byte {np.flatnonzero(a != b)[0]}"
                                       for n, (a, b) in enumerate(zip(pools, want)) if (a != b).any()]
                suite.check(f"{name} fill {fill:#x}", problems)
        # A scale for each KV head.
        scales = [0.05 * 1.7 ** np.arange(3), 0.3 / 1.3 ** np.arange(3)]
        per_head = dict(arch=arch, in_type=1, kv_heads=3, head_dim=80, v_head_dim=64, page_size=16, k_scale_is_pow2=0, v_scale_is_pow2=0,
                        per_head=1, layout=Layout("packed", 16, 3, 80, v_dim=64))
        suite.write.add({f"per_head_{arch}": per_head})
        k, v = (bf16_bits(rng.standard_normal((21, 3, dim)) * 8) for dim in (80, 64))
        slots = rng.permutation(48)[:21]
        pools, findings = suite.write.run(f"per_head_{arch}", k, v, slots, 3, scales)
        want = expected(k, v, slots, 3, per_head, [np.float32(s)[:, None] for s in scales], 0xAA, 48)
        suite.check("a scale for each head", findings + ["pool differs"] * any((a != b).any() for a, b in zip(pools, want)))
        # Caches that are not quantized: the same bits, or one rounding.
        for in_type, cache_type in ((0, 2), (1, 3), (2, 2), (2, 3), (0, 3)):
            lay = Layout("hnd", 16, 2, 64, 2)
            name = f"plain_{arch}_{in_type}_{cache_type}"
            suite.write.add({name: dict(arch=arch, in_type=in_type, kv_heads=2, head_dim=64, page_size=16, layout=lay,
                                        cache_type=cache_type, k_scale_is_pow2=1, v_scale_is_pow2=1)})
            x = rng.standard_normal((21, 2, 64)).astype(np.float32)
            bits = to_bits(x, in_type)
            bits[0, 0, :2] = to_bits(np.float32([np.inf, np.nan]), in_type)
            slots = np.arange(20, 41)
            pools, findings = suite.write.run(name, bits, bits[::-1].copy(), slots, 3, (1, 1))
            for which, pool, data in zip("kv", pools, (bits, bits[::-1])):
                got = np.array([[pool.view(np.uint16)[(s // 16 * lay.k[0] + s % 16 * lay.k[1] + h * lay.k[2]) // 2:][:64]
                                 for h in range(2)] for s in slots])
                want = data if in_type == cache_type - 2 else to_bits(from_bits(data, in_type), cache_type - 2)
                same = (got == want) | (np.isnan(from_bits(got, cache_type - 2)) & np.isnan(from_bits(want, cache_type - 2)))
                untouched = pool.size - got.size * 2 == (pool == 0xAA).sum() or (got.view(np.uint8) == 0xAA).any()
                suite.check(f"{name} {which}", findings + ["bits differ"] * (not same.all()) + ["other bytes"] * (not untouched))
        # num_slots below the pool: the bound is the argument.
        name, values = next(iter(instances.items()))
        k, v = (bf16_bits(rng.standard_normal((4, 1, 64))) for _ in range(2))
        pools, findings = suite.write.run(name, k, v, [3, 4, 5, 6], 2, (1, 1), num_slots=5)
        want = expected(k, v, [3, 4, 5, 6], 2, values, (1, 1), 0xAA, 5)
        suite.check("slots at or past num_slots", findings + ["pool differs"] * any((a != b).any() for a, b in zip(pools, want)))
        # No token at all still is one CTA.
        suite.check("every slot negative", suite.write.run(name, k, v, [-1] * 4, 1, (1, 1))[1])
    suite.finish()


if __name__ == "__main__":
    main()
