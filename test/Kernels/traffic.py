# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Memory traffic as counted by the PTX machine: whole sectors, no bank conflicts, each KV byte once; what scales of
tokens add to it, by where they are (the table of docs/performance.md, with --verbose)."""
import numpy as np

from kernel_build import INLINE, SIDE, Layout
from kernel_case import Batch, bf16_bits
from kernel_run import Suite


def main():
    suite = Suite(__doc__)
    instances = []
    for arch in (90, 80):
        for head_dim in (64, 128):
            for layout in ("nhd", "hnd", "packed", "packed_head"):
                for tuning in ({}, dict(tile=16, stages=4)) if layout == "nhd" else ({},):
                    group = 8 if layout == "nhd" else 16
                    instances.append(suite.attention.add(
                        arch=arch, q_type=1, q_heads=group * 2, kv_heads=2, head_dim=head_dim, page_size=16,
                        layout=Layout(layout, 16, 2, head_dim), num_splits=2, **tuning))
    for instance in instances:
        v = instance[1]
        batch = Batch(v, [512, 640])
        result = suite.attend("traffic", instance, batch)
        c, problems = suite.device.counters, []
        for kind in ("ldmatrix", "cp.async.shared", "ld.shared", "st.shared"):
            if c[f"{kind}.wavefronts"] != c[f"{kind}.ideal"]:
                problems.append(f"{kind}: {c[f'{kind}.wavefronts']} wavefronts, ideal {c[f'{kind}.ideal']}")
        tokens = 512 + 640
        want = tokens * v["kv_heads"] * 2 * v["head_dim"]
        if c["cp.async.global.bytes"] != want:
            problems.append(f"{c['cp.async.global.bytes']} KV bytes copied, expected {want}")
        if c["cp.async.global.sectors"] * 32 != c["cp.async.global.bytes"]:
            problems.append(f"{c['cp.async.global.sectors']} sectors for {c['cp.async.global.bytes']} bytes")
        if c["cp.async.global.bytes"] != c["cp.async.global.requests"] * 512:
            problems.append("copies are not 16 bytes a lane")
        suite.check(f"counts {v['arch']} D{v['head_dim']} {v['layout'].name} tile {v['tile']}", problems)
        del result

    # Scales of tokens: 64/8 heads, D 128, NHD pages of 16, tiles of 32 tokens. Sectors of a row of K or V and its scale,
    # and lane-wide copies of it: 16 bytes a lane, or 4.
    for storage, pitch, sectors, copies in ((0, 0, 4, 8 / 32), (SIDE, 0, 5, 9 / 32), (INLINE, 144, 5.5, 9 / 32), (INLINE, 132, 5.875, 33 / 32)):
        instance = suite.attention.add(arch=90, q_type=1, q_heads=64, kv_heads=8, head_dim=128, page_size=16, tile=32, num_splits=2,
                                       layout=Layout("nhd", 16, 8, 128, pitch=pitch), token_scales=storage)
        suite.attend("traffic", instance, Batch(instance[1], [512, 640], k_scale=1, v_scale=1))
        c, rows, problems = suite.device.counters, 2 * 8 * (512 + 640), []
        for what, want in (("sectors", sectors * rows), ("requests", copies * rows), ("bytes", (132 if storage else 128) * rows)):
            if c[f"cp.async.global.{what}"] != want:
                problems.append(f"{c[f'cp.async.global.{what}']} {what} of copies, expected {want}")
        if c["cp.async.shared.wavefronts"] != c["cp.async.shared.ideal"]:
            problems.append(f"{c['cp.async.shared.wavefronts']} wavefronts of copies, ideal {c['cp.async.shared.ideal']}")
        suite.check(f"scales {('none', 'inline', 'side')[storage]} pitch {pitch or 128}: {sectors} sectors and {copies:.3f} copies a row, "
                    f"{c['instructions'] / rows:.1f} warp instructions", problems)

    # The write: two 16-byte loads and one 16-byte store for 16 elements.
    for arch in (90, 80):
        suite.write.add({f"w{arch}": dict(arch=arch, in_type=1, kv_heads=4, head_dim=128, page_size=16,
                                          layout=Layout("nhd", 16, 4, 128), k_scale_is_pow2=0, v_scale_is_pow2=0)})
        x = bf16_bits(np.random.default_rng(1).standard_normal((32, 4, 128)))
        _, findings = suite.write.run(f"w{arch}", x, x, np.arange(32), 2, (0.1, 0.2))
        c, problems = suite.device.counters, list(findings)
        elements = 2 * x.size
        if c["st.global.bytes"] != elements or c["st.global.sectors"] * 32 != elements:
            problems.append(f"{c['st.global.bytes']} bytes in {c['st.global.sectors']} sectors stored, expected {elements} bytes")
        if c["st.global.requests"] * 512 != elements:
            problems.append(f"{c['st.global.requests']} stores, expected {elements // 512}")
        slots = 32 * 8 * 128  # each thread reads its token's slot
        if c["ld.global.bytes"] > elements * 2 + slots:
            problems.append(f"{c['ld.global.bytes']} bytes loaded, expected at most {elements * 2 + slots}")
        suite.check(f"write traffic sm_{arch}", problems)
    suite.finish()


if __name__ == "__main__":
    main()
