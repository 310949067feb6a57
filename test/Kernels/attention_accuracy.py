# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Accuracy where it is hard: attention sinks, rising scores, queries beyond f16, scales far from 1.

The bound is one unit of the output type plus 2^-9 of the row's sum of |p v|, for
every element; LSE 1e-5.
"""
import numpy as np

from kernel_build import Layout
from kernel_case import Batch, VALUES
from kernel_run import Suite


def code_of(x):
    c = int(np.nanargmin(np.abs(VALUES[0][:127] - abs(x))))
    return c | 0x80 if x < 0 else c


def main():
    suite = Suite(__doc__)
    attention = suite.attention

    def instances(head_dim=128, **more):
        return [attention.add(arch=arch, q_type=q_type, q_heads=8, kv_heads=1, head_dim=head_dim, page_size=64,
                              layout=Layout("nhd", 64, 1, head_dim), **more) for arch in (90, 80) for q_type in (0, 1)]

    # Without an LSE the sums are those of what P was rounded to.
    plain, halves, sums = instances(), instances(num_splits=3), instances(has_lse=0)
    attention.compile()

    # One sink token x binades above thousands of equal tokens with the opposite V.
    for instance in plain[:1] + plain[3:] + halves[:1] + sums[1:3]:
        for x in (0.4375, 0.8125, 1.125, 1.5):
            batch = Batch(instance[1], [3000], k_scale=1, v_scale=1.25)
            batch.q[:] = 1
            used = batch.slot_used
            batch.k[used], batch.v[used] = 0, code_of(1)
            batch.set_code("k", 0, 0, 0, slice(None), code_of(x))
            batch.set_code("v", 0, 0, 0, slice(None), code_of(-1))
            suite.attend(f"attention sink, {128 * VALUES[0][code_of(x)] * 128**-0.5 * 1.4427:.1f} binades", instance, batch)

    # The same where sink and crowd cancel, so that the f16 output is fine enough
    # to see probabilities that became f16 subnormals: with a headroom of 6
    # binades instead of 3 the error is 2.7e-4 of |V| (3.6e-5).
    for instance in plain[::2] + sums[::2]:
        batch = Batch(instance[1], [3000], k_scale=1, v_scale=1)
        batch.q[:] = 1
        used = batch.slot_used
        batch.k[used], batch.v[used] = 0, code_of(1)
        batch.set_code("k", 0, 0, 0, slice(None), code_of(0.6875))
        batch.set_code("v", 0, 0, 0, slice(None), code_of(-1))
        result = suite.attend("sink against crowd", instance, batch)
        suite.check("sink against crowd, error", [] if result.max_error < 1e-4 else [f"error {result.max_error:.1e}"])

    # Every tile raises the reference; and every tile lowers the scores.
    for instance in plain + sums[1:3]:
        for rising in (True, False):
            batch = Batch(instance[1], [600], k_scale=1)
            batch.q[:] = 1
            batch.k[batch.slot_used] = 0
            for t in range(600):
                level = (t if rising else 599 - t) / 600
                batch.set_code("k", 0, t, 0, slice(0, 16), code_of(448 * level**2 / 8))
            suite.attend("rising scores" if rising else "falling scores", instance, batch)

    # bf16 queries beyond f16's range, tiny ones, and both in neighbouring heads.
    for instance in plain[1::2] + halves[1:2]:
        for size in (1e-30, 1e-6, 1e-3, 30000.0, 70000.0, 1e6, 1e30):
            batch = Batch(instance[1], [200], softmax_scale=min(4 / size, 1e20) * 128**-0.5)
            batch.q *= size
            batch.q[:batch.total, 7] = 0
            suite.attend(f"|q| about {size:g}", instance, batch, lse_error=3e-5)
        batch = Batch(instance[1], [200])
        batch.q *= np.array([1e-4, 1e5, 1, 1e-8, 1e3, 3e4, 1e-2, 0])[None, :, None]
        suite.attend("heads of different size", instance, batch, lse_error=3e-5)

    # f16 queries at the end of the range.
    for instance in plain[::2]:
        batch = Batch(instance[1], [120], softmax_scale=1e-4)
        batch.q[:batch.total] = np.sign(batch.q[:batch.total]) * 65504
        suite.attend("|q| is the largest f16", instance, batch)
        batch.q[:batch.total] = np.sign(batch.q[:batch.total]) * 2.0**-24
        batch.softmax_scale = 1e5
        suite.attend("|q| is the smallest f16", instance, batch)

    # A dropped, doubled or swapped scale shows.
    for instance in plain + halves:
        for k_scale, v_scale in ((0.25, 0.5), (0.003, 0.0123), (3.0, 100.0), (1, 1)):
            suite.attend(f"scales {k_scale} {v_scale}", instance,
                         Batch(instance[1], [70, 300], k_scale=k_scale, v_scale=v_scale, seed=2))

    # All codes but NaN in K and V.
    for instance in plain + sums:
        batch = Batch(instance[1], [512], seed=4)
        rng = np.random.default_rng(1)
        finite = np.flatnonzero(np.isfinite(VALUES[0])).astype(np.uint8)
        batch.k[batch.slot_used] = rng.choice(finite, batch.k[batch.slot_used].shape)
        batch.v[batch.slot_used] = rng.choice(finite, batch.v[batch.slot_used].shape)
        batch.q *= 0.01
        suite.attend("all finite codes", instance, batch)

    # Large negative scores for every token.
    for instance in plain[:2]:
        batch = Batch(instance[1], [9, 100])
        batch.q[:batch.total] = 20
        batch.k[batch.slot_used] = code_of(-40)
        suite.attend("large negative scores", instance, batch, lse_error=1e-5)
    suite.finish()


if __name__ == "__main__":
    main()
