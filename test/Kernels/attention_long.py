# REQUIRES: slow
# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Long contexts: the error against double precision at 131,072 tokens is no worse than at 1,024, and what a CTA costs outside its loop.

Errors are the largest of eight heads over the row's sum of |p v|, of f32
outputs. Prints tables with --verbose.
"""
from kernel_build import Layout
from kernel_case import Batch
from kernel_run import Suite

SHORT, LONG = 1024, 131072
# The fixed cost of a CTA in f16-math's tiles of 32 tokens, in warp instructions of PTX.
FIXED_TILES = 2.5


def main():
    suite = Suite(__doc__)
    attention = suite.attention

    def instance(arch, math, splits=1, **more):
        return attention.add(arch=arch, q_type=1, q_heads=8, kv_heads=1, head_dim=64, page_size=64, num_splits=splits,
                             math=math, layout=Layout("nhd", 64, 1, 64), **more)

    cases = [instance(arch, math, splits, out_type=2, has_lse=int(splits == 1)) for arch, math in ((90, 0), (89, 1)) for splits in (1, 32)]
    plain = [attention.add(arch=arch, q_type=1, q_heads=8, kv_heads=1, head_dim=128, page_size=64, math=math,
                           layout=Layout("nhd", 64, 1, 128)) for arch, math in ((90, 0), (89, 0), (89, 1))]
    attention.compile()

    if suite.options.verbose:
        print("| target | math | splits | 1,024 tokens | 131,072 tokens |\n|---|---|---|---|---|")
    for i in cases:
        v, errors, problems = i[1], [], []
        for length in (SHORT, LONG):
            batch = Batch(v, [length], seed=length)
            result, findings = attention.run(i, batch)
            problems += findings + result.problems(bool(v["has_lse"]))
            errors.append(result.relative_error)
        if errors[1] > errors[0]:
            problems.append(f"error {errors[1]:.1e} at {LONG} tokens, {errors[0]:.1e} at {SHORT}")
        what = "fp8" if v["math"] else "f16"
        suite.check(f"sm_{v['arch']} {what}-math, {v['num_splits']} splits", problems)
        if suite.options.verbose:
            print(f"| sm_{v['arch']} | {what} | {v['num_splits']} | {errors[0]:.1e} | {errors[1]:.1e} |")

    # One CTA, without splits: instructions of its warps at so many tokens.
    if suite.options.verbose:
        print("\n| target | math | warp instructions a tile of 32 | outside the loop, of a warp | in tiles |\n|---|---|---|---|---|")
    for i in plain:
        counts = []
        for tiles in (4, 36):
            attention.run(i, Batch(i[1], [4 * 32 * tiles], rows=1, spare_pages=0))
            counts.append(suite.device.counters["instructions"] / 4)
        each = (counts[1] - counts[0]) / 32
        fixed = counts[0] - 4 * each
        v = i[1]
        tile = tile if v["math"] else each
        suite.check(f"sm_{v['arch']} fixed cost", [f"{fixed / tile:.2f} tiles"] if fixed > FIXED_TILES * tile else [])
        if suite.options.verbose:
            print(f"| sm_{v['arch']} | {'fp8' if v['math'] else 'f16'} | {each:.1f} | {fixed:.0f} | {fixed / each:.2f} |")
    suite.finish()


if __name__ == "__main__":
    main()
