# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Latent rows land in their slots in every format, with their scales, and nowhere else."""
import ml_dtypes
import numpy as np

from kernel_case import from_bits, to_bits
from kernel_run import Suite

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def codes(x, cache_type):
    """f32 to saturated codes; every NaN is 0x7F."""
    kind, most = ((E4M3, 448), (E5M2, 57344))[cache_type]
    with np.errstate(invalid="ignore"):
        c = np.clip(x, -most, most).astype(kind).view(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), c)


def rows(latent, rope, values, scale):
    """The bytes of each row, with numpy."""
    cache_type, in_type = values["cache_type"], values["in_type"]
    latent, rope = (from_bits(b, in_type) for b in (latent, rope))
    with np.errstate(invalid="ignore"):
        if cache_type == 4:
            tiles = latent.reshape(len(latent), -1, 128)
            most = np.fmax.reduce(np.abs(tiles), -1, initial=0).astype(np.float32)
            s = np.maximum(most / np.float32(448), np.float32(2.0**-126))
            parts = [codes(tiles / s[..., None], 0).reshape(len(latent), -1), s.view(np.uint8), to_bits(rope, 1).view(np.uint8)]
        elif cache_type >= 2:
            parts = [to_bits(x, cache_type - 2).view(np.uint8) for x in (latent, rope)]
        else:
            parts = [codes(x / np.float32(scale), cache_type) for x in (latent, rope)]
    return np.concatenate([p.reshape(len(latent), -1) for p in parts], -1)


def main():
    suite = Suite(__doc__)
    rng = np.random.default_rng(5)
    for arch in (90, 80):
        instances = {}
        for cache_type, in_types in ((0, (0, 1, 2)), (1, (1,)), (2, (0,)), (3, (1,)), (4, (0, 1, 2))):
            for in_type in in_types:
                for dim, page, gap in ((512, 16, 0), (512, 1, 32), (256, 64, 0)):
                    if cache_type == 4 and dim != 512:
                        continue
                    width = suite.builder.geometry.latent_row(cache_type, dim, 64) + gap
                    instances[f"w{arch}_{cache_type}_{in_type}_{dim}_{page}"] = dict(
                        arch=arch, in_type=in_type, cache_type=cache_type, latent_dim=dim, page_size=page, token_stride=width,
                        page_stride=page * width + gap)
        instances[f"power_{arch}"] = dict(arch=arch, in_type=1, page_size=16, scale_is_pow2=1)
        for name, values in suite.write_latent.add(instances).items():
            pages, tokens, page = max(3, 40 // values["page_size"]), 21, values["page_size"]
            slots = rng.permutation(pages * page)[:tokens].astype(np.int64)
            slots[[2, 9]] = -1
            slots[5], slots[11], slots[12] = pages * page, 1 << 40, -(1 << 62)
            x = rng.standard_normal((tokens, values["latent_dim"] + 64)).astype(np.float32)
            x *= 2.0 ** rng.integers(-6, 6, (tokens, 1))
            x[0], x[1, :128] = 0, 0  # tiles of zeros
            x[3, 7], x[4, 140], x[6, -1] = np.nan, np.inf, np.nan
            with np.errstate(over="ignore"):
                bits = to_bits(x, values["in_type"])
            latent, rope = np.ascontiguousarray(bits[:, :-64]), np.ascontiguousarray(bits[:, -64:])
            scale = 0.125 if values["scale_is_pow2"] else 0.05
            pool, findings = suite.write_latent.run(name, latent, rope, slots, pages, scale)
            want = np.full(pool.size, 0xAA, np.uint8)
            expected = rows(latent, rope, values, scale)
            for t, slot in enumerate(slots):
                if 0 <= slot < pages * page:
                    at = slot // page * values["page_stride"] + slot % page * values["token_stride"]
                    want[at:at + expected.shape[1]] = expected[t]
            if values["cache_type"] >= 2:  # a NaN may have any payload
                view = lambda b: from_bits(b[:b.size // 2 * 2].view(np.uint16), 0 if values["cache_type"] == 2 else 1)
                both = np.repeat(np.isnan(view(pool)) & np.isnan(view(want)), 2)
                pool[:both.size][both] = want[:both.size][both]
            wrong = np.flatnonzero(pool != want)
            suite.check(name, findings + [f"byte {i} is 0x{pool[i]:02x}, expected 0x{want[i]:02x}" for i in wrong[:3]])
        name = f"power_{arch}"
        bits = to_bits(rng.standard_normal((4, 576)).astype(np.float32), 1)
        pool, findings = suite.write_latent.run(name, bits[:, :512].copy(), bits[:, 512:].copy(), [3, 4, 5, 6], 1, 0.5, num_slots=5)
        written = (pool.reshape(16, 576) != 0xAA).any(1)
        suite.check("slots at or past num_slots", findings + ["other rows were written"] * (list(np.flatnonzero(written)) != [3, 4]))
        # The scales of fp8_ds_mla: the largest magnitude becomes 448, zeros stay zeros.
        name = f"w{arch}_4_2_512_16"
        x = np.zeros((1, 576), np.float32)
        x[0, 5], x[0, 130], x[0, 400] = -7.0, 1e-45, 3e38
        pool, findings = suite.write_latent.run(name, x[:, :512].view(np.uint32).copy(), x[:, 512:].view(np.uint32).copy(), [0], 3)
        scales = pool[512:528].view(np.float32)
        want = np.float32([7 / 448, 2.0**-126, 2.0**-126, np.float32(3e38) / np.float32(448)])
        suite.check("tile scales", findings + [f"{scales}, expected {want}"] * bool((scales != want).any()) +
                    [f"codes {pool[[5, 400]]}"] * (list(pool[[5, 400]]) != [0xFE, 0x7E]))
    suite.finish()


if __name__ == "__main__":
    main()
