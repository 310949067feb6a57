# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Split KV with the merge in the same launch: live splits follow the length, counters end at zero, replays repeat the bits."""
import numpy as np

from kernel_build import Layout
from kernel_case import Batch
from kernel_run import Suite


def main():
    suite = Suite(__doc__)
    attention = suite.attention
    runs = []
    for arch in (90, 80):
        for splits in (2, 3, 5, 17):
            for group in (2, 8, 11):
                layout = Layout("nhd", 16, 1, 64)
                runs.append(attention.add(arch=arch, q_type=splits % 2, q_heads=group, kv_heads=1, head_dim=64,
                                          page_size=16, num_splits=splits, layout=layout))
    for n, instance in enumerate(runs):
        # From one live split to all of them, and lengths beyond
        # num_splits * split_tokens, where the share of a split grows.
        unit = instance[1]["split_tokens"]
        batch = Batch(instance[1], [1, unit, unit + 1, 3 * unit - 1, 0, 900, 2 * unit], [1, 1, 2, 1, 1, 1, 3], seed=n)
        suite.attend("splits", instance, batch, launches=2, late=True)
        suite.attend("splits, other warp order", instance, batch, quantum=11)

    # A graph captured at one length is right at others: same instance, same
    # workspace shape, lengths 8, 1, 17, 0, 1000 and back.
    instance = runs[2]
    first = None
    for length in (8, 1, 17, 0, 1000, 8):
        result = suite.attend(f"replay at length {length}", instance, Batch(instance[1], [length], max_pages=70, seed=5))
        if length == 8:
            bits = result.out.copy()
            suite.check("same bits at the same length", [] if first is None or (first == bits).all() else ["bits differ"])
            first = bits

    # Only what this launch wrote is merged: partials are NaN and "never written"
    # before each launch (see Attention.run), and stay so for splits without
    # tokens.
    instance = runs[1]
    batch = Batch(instance[1], [129], seed=6)
    partials, _ = attention.workspace(instance, batch)
    suite.check("workspace covers all rows", [] if partials.size >= batch.rows * 2 else [f"{partials.size} floats"])

    # Splits change the result by rounding alone.
    one = attention.add(arch=90, q_type=0, q_heads=8, kv_heads=1, head_dim=64, page_size=16, num_splits=1,
                        layout=Layout("nhd", 16, 1, 64))
    five = attention.add(arch=90, q_type=0, q_heads=8, kv_heads=1, head_dim=64, page_size=16, num_splits=5,
                         layout=Layout("nhd", 16, 1, 64))
    a, _ = attention.run(one, Batch(one[1], [700], seed=9))
    b, _ = attention.run(five, Batch(five[1], [700], seed=9))
    x, y = (r.out[:1].view(np.float16).astype(np.float64) for r in (a, b))
    suite.check("five splits agree with one", [] if np.abs(x - y).max() < 2e-3 else [f"difference {np.abs(x - y).max()}"])
    suite.finish()


if __name__ == "__main__":
    main()
