# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Keys are rotated before they are quantized, values are not; skipped rows and what lies behind the table are not read."""
import ml_dtypes
import numpy as np

from kernel_build import Layout
from kernel_case import from_bits, to_bits
from kernel_run import Suite

KINDS = {0: (ml_dtypes.float8_e4m3fn, 448), 1: (ml_dtypes.float8_e5m2, 57344), 2: (np.float16, np.inf), 3: (ml_dtypes.bfloat16, np.inf)}
POSITIONS = 40


def rotated(x, table, positions, dim, interleaved):
    """f32 rows [token][head][dim], each product and sum rounded."""
    x, half = x.copy(), dim // 2
    first = slice(0, dim, 2) if interleaved else slice(0, half)
    second = slice(1, dim, 2) if interleaved else slice(half, dim)
    cos, sin = (part[positions][:, None] for part in (table[:, :half], table[:, half:]))
    a, b = x[..., first].copy(), x[..., second].copy()
    x[..., first], x[..., second] = a * cos - b * sin, b * cos + a * sin
    return x


def encoded(x, scale, cache_type):
    kind, most = KINDS[cache_type]
    if cache_type < 2:
        x = np.clip(x / np.float32(scale), -most, most)
    return np.ascontiguousarray(x.astype(kind)).view(np.uint8)


