# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Attention over latent caches: formats, heads, splits and edges, against double precision, and its traffic."""
import numpy as np

from kernel_case import LatentBatch
from kernel_run import Suite


def main():
    suite = Suite(__doc__)
    batch_of = lambda instance, *args, **more: LatentBatch(instance[1], *args, **more)

    def attend(name, instance, *args, batch=None, **more):
        options = {k: more.pop(k) for k in ("late", "quantum", "launches") if k in more}
        return suite.attend(name, instance, batch or batch_of(instance, *args, **more), **options)

    # One case for each value of each dimension.
    cases = [
        (dict(arch=90, q_type=1, heads=64, page_size=16, num_splits=2), [150, 3, 0, 64]),
        (dict(arch=80, q_type=1, heads=64, page_size=64), [97, 1]),
        (dict(arch=90, q_type=0, heads=128, page_size=64, cache_type=0), [65]),
        (dict(arch=90, q_type=1, heads=8, page_size=1), [70, 17]),
        (dict(arch=80, q_type=1, heads=16, page_size=32, num_splits=3), [300, 40]),
        (dict(arch=80, q_type=0, heads=32, page_size=16, cache_type=1, num_splits=5), [400]),
        (dict(arch=90, q_type=1, heads=20, page_size=128, cache_type=1, latent_dim=256), [130]),
        (dict(arch=80, q_type=1, heads=40, page_size=8, latent_dim=256, num_splits=2), [150]),
        (dict(arch=90, q_type=1, heads=96, page_size=16, cache_type=3, num_splits=2), [100, 31]),
        (dict(arch=80, q_type=0, heads=12, page_size=64, cache_type=2, latent_dim=256), [100, 31]),
        (dict(arch=80, q_type=1, heads=64, page_size=64, cache_type=3), [40]),
        (dict(arch=90, q_type=1, heads=64, page_size=64, cache_type=4, num_splits=2), [100, 31]),
        (dict(arch=80, q_type=1, heads=16, page_size=16, cache_type=4), [100]),
        (dict(arch=90, q_type=1, heads=1, page_size=16, cache_type=4, has_lse=0), [100]),
        (dict(arch=89, q_type=1, heads=64, page_size=16), [70]),
        # Queries of f32 in two terms, 32 columns a CTA; FP8 queries and outputs.
        (dict(arch=90, q_type=2, heads=40, page_size=16, num_splits=2), [100, 17]),
        (dict(arch=80, q_type=2, out_type=1, heads=8, page_size=16, cache_type=1, latent_dim=256), [97]),
        (dict(arch=90, q_type=3, out_type=3, heads=64, page_size=16, num_splits=2), [100, 17, 0]),
        (dict(arch=80, q_type=3, out_type=4, heads=16, page_size=64), [70]),
        (dict(arch=80, q_type=4, out_type=3, heads=16, page_size=64, cache_type=4), [70]),
        (dict(arch=90, q_type=3, out_type=2, heads=12, page_size=16, cache_type=3, latent_dim=256), [70]),
        (dict(arch=90, q_type=4, out_type=0, heads=8, page_size=16, cache_type=2, latent_dim=256), [70]),
        (dict(arch=89, q_type=1, out_type=2, heads=8, page_size=16), [33]),
    ]
    for n, (values, lengths) in enumerate(cases):
        instance = suite.mla.add(**values)
        attend(f"case {n}", instance, lengths, seed=n, late=bool(n & 1), quantum=(0, 7, 53)[n % 3], o_scale=0.02)

    small = {a: suite.mla.add(arch=a, q_type=1, heads=4, page_size=16, num_splits=2) for a in (90, 80)}
    rows = {a: suite.mla.add(arch=a, q_type=1, heads=16, page_size=16, num_splits=2, rows=4) for a in (90, 80)}
    plain = suite.mla.add(arch=90, q_type=1, heads=4, page_size=16, cache_type=3)
    scaled = suite.mla.add(arch=90, q_type=1, heads=4, page_size=16, cache_type=4)
    for arch in (90, 80):
        attend("unused slots hold NaN", small[arch], [1, 3])
        attend("table tail holds huge and negative ids", small[arch], [17], spare_pages=6)
        attend("a padded sequence of length 0", small[arch], [33, 33, 33, 0])
        attend("only empty sequences", small[arch], [0, 0])
        attend("no rows at all", small[arch], [5, 9], [0, 0])
        attend("more queries than tokens", small[arch], [2, 40], [5, 1])
        attend("causal rows over splits", rows[arch], [130, 70, 3], [5, 4, 1], launches=2)
        attend("rows before the first key", rows[arch], [2, 66], [7, 3])
        for token, byte in ((5, 0x7F), (99, 0xFF)):
            batch = batch_of(small[arch], [100, 100])
            batch.set_bytes(0, token, 300, [byte])
            attend(f"NaN at token {token}", small[arch], batch=batch)
        batch = batch_of(small[arch], [40], [4])
        batch.q[2, 1, 3] = np.nan
        attend("NaN in one query head", small[arch], batch=batch)
        # One token far above thousands of others, and scores that keep growing.
        batch = batch_of(small[arch], [500], softmax_scale=1.0)
        batch.rows_bytes[batch.slot_used] = 0x20
        batch.set_bytes(0, 3, 0, [0x38] * 40)
        batch.q[:] = 0.25
        attend("a sink token", small[arch], batch=batch)
        batch = batch_of(small[arch], [200], softmax_scale=0.5)
        for t in range(200):
            batch.set_bytes(0, t, 0, [0x30 + t // 16] * 576)
        batch.q[:] = 0.125
        attend("scores that grow", small[arch], batch=batch, lse_error=2e-5)
    # Scales from tiny to huge, and queries beyond the range of f16.
    terms = suite.mla.add(arch=90, q_type=2, heads=4, page_size=16, num_splits=2)
    for instance in (small[90], terms):
        for k_scale, softmax_scale, factor in ((0.003, 0.1, 1), (3.0, 1e-3, 1), (1.0, 1e-7, 1e5), (1.0, 1e5, 1e-6)):
            batch = batch_of(instance, [100], k_scale=k_scale, softmax_scale=softmax_scale)
            batch.q *= np.float32(factor)
            attend(f"scales {k_scale} {softmax_scale} {factor}", instance, batch=batch)
    # Codes that are NaN, and outputs beyond the codes.
    codes = {a: suite.mla.add(arch=a, q_type=3, out_type=3, heads=4, page_size=16) for a in (90, 80)}
    for arch in (90, 80):
        batch = batch_of(codes[arch], [40], [4], o_scale=1e-3)
        batch.q[2, 1, 3] = np.nan
        attend("NaN in a code of a query", codes[arch], batch=batch)
    batch = batch_of(small[90], [32, 20], max_pages=2)
    batch.lengths[0] = 1000
    result, findings = suite.mla.run(small[90], batch)
    batch.lengths[0] = 32
    suite.check("length past the page table", result.problems() + findings)
    for instance, name in ((plain, "bf16"), (scaled, "fp8_ds_mla")):
        attend(f"{name}: unused slots hold NaN", instance, [1, 35, 0])
    batch = batch_of(scaled, [40, 40])
    batch.set_bytes(0, 20, 512, list(np.float32([1, np.nan]).tobytes()))
    attend("NaN in a tile's scale", scaled, batch=batch)
    batch = batch_of(scaled, [60])
    for t in range(60):  # scales 60 binades apart
        batch.set_bytes(0, t, 512, list((2.0 ** np.linspace(-40, 20, 4)).astype(np.float32).tobytes()))
    batch.q[:, :, 256:512] = 0
    attend("scales far apart", scaled, batch=batch)

    # Pages 512 MiB apart: offsets beyond 32 bits.
    wide = suite.mla.add(arch=90, q_type=1, heads=4, page_size=16, page_stride=1 << 29)
    near = batch_of(small[90], [100], spare_pages=1)
    pool = np.zeros(near.pages << 29, np.uint8)
    for page in range(near.pages):
        pool[page << 29:(page << 29) + 16 * 576] = near.rows_bytes[page].reshape(-1)
    attend_wide, findings = suite.mla.run(wide, near, pools=([pool], None))
    suite.check("offsets beyond 32 bits", attend_wide.problems() + findings)
    del pool

    # Each latent byte once, whole sectors where rows are multiples of them, no
    # bank conflict.
    for values in (dict(arch=90, heads=64), dict(arch=80, heads=64), dict(arch=90, heads=16), dict(arch=80, heads=8, latent_dim=256),
                   dict(arch=90, heads=64, cache_type=3), dict(arch=90, heads=64, cache_type=4), dict(arch=90, heads=16, cache_type=4)):
        instance = suite.mla.add(q_type=1, page_size=64, **values)
        attend("traffic", instance, [256])
        c, problems, v = suite.device.counters, [], instance[1]
        for kind in ("ldmatrix", "cp.async.shared", "ld.shared", "st.shared"):
            if c[f"{kind}.wavefronts"] != c[f"{kind}.ideal"]:
                problems.append(f"{kind}: {c[f'{kind}.wavefronts']} wavefronts, ideal {c[f'{kind}.ideal']}")
        if c["cp.async.global.bytes"] != 256 * v["token_stride"]:
            problems.append(f"{c['cp.async.global.bytes']} bytes copied, expected {256 * v['token_stride']}")
        if v["cache_type"] != 4 and c["cp.async.global.sectors"] * 32 != c["cp.async.global.bytes"]:
            problems.append(f"{c['cp.async.global.sectors']} sectors for {c['cp.async.global.bytes']} bytes")
        suite.check(f"counts {values}", problems)
    suite.finish()


if __name__ == "__main__":
    main()
