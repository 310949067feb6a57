# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Scales of tokens and KV heads, in side tensors or behind the codes of each row: the write computes them, attention
multiplies them in, and what is not seen may be NaN."""
import ml_dtypes
import numpy as np

from kernel_build import INLINE, SIDE, Layout
from kernel_case import Batch, from_bits, to_bits
from kernel_run import Suite
from write_rope import POSITIONS, rotated, rows, table_of


def scaled(x):
    """f32 rows to codes and scales, in f32 throughout."""
    x = x.astype(np.float32)
    top = np.fmax.reduce(np.abs(x), -1, initial=0).astype(np.float32)
    scale = np.maximum(top / np.float32(448), np.float32(1e-6))
    with np.errstate(invalid="ignore", over="ignore"):
        product = x * (np.float32(1) / scale)[..., None]
        codes = np.clip(product, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return np.where(np.isnan(product), np.uint8(0x7F), codes), scale


def check_writes(suite, arch, rng):
    tokens, pages = 21, 3
    instances = {}
    # pitch: of rows that end in their scale; 0 for side tensors.
    for heads, dim, rotary, interleaved, pitch, *v_dim in (
            (2, 64, 0, 0, 0), (3, 128, 0, 0, 0), (5, 80, 0, 0, 0), (1, 256, 64, 0, 0), (2, 112, 112, 1, 0), (4, 96, 24, 0, 0), (1, 16, 0, 0, 0),
            (2, 64, 0, 0, 68), (3, 128, 0, 0, 144), (5, 80, 0, 0, 84), (1, 256, 64, 0, 260), (2, 112, 112, 1, 128),
            (3, 64, 32, 0, 0, 144), (2, 192, 0, 0, 0, 128), (2, 192, 0, 0, 196, 128)):
        for in_type in (0, 1, 2) if dim == 64 else (1,):
            layout = ("nhd", "hnd", "packed")[len(instances) % 3]
            instances[f"t{arch}_{heads}_{dim}_{rotary}_{in_type}_{pitch}"] = dict(
                arch=arch, in_type=in_type, kv_heads=heads, head_dim=dim, v_head_dim=v_dim[0] if v_dim else dim, page_size=16,
                token_scales=INLINE if pitch else SIDE, layout=Layout(layout, 16, heads, dim, 1, pitch, *v_dim), rotary_dim=rotary, rope_interleaved=interleaved,
                rope_positions=POSITIONS if rotary else 0)
    suite.write.add(instances)
    for name, v in instances.items():
        heads, lay = v["kv_heads"], v["layout"]
        slots, positions, written = rows(rng, tokens, pages * 16)
        if not v["rotary_dim"]:
            written = [t for t in range(tokens) if 0 <= slots[t] < pages * 16]
        x = [rng.standard_normal((tokens, heads, v[dim])).astype(np.float32) * 10.0 ** rng.uniform(-3, 3, (tokens, heads, 1))
             for dim in ("head_dim", "v_head_dim")]
        x[0][written[0], 0] = 0                   # the floor of the scale
        x[1][written[1], 0, 1] = np.nan           # no part of the scale
        x[1][written[2], 0, 0] = np.inf if v["in_type"] == 2 else 1e4
        with np.errstate(over="ignore"):
            bits = [to_bits(part.astype(np.float32), v["in_type"]) for part in x]
        table = table_of(rng, v["rotary_dim"]) if v["rotary_dim"] else None
        side = [np.full((pages, 16, heads), -1, np.float32) for _ in range(2 if v["token_scales"] == SIDE else 0)]
        pools, findings = suite.write.run(name, *bits, slots, pages, side, rope=(table, positions) if v["rotary_dim"] else ())
        safe = np.where(np.isin(np.arange(tokens), written), positions, 1)
        wide = [from_bits(b, v["in_type"]).astype(np.float32) for b in bits]
        if v["rotary_dim"]:
            wide[0] = rotated(wide[0], table, safe, v["rotary_dim"], v["rope_interleaved"])
        want, want_side = [np.full_like(pool, 0xAA) for pool in pools], [np.full_like(s, -1) for s in side]
        for x, pool, strides, base, scales in ((wide[0], want[0], lay.k, 0, want_side[:1]),
                                               (wide[1], want[-1], lay.v, lay.v_offset or 0, want_side[1:])):
            codes, own = scaled(x)
            for t in written:
                for tensor in scales:
                    tensor[slots[t] // 16, slots[t] % 16] = own[t]
                for h in range(heads):
                    at = base + slots[t] // 16 * strides[0] + slots[t] % 16 * strides[1] + h * strides[2]
                    end = at + codes.shape[-1]
                    pool[at:end] = codes[t, h]
                    if not scales:
                        pool[end:end + 4] = own[t, h:h + 1].view(np.uint8)
        problems = findings + [f"pool {n}: {(a != b).sum()} codes differ" for n, (a, b) in enumerate(zip(pools, want)) if (a != b).any()]
        suite.check(name, problems + [f"{which} scales differ" for which, a, b in zip("kv", side, want_side)
                                      if (a.view(np.uint32) != b.view(np.uint32)).any()])


def main():
    suite = Suite(__doc__)
    rng = np.random.default_rng(11)
    for arch in (90, 80):
        check_writes(suite, arch, rng)
    # Scales differ by 2^18 between tokens; every option, a token-wise split, rows that share a CTA, every lack of an LSE.
    for arch, q_type, q_heads, kv_heads, dim, page, layout, pitch, more in (
            (90, 1, 8, 1, 128, 16, "nhd", 0, {}), (80, 1, 8, 1, 128, 16, "hnd", 0, {}), (90, 0, 6, 2, 64, 1, "packed", 0, dict(has_lse=0)),
            (90, 1, 16, 2, 80, 64, "nhd", 0, dict(num_splits=3)), (80, 2, 4, 4, 64, 8, "nhd", 0, {}),
            (90, 3, 4, 1, 256, 32, "hnd", 0, dict(has_soft_cap=1)), (90, 1, 8, 2, 64, 16, "nhd", 0, dict(rows=4, has_window=1)),
            (90, 1, 8, 2, 64, 16, "nhd", 0, dict(has_sinks=1, has_alibi=1, out_type=3)),
            (90, 1, 16, 2, 128, 16, "nhd", 132, {}), (90, 1, 16, 2, 128, 16, "nhd", 144, dict(num_splits=3)),
            (80, 1, 8, 1, 128, 64, "hnd", 132, dict(num_splits=2)), (90, 0, 6, 2, 64, 1, "packed", 68, dict(has_lse=0)),
            (90, 1, 16, 2, 80, 64, "packed", 84, {}), (80, 2, 4, 2, 96, 8, "nhd", 100, {}), (90, 1, 4, 2, 112, 32, "nhd", 116, dict(has_window=1, rows=4)),
            (90, 1, 4, 2, 112, 4, "hnd", 128, {}), (89, 1, 8, 4, 192, 16, "nhd", 196, {}), (90, 3, 4, 1, 256, 32, "hnd", 260, dict(has_soft_cap=1)),
            (120, 1, 8, 2, 256, 16, "nhd", 272, dict(has_sinks=1, has_alibi=1, out_type=3)),
            (90, 1, 8, 2, 192, 16, "nhd", 0, dict(v_head_dim=128)), (90, 1, 8, 2, 192, 16, "packed", 196, dict(v_head_dim=128, num_splits=2)),
            (80, 1, 4, 2, 64, 4, "hnd", 68, dict(v_head_dim=112))):
        shape = dict(arch=arch, q_type=q_type, q_heads=q_heads, kv_heads=kv_heads, head_dim=dim, page_size=page,
                     layout=Layout(layout, page, kv_heads, dim, 1, pitch, more.get("v_head_dim")), token_scales=INLINE if pitch else SIDE, **more)
        instance = suite.attention.add(**shape)
        queries = [1, 5, 1, 7, 1] if more.get("rows") else None
        batch = Batch(dict(instance[1]), [300, 33, 1, 64, 0] if not queries else [300, 33, 1, 64, 1], queries, k_scale=1, v_scale=1,
                      window=20 if more.get("has_window") else None, soft_cap=30.0 if more.get("has_soft_cap") else None, o_scale=0.5)
        result, findings = suite.attention.run(instance, batch)
        suite.check(f"sm_{arch} q{q_type} {q_heads}/{kv_heads} D{dim} page {page} {layout} pitch {pitch} {more}", findings + result.problems(has_lse=bool(more.get("has_lse", 1))))
    suite.finish()


if __name__ == "__main__":
    main()