def table_of(rng, dim):
    """Cosines and sines of angles as models have them; rows of NaN where no position may look."""
    angles = np.arange(POSITIONS)[:, None] * 10000.0 ** (-np.arange(dim // 2) / (dim // 2))
    table = np.concatenate([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    table[[0, 17, POSITIONS - 2]] = np.nan
    return table


def rows(rng, tokens, pool):
    """Slots and positions: some rows have no slot and an impossible position, two a slot and a position outside the table."""
    slots = rng.permutation(pool)[:tokens].astype(np.int64)
    positions = rng.choice([p for p in range(POSITIONS) if p not in (0, 17, POSITIONS - 2)], tokens).astype(np.int64)
    positions[0], positions[1] = POSITIONS - 1, 1
    slots[[2, 9]], positions[[2, 9]] = -1, (1 << 60, -(1 << 60))
    slots[3], positions[3] = pool, -7
    positions[4], positions[5] = POSITIONS, -1
    written = [t for t in range(tokens) if 0 <= slots[t] < pool and 0 <= positions[t] < POSITIONS]
    return slots, positions, written


def main():
    suite = Suite(__doc__)
    rng = np.random.default_rng(8)
    tokens, pages = 21, 3
    # (heads, head dim, rotary dim): whole heads, parts, halves that are no multiples of 16 or of 2.
    shapes = ((2, 64, 64), (3, 128, 64), (1, 256, 256), (5, 80, 32), (2, 80, 20), (2, 96, 24), (1, 64, 2), (2, 112, 112))
    for arch in (90, 80):
        instances = {}
        for interleaved in (0, 1):
            for heads, dim, rotary in shapes:
                for in_type, cache_type in ((1, 0), (0, 1), (2, 0), (1, 3)) if dim in (64, 80) else ((1, 0),):
                    layout = ("nhd", "hnd", "packed")[len(instances) % 3]
                    name = f"r{arch}_{interleaved}_{heads}_{dim}_{rotary}_{in_type}_{cache_type}"
                    instances[name] = dict(
                        arch=arch, in_type=in_type, kv_heads=heads, head_dim=dim, page_size=16, cache_type=cache_type, per_head=0,
                        layout=Layout(layout, 16, heads, dim, 2 if cache_type >= 2 else 1), rotary_dim=rotary,
                        k_scale_is_pow2=len(instances) % 2, v_scale_is_pow2=0, rope_interleaved=interleaved, rope_positions=POSITIONS)
        instances[f"heads{arch}"] = dict(instances[f"r{arch}_0_3_128_64_1_0"], per_head=1, k_scale_is_pow2=0)
        suite.write.add(instances)
        for name, v in instances.items():
            heads, dim, lay, size = v["kv_heads"], v["head_dim"], v["layout"], 2 if v["cache_type"] >= 2 else 1
            scales = (0.25 if v["k_scale_is_pow2"] else 0.05, 0.3)
            given = [s * 1.7 ** np.arange(heads) for s in scales] if v["per_head"] else scales
            scales = [np.float32(s)[:, None] for s in given] if v["per_head"] else scales
            slots, positions, written = rows(rng, tokens, pages * 16)
            table = table_of(rng, v["rotary_dim"])
            k, v_bits = (to_bits(rng.standard_normal((tokens, heads, dim)).astype(np.float32) * 8, v["in_type"]) for _ in range(2))
            pools, findings = suite.write.run(name, k, v_bits, slots, pages, given, rope=(table, positions))
            safe = np.where(np.isin(np.arange(tokens), written), positions, 1)
            want = [np.full_like(pool, 0xAA) for pool in pools]
            for x, pool, strides, base, scale in (
                    (rotated(from_bits(k, v["in_type"]).astype(np.float32), table, safe, v["rotary_dim"], v["rope_interleaved"]), want[0],
                     lay.k, 0, scales[0]),
                    (from_bits(v_bits, v["in_type"]).astype(np.float32), want[-1], lay.v, lay.v_offset or 0, scales[1])):
                bytes_ = encoded(x, scale, v["cache_type"])
                for t in written:
                    for h in range(heads):
                        at = base + slots[t] // 16 * strides[0] + slots[t] % 16 * strides[1] + h * strides[2]
                        pool[at:at + dim * size] = bytes_[t, h]
            suite.check(name, findings + [f"pool {n}: {(a != b).sum()} bytes differ, the first at {np.flatnonzero(a != b)[0]}"
                                          for n, (a, b) in enumerate(zip(pools, want)) if (a != b).any()])

        # The rotary part of latent rows.
        instances = {f"l{arch}_{interleaved}_{in_type}_{cache_type}_{rope}": dict(
            arch=arch, in_type=in_type, cache_type=cache_type, rope_dim=rope, page_size=16, rotary_dim=rope, rope_interleaved=interleaved,
            rope_positions=POSITIONS)
            for interleaved in (0, 1) for in_type, cache_type, rope in ((1, 0, 64), (0, 4, 64), (2, 3, 64))}
        for name, v in suite.write_latent.add(instances).items():
            slots, positions, written = rows(rng, tokens, pages * 16)
            table, width, rope = table_of(rng, v["rope_dim"]), v["token_stride"], v["rope_dim"]
            latent, rotary = (to_bits(rng.standard_normal((tokens, n)).astype(np.float32), v["in_type"]) for n in (512, rope))
            pool, findings = suite.write_latent.run(name, latent, rotary, slots, pages, 0.05, rotation=(table, positions))
            plain, _ = suite.write_latent.run(name, latent, rotary, slots, pages, 0.05,
                                              rotation=(np.full_like(table, np.nan), np.where(positions < 0, positions, 10 ** 9)))
            safe = np.where(np.isin(np.arange(tokens), written), positions, 1)
            turned = rotated(from_bits(rotary, v["in_type"]).astype(np.float32)[:, None], table, safe, rope, v["rope_interleaved"])[:, 0]
            want = encoded(turned, 0.05, 3 if v["cache_type"] == 4 else v["cache_type"])
            problems = findings + ["a position outside the table is written"] * int((plain != 0xAA).any())
            got = pool.reshape(-1, width)[slots[written]][:, -want.shape[1]:]
            if (got != want[written]).any():
                problems.append(f"{(got != want[written]).sum()} rotary bytes differ")
            others = np.delete(pool.reshape(-1, width), slots[written], 0)
            suite.check(name, problems + ["other rows are written"] * int((others != 0xAA).any()))
    suite.finish()


if __name__ == "__main__":
    main()
