#!/usr/bin/env python3
"""What the reference lowering computes, against numpy in double precision.

The attention below is written from the definition in spec terms (positions,
windows, page tables), not from the lowering. Caches are full of NaN where
nobody may look, page tables end in page ids that do not exist, and outputs
hold a pattern that rows behind the batch must keep.
"""

import argparse
import os
import re
import sys
import tempfile

import ml_dtypes
import numpy as np

import golden
import tensor_files
from cpu_model import CpuModel

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "Inputs", "golden")
TYPES = {"f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2,
         "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "bf16": ml_dtypes.bfloat16,
         "f16": np.float16, "f32": np.float32}
LARGEST = {"f8E4M3FN": 448.0, "f8E5M2": 57344.0, "f8E4M3FNUZ": 240.0}
# The code that a NaN becomes when it is written.
NAN = {"f8E4M3FN": 0x7F, "f8E5M2": 0x7F, "f8E4M3FNUZ": 0x80}
POISON = {"f8E4M3FN": 0x7F, "f8E5M2": 0x7D, "f8E4M3FNUZ": 0x80, "bf16": 0x7FC1, "f16": 0x7E01,
          "f32": 0x7FC00001}


# Rows of a table of cosines and sines.
POSITIONS = 40

# Pages that are values become buffers first; all is written in place, so the
# function needs no results.
THREADED = ["--one-shot-bufferize=bufferize-function-boundaries=1 function-boundary-type-conversion=identity-layout-map"]


def bits(array):
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[array.itemsize])


def convert(x, name):
    """float32 -> codes of a type, saturated where the type is 8 bits wide."""
    if name not in LARGEST:
        return bits(x.astype(TYPES[name]))
    with np.errstate(invalid="ignore"):
        codes = bits(np.clip(x, -LARGEST[name], LARGEST[name]).astype(TYPES[name]))
    return np.where(np.isnan(x), NAN[name], codes).astype(np.uint8)


def quantize(x, scale, name):
    if name not in LARGEST:
        return convert(x, name)
    with np.errstate(over="ignore", invalid="ignore"):
        return convert(x / np.asarray(scale, np.float32), name)


class Pools(tuple):
    """Codes, [page, token, head, dim], the memory that they are in, and the scales of their tokens, [page, token, head]:
    beside it, or behind the codes of a row."""

    def __new__(cls, case, memory):
        memory = tuple(memory)
        inline = case.token_scales == "inline"
        dims = case.dim, case.v_dim
        pools = super().__new__(cls, (pool[..., :dim] for pool, dim in zip(memory, dims)) if inline else memory)
        pools.memory, pools.scales = memory, []
        if inline:
            pools.scales = [pool[..., dim:].view(np.float32)[..., 0] for pool, dim in zip(memory, dims)]
        elif case.token_scales:
            pools.scales = [np.full((case.pages, case.page, case.kv_heads), np.nan, np.float32) for _ in "kv"]
        for scales in pools.scales:
            scales[...] = np.nan
        return pools


class Case:
    """One cache with a write and an attention over it."""

    def __init__(self, name, *, cache="f8E4M3FN", rows="bf16", layout="nhd", q_heads=4, kv_heads=2,
                 dim=64, page=16, k_scale=(0.0123,), v_scale=(0.0345,), softmax=0.125, cap=None,
                 window=None, memrefs=False, threaded=False, lse=True, pages=7, rotary=0, interleaved=False,
                 token_scales="", v_dim=None):
        self.__dict__.update(locals())
        self.v_dim = v_dim or dim  # of values and outputs
        self.query = self.out = rows
        self.q_scale = self.o_scale = 1.0

    def rope(self, kind):
        """Arguments of the function, and what a write says, when keys are rotated."""
        if not self.rotary:
            return "", ""
        table, positions = f"{kind}<{POSITIONS}x{self.rotary}xf32>", f"{kind}<?xi64>"
        return (f', %rt: {table} {{kvcache.name = "cos_sin"}}, %rp: {positions} {{kvcache.name = "position_ids"}}',
                f" rope(%rt at %rp : {table}, {positions})" + " {rope_interleaved}" * self.interleaved)

    def rope_table(self):
        """Row p: the cosines of the angles of position p, then their sines."""
        angles = np.arange(POSITIONS)[:, None] * 100.0 ** (-np.arange(self.rotary // 2) / self.rotary)
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    def rotate(self, rows, position):
        """f32 rows whose first elements are rotated; others as they are."""
        if not self.rotary:
            return rows
        rows, n = rows.astype(np.float32), self.rotary
        cos, sin = np.split(self.rope_table()[position], 2)
        first, second = (slice(0, n, 2), slice(1, n, 2)) if self.interleaved else (slice(0, n // 2), slice(n // 2, n))
        x, y = rows[..., first].copy(), rows[..., second].copy()
        rows[..., first], rows[..., second] = x * cos - y * sin, y * cos + x * sin
        return rows

    def text(self):
        kind = "memref" if self.memrefs else "tensor"
        row, value = (f"{kind}<?x{self.kv_heads}x{dim}x{self.rows}>" for dim in (self.dim, self.v_dim))
        query, out = (f"{kind}<?x{self.q_heads}x{dim}x{self.rows}>" for dim in (self.dim, self.v_dim))
        lse = f"{kind}<?x{self.q_heads}xf32>"
        shape = f"{self.kv_heads} x {self.dim}{f' | {self.v_dim}' * (self.v_dim != self.dim)} x {self.cache}"
        handle = f"!kvcache.cache<{shape}>"
        attributes = [f"softmax_scale = {self.softmax:.17e} : f64"]
        if self.cap:
            attributes.append(f"soft_cap = {self.cap:.17e} : f64")
        if self.window is not None:
            attributes.append(f"window = {self.window} : i64")
        outs, types = ("%o, %l", f"{out}, {lse}") if self.lse else ("%o", out)
        results = f"-> ({types})" if not self.memrefs else ""
        returned = "%r:2" if self.lse else "%r"
        values = "%r#0, %r#1" if self.lse else "%r"
        scale = lambda s: "[" + ", ".join(f"{np.float32(x):.9e}" for x in s) + "]"
        attention = f"kvcache.paged_attention %q over %c outs({outs}) {{{', '.join(attributes)}}} : {query}, {handle} -> {types}"
        more, rope = self.rope(kind)
        write = f"kvcache.write %k, %v to %c{rope} : {row}, {value}, {handle}"
        scales = f" token_scales {self.token_scales}" if self.token_scales else ""
        if self.threaded:
            # The pages are values; their owner declares the strides.
            elements = [f"{dim + 4}xi8" if self.token_scales else f"{dim}x{self.cache}" for dim in (self.dim, self.v_dim)]
            pages, v_pages = (f"tensor<{self.pages}x{self.page}x{self.kv_heads}x{element}>" for element in elements)
            layout, v_layout = (f"bufferization.buffer_layout = strided<{[stride // pool.itemsize for stride in pool.strides]}, offset: ?>, "
                                for pool in self.pools().memory)
            named = [("kp", pages, layout, "c.k_cache"), ("vp", v_pages, v_layout, "c.v_cache"),
                     ("t", "tensor<?x?xi32>", "", "page_table"), ("n", "tensor<?xi32>", "", "lengths"),
                     ("s", "tensor<?xi32>", "", "query_start"), ("m", "tensor<?xi64>", "", "slot_mapping")]
            arguments = ", ".join(f'%{a}: {t} {{{attribute}kvcache.name = "{name}"}}' for a, t, attribute, name in named)
            return f"""
kvcache.scale_buffer @k : f32 = {scale(self.k_scale)} from override
kvcache.scale_buffer @v : f32 = {scale(self.v_scale)} from override
kvcache.cache_group @full page_size {self.page}
kvcache.cache @c of "layer" in @full : {shape} scales(@k, @v){scales}
func.func @main(%k: {row}, %v: {value}, %q: {query}, %o: {out}, %l: {lse}{more}, {arguments}) {{
  %kn, %vn, %a:{len(values.split())} = kvcache.with_pages @c pages(%kp, %vp : {pages}, {v_pages}) page_table(%t : tensor<?x?xi32>)
    lengths(%n : tensor<?xi32>) query_start(%s : tensor<?xi32>) slots(%m : tensor<?xi64>) -> {pages}, {v_pages}, {types} {{
  ^bb0(%c: {handle}):
    {write}
    {returned} = {attention}
    kvcache.yield {values} : {types}
  }}
  return
}}
"""
        return f"""
kvcache.scale_buffer @k : f32 = {scale(self.k_scale)} from override
kvcache.scale_buffer @v : f32 = {scale(self.v_scale)} from override
kvcache.cache_group @full page_size {self.page}
kvcache.cache @c of "layer" in @full : {shape} scales(@k, @v) layout {self.layout}{scales}
func.func @main(%k: {row}, %v: {value}, %q: {query}, %o: {out}, %l: {lse}{more}) {results} {{
  %c = kvcache.get_cache @c : {handle}
  {write}
  {'' if self.memrefs else returned + ' ='} {attention}
  return {'' if self.memrefs else values + ' : ' + types}
}}
"""

    def pools(self):
        """K and V pages, poisoned, as views [page, token, head, dim]."""
        p, t, h, dims = self.pages, self.page, self.kv_heads, [dim + 4 * (self.token_scales == "inline") for dim in (self.dim, self.v_dim)]
        code = POISON[self.cache]
        width = bits(np.zeros(1, TYPES[self.cache])).dtype
        if self.layout == "packed":
            pool, half = np.full((p, t * h * sum(dims)), code, width), t * h * dims[0]
            return Pools(self, (pool[:, :half].reshape(p, t, h, -1), pool[:, half:].reshape(p, t, h, -1)))
        if self.layout.startswith("strides"):
            strides = [int(x) * width.itemsize for x in re.findall(r"\d+", self.layout)] + [width.itemsize]
            return Pools(self, (np.lib.stride_tricks.as_strided(np.full(p * strides[0] // width.itemsize, code, width), (p, t, h, d), strides)
                         for d in dims))
        if self.layout == "hnd":
            return Pools(self, (np.full((p, h, t, d), code, width).transpose(0, 2, 1, 3) for d in dims))
        return Pools(self, (np.full((p, t, h, d), code, width) for d in dims))


class LatentCase(Case):
    """A cache of MLA: the latent part of a row is its value."""

    def __init__(self, name, *, latent=512, rope=64, scale=0.0123, query=None, out=None, q_scale=0.75, o_scale=0.02, **others):
        super().__init__(name, kv_heads=1, dim=latent + rope, k_scale=(scale,), v_scale=(scale,),
                         **others)
        self.query, self.out = query or self.rows, out or self.rows
        self.q_scale, self.o_scale = (np.float64(np.float32(s)) if t in LARGEST else 1.0
                                      for s, t in ((q_scale, self.query), (o_scale, self.out)))
        self.latent, self.rope_dim = latent, rope
        self.tiles = self.cache == "fp8_ds_mla"
        self.width = latent + latent // 32 + 2 * rope if self.tiles else latent + rope

    def text(self):
        kind = "memref" if self.memrefs else "tensor"
        latent = f"{kind}<?x{self.latent}x{self.rows}>"
        rope = f"{kind}<?x{self.rope_dim}x{self.rows}>"
        query = f"{kind}<?x{self.q_heads}x{self.dim}x{self.query}>"
        out = f"{kind}<?x{self.q_heads}x{self.latent}x{self.out}>"
        lse = f"{kind}<?x{self.q_heads}xf32>"
        handle = f"!kvcache.cache<latent {self.latent} + {self.rope_dim} x {self.cache}>"
        outs, types = ("%o, %l", f"{out}, {lse}") if self.lse else ("%o", out)
        results = f"-> ({types})" if not self.memrefs else ""
        returned = "%r:2 =" if self.lse else "%r ="
        values = "%r#0, %r#1" if self.lse else "%r"
        more, turn = self.rope(kind)
        scales = "".join(f", {x}_scale = @{x}" for x, t in (("q", self.query), ("o", self.out)) if t in LARGEST)
        return f"""
kvcache.scale_buffer @k : f32 = {np.float32(self.k_scale[0]):.9e} from override
kvcache.scale_buffer @q : f32 = {self.q_scale:.9e} from override
kvcache.scale_buffer @o : f32 = {self.o_scale:.9e} from override
kvcache.cache_group @full page_size {self.page}
kvcache.cache @c of "layer" in @full : latent {self.latent} + {self.rope_dim} x {self.cache} scales(@k, @k)
func.func @main(%k: {latent}, %v: {rope}, %q: {query}, %o: {out}, %l: {lse}{more}) {results} {{
  %c = kvcache.get_cache @c : {handle}
  kvcache.write_latent %k, %v to %c{turn} : {latent}, {rope}, {handle}
  {'' if self.memrefs else returned} kvcache.mla_attention %q over %c outs({outs}) {{softmax_scale = {self.softmax:.17e} : f64{scales}}} : {query}, {handle} -> {types}
  return {'' if self.memrefs else values + ' : ' + types}
}}
"""

    def pools(self):
        code = 0xFF if self.tiles else POISON[self.cache]
        width = np.uint8 if self.tiles else bits(np.zeros(1, TYPES[self.cache])).dtype
        return Pools(self, (np.full((self.pages, self.page, 1, self.width), code, width),))

    def encode(self, latent, rope):
        """The bytes or codes of one row."""
        if not self.tiles:
            row = np.concatenate([latent, rope.astype(latent.dtype)])
            if self.rows == self.cache and not self.rotary:
                return bits(row)
            row = np.concatenate([latent.astype(np.float32), rope.astype(np.float32)])
            return quantize(row, self.k_scale[0], self.cache)
        tiles = latent.astype(np.float32).reshape(-1, 128)
        with np.errstate(invalid="ignore"):
            scales = np.fmax(np.fmax.reduce(np.abs(tiles), axis=1) / np.float32(448),
                             np.finfo(np.float32).tiny)
        codes = quantize(tiles, scales[:, None], "f8E4M3FN")
        rotary = bits(rope.astype(ml_dtypes.bfloat16))
        rotary[np.isnan(rope)] = 0x7FFF
        return np.concatenate([codes.reshape(-1), scales.view(np.uint8), rotary.view(np.uint8)])

    def decode(self, row):
        """The values of one row of the cache, in double precision."""
        if not self.tiles:
            scale = np.float64(np.float32(self.k_scale[0])) if self.cache in LARGEST else 1.0
            return row.view(TYPES[self.cache]).astype(np.float64) * scale
        codes, scales, rope = np.split(row, [self.latent, self.latent + self.latent // 32])
        values = codes.view(TYPES["f8E4M3FN"]).astype(np.float64).reshape(-1, 128)
        return np.concatenate([(values * scales.view(np.float32).astype(np.float64)[:, None]).reshape(-1),
                               rope.view(ml_dtypes.bfloat16).astype(np.float64)])


class Batch:
    """Rows and tables of one call."""

    def __init__(self, key, value, query, table, lengths, starts, slots, positions=()):
        self.key, self.value, self.query = key, value, query
        self.positions = np.asarray(positions, np.int64)
        self.table = np.asarray(table, np.int32)
        self.lengths, self.starts = np.asarray(lengths, np.int32), np.asarray(starts, np.int32)
        self.slots = np.asarray(slots, np.int64)


def call(model, case, batch, pools, out, lse):
    own = [bits(batch.key), bits(batch.value), bits(batch.query), out, lse]
    memory = getattr(pools, "memory", pools)
    by_name = {"c.k_cache": memory[0], "c.v_cache": memory[-1], "c.kv_cache": memory[0], "page_table": batch.table,
               "lengths": batch.lengths, "query_start": batch.starts, "slot_mapping": batch.slots,
               **dict(zip(("c.k_scales", "c.v_scales"), getattr(pools, "scales", ()))), "position_ids": batch.positions, "cos_sin": case.rope_table()}
    names = model.argument_names()
    results = model(*own, *(by_name[name] for name in names[len(own):]))
    if case.memrefs or case.threaded:
        return out, lse
    return results if case.lse else (results[0], None)


def head_scale(scale, heads):
    return np.broadcast_to(np.asarray(scale, np.float32), heads)[:, None]


def expected_write(case, batch, pools):
    pool_slots = case.pages * case.page
    for row, slot in zip(range(len(batch.key)), batch.slots):
        position = batch.positions[row]
        if not 0 <= slot < pool_slots or (case.rotary and not 0 <= position < POSITIONS):
            continue
        if isinstance(case, LatentCase):
            pools[0][slot // case.page, slot % case.page, 0] = case.encode(batch.key[row], case.rotate(batch.value[row], position))
            continue
        for side, pool, rows, scale in ((0, pools[0], batch.key, case.k_scale),
                                        (1, pools[1], batch.value, case.v_scale)):
            values = case.rotate(rows[row], position) if rows is batch.key else rows[row]
            if case.token_scales:
                values = values.astype(np.float32)
                top = np.fmax.reduce(np.abs(values), axis=1).astype(np.float32)
                own = np.fmax(top / np.float32(448), np.float32(1e-6))
                pools.scales[side][slot // case.page, slot % case.page] = own
                pool[slot // case.page, slot % case.page] = convert(values * (np.float32(1) / own)[:, None], case.cache)
                continue
            if case.rows == case.cache and values.dtype == rows.dtype and not (case.rotary and rows is batch.key):
                codes = bits(values)
            else:
                codes = quantize(values.astype(np.float32), head_scale(scale, case.kv_heads),
                                 case.cache)
            pool[slot // case.page, slot % case.page] = codes


def expected_attention(case, batch, pools, out, lse):
    """Fills `out` (float64) and `lse` for the rows of the batch."""
    quantized = case.cache in LARGEST
    for s in range(len(batch.lengths)):
        begin, end, length = batch.starts[s], batch.starts[s + 1], batch.lengths[s]
        for row in range(begin, min(end, len(batch.query))):
            position = length - (end - begin) + (row - begin)
            first = 0 if case.window is None else max(0, position - case.window)
            keys = range(first, position + 1)
            for head in range(case.q_heads):
                kv = head // (case.q_heads // case.kv_heads)
                if not len(keys):
                    out[row, head], lse[row, head] = 0.0, -np.inf
                    continue
                pages = [(batch.table[s, j // case.page], j % case.page, kv) for j in keys]
                if isinstance(case, LatentCase):
                    k = np.stack([case.decode(pools[0][i]) for i in pages])
                    v = k[:, :case.latent]
                else:
                    k, v = (np.stack([pool[i] for i in pages]).view(TYPES[case.cache])
                            .astype(np.float64) for pool in pools)
                if case.token_scales:
                    k, v = (x * np.stack([scales[i] for i in pages]).astype(np.float64)[:, None]
                            for x, scales in zip((k, v), pools.scales))
                elif quantized and not isinstance(case, LatentCase):
                    k = k * np.float64(head_scale(case.k_scale, case.kv_heads)[kv])
                    v = v * np.float64(head_scale(case.v_scale, case.kv_heads)[kv])
                scores = case.softmax * case.q_scale * (k @ batch.query[row, head].astype(np.float64))
                if case.cap:
                    scores = case.cap * np.tanh(scores / case.cap)
                top = scores.max()
                p = np.exp(scores - top)
                out[row, head] = (p / p.sum()) @ v / case.o_scale
                lse[row, head] = top + np.log(p.sum())


class Suite:
    def __init__(self, kvcache_opt, workdir):
        self.kvcache_opt, self.workdir = kvcache_opt, workdir
        self.failures, self.compiled = 0, {}

    def report(self, name, right, figures):
        print(("ok    " if right else "FAILED"), name, figures)
        self.failures += not right

    def compile(self, text):
        if text not in self.compiled:
            stem = f"case{len(self.compiled)}"
            path = os.path.join(self.workdir, stem + ".mlir")
            with open(path, "w") as file:
                file.write(text)
            self.compiled[text] = CpuModel(self.kvcache_opt, path, self.workdir, passes=THREADED if "with_pages" in text else (), stem=stem)
        return self.compiled[text]

    def check(self, case, batch, name=None):
        model = self.compile(case.text())
        rows = len(batch.query)
        value_dim = case.latent if isinstance(case, LatentCase) else case.v_dim
        untouched = np.full((rows, case.q_heads, value_dim), 0x5A5A5A5A, np.uint32).astype(
            bits(np.zeros(1, TYPES[case.out])).dtype)
        out, lse = untouched.copy(), np.full((rows, case.q_heads), 0x5A5A5A5A, np.uint32)
        pools, wanted = case.pools(), case.pools()
        out, lse = call(model, case, batch, pools, out, lse)

        expected_write(case, batch, wanted)
        exact = np.full(untouched.shape, np.nan)
        exact_lse = np.full((rows, case.q_heads), np.nan)
        expected_attention(case, batch, wanted, exact, exact_lse)
        covered = int(batch.starts[-1])
        wrong_codes = sum(int((a != b).sum()) for a, b in zip(pools, wanted))
        wrong_codes += sum(int((bits(a) != bits(b)).sum()) for a, b in zip(pools.scales, wanted.scales))

        got = out.view(TYPES[case.out]).astype(np.float64)[:covered]
        want = exact[:covered]
        # Half a step of the type, and the noise of summing in another order.
        info = ml_dtypes.finfo(TYPES[case.out])
        if case.out in LARGEST:
            want = np.clip(want, -float(info.max), float(info.max))
        allowed = np.abs(want) * float(info.eps) / 2 * (1 + 1e-6) + 1e-12 + float(info.smallest_subnormal) / 2
        same_nan = np.isnan(got) == np.isnan(want)
        with np.errstate(invalid="ignore"):
            close = np.isnan(want) | (np.abs(got - want) <= allowed)
        wrong = int((~(same_nan & close)).sum())
        kept = bool((out[covered:] == untouched[covered:]).all())
        figures = {"codes": wrong_codes, "out": wrong, "rows kept": kept}
        right = wrong_codes == 0 and wrong == 0 and kept
        if case.lse:
            got_lse = lse.view(np.float32)[:covered].astype(np.float64)
            want_lse = exact_lse[:covered]
            with np.errstate(invalid="ignore"):
                lse_close = ((got_lse == want_lse) | (np.abs(got_lse - want_lse) < 1e-6 * (1 + np.abs(want_lse)))
                             | (np.isnan(got_lse) & np.isnan(want_lse)))
            figures["lse"] = int((~lse_close).sum())
            right &= figures["lse"] == 0 and bool((lse[covered:] == 0x5A5A5A5A).all())
        self.report(name or case.name, right, figures)
        return pools

    # Three sequences: five rows of 21 tokens (so 16 come from another batch),
    # none of an empty sequence, one row of one token. Two padding rows.
    def batch(self, case, rng, lengths=(21, 0, 1), counts=(5, 0, 1), padding=2, unit=1.0):
        rows = sum(counts) + padding
        make = lambda heads, type, dim=case.dim: (rng.standard_normal((rows, heads, dim)) * unit).astype(
            np.float32).astype(TYPES[type])
        starts = np.concatenate([[0], np.cumsum(counts)])
        per_sequence = -(-max(lengths) // case.page) + 1
        table = np.full((len(lengths), per_sequence), 2147480000, np.int32)
        table[:, -1] = -1
        free = list(rng.permutation(case.pages))
        slots, positions = [], []
        for s, length in enumerate(lengths):
            used = -(-length // case.page)
            table[s, :used] = [free.pop() for _ in range(used)]
            for j in range(length - counts[s], length):
                slots.append(table[s, j // case.page] * case.page + j % case.page if j >= 0 else -1)
                positions.append(j)
        slots += [-1, case.pages * case.page + 3][:padding]
        positions += [1 << 60, 1][:padding]
        key, value = make(case.kv_heads, case.rows), make(case.kv_heads, case.rows, case.v_dim)
        if isinstance(case, LatentCase):
            key = np.ascontiguousarray(key[:, 0, :case.latent])
            value = np.ascontiguousarray(value[:, 0, :case.rope_dim])
        return Batch(key, value, make(case.q_heads, case.query), table, lengths, starts, slots, positions)

    def prefilled(self, case, rng):
        """A first batch that writes whole sequences, then a second that
        continues them, on the same pools."""
        batch = self.batch(case, rng, lengths=(21, 0, 1), counts=(21, 0, 1))
        self.check(case, batch)

    def run_features(self):
        rng = np.random.default_rng(20261130)
        for case in (
                Case("e4m3 NHD, bf16 rows"),
                Case("pages as values, NHD", threaded=True),
                Case("pages as values, HND", threaded=True, layout="hnd", rows="f16", window=3),
                Case("pages as values, padded, bf16 cache", threaded=True, layout="strides [2592, 160, 80]", cache="bf16"),
                Case("pages as values, packed, e5m2", threaded=True, layout="packed", cache="f8E5M2"),
                Case("e4m3 HND, f16 rows, window 3", layout="hnd", rows="f16", window=3),
                Case("e4m3 packed, f32 rows, soft cap, window 0", layout="packed", rows="f32", cap=30.0,
                     window=0),
                Case("e5m2, window 16", cache="f8E5M2", k_scale=(0.25,), v_scale=(0.5,), window=16),
                Case("e4m3fnuz", cache="f8E4M3FNUZ", k_scale=(0.0246,), v_scale=(0.069,)),
                Case("scales per head, D 80, page 1", k_scale=(0.01, 0.3), v_scale=(0.5, 0.02), dim=80,
                     page=1, pages=40),
                Case("12 / 4 heads, page 128", q_heads=12, kv_heads=4, page=128, pages=3),
                Case("5 / 1 heads, D 128, page 8, no LSE", q_heads=5, kv_heads=1, dim=128, page=8,
                     lse=False),
                Case("bf16 cache", cache="bf16"),
                Case("bf16 cache, f32 rows", cache="bf16", rows="f32"),
                Case("f16 cache", cache="f16", rows="f16", layout="hnd"),
                Case("f32 cache, bf16 rows", cache="f32", layout="packed"),
                Case("buffers, written in place", memrefs=True, cap=50.0),
                Case("rope", rotary=64),
                Case("scales of tokens", token_scales="side", cap=2.0),
                Case("scales of tokens, rope, packed, f32 rows, page 1", token_scales="side", rotary=32, layout="packed", rows="f32", page=1,
                     pages=40),
                Case("rows that end in their scale, packed, rope", token_scales="inline", layout="packed", rotary=64),
                Case("rows that end in their scale, padded, pages as values", token_scales="inline", layout="strides [2560, 160, 80]",
                     threaded=True, cap=2.0),
                Case("rope of 20 of 80 elements, in pairs, scales per head, f32 rows", rows="f32", dim=80, rotary=20, interleaved=True,
                     k_scale=(0.01, 0.3), v_scale=(0.5, 0.02)),
                Case("rope of 32 elements into a bf16 cache, pages as values", cache="bf16", rotary=32, threaded=True),
                Case("values of 32 beside keys of 64, HND", v_dim=32, layout="hnd"),
                Case("values of 64 beside keys of 48, packed, rope, scales of tokens", dim=48, v_dim=64, layout="packed", rotary=32, token_scales="side"),
                Case("values of 32, pages as values, packed, bf16 cache", v_dim=32, layout="packed", cache="bf16", threaded=True),
                Case("soft cap smaller than the scores", cap=0.5, softmax=4.0, rows="f32")):
            self.prefilled(case, rng)

    def run_latent(self):
        rng = np.random.default_rng(576)
        for case in (
                LatentCase("MLA 512 + 64, e4m3, bf16 rows"),
                LatentCase("MLA 256 + 64, e5m2, f16 rows, 16 heads", latent=256, cache="f8E5M2",
                           rows="f16", scale=0.25, q_heads=16),
                LatentCase("MLA, bf16 cache, f32 rows", cache="bf16", rows="f32", q_heads=1),
                LatentCase("MLA, fp8_ds_mla", cache="fp8_ds_mla"),
                LatentCase("MLA, fp8_ds_mla, rope in pairs", cache="fp8_ds_mla", rotary=64, interleaved=True),
                LatentCase("MLA, e4m3, rope, f16 rows", rows="f16", rotary=64),
                LatentCase("MLA 256 + 64, fp8_ds_mla, f32 rows", latent=256, cache="fp8_ds_mla",
                           rows="f32", page=64, pages=3),
                LatentCase("MLA, FP8 queries and outputs", query="f8E4M3FN", out="f8E5M2"),
                LatentCase("MLA, buffers, page 1, no LSE", memrefs=True, page=1, pages=40, lse=False)):
            self.prefilled(case, rng)

        tiles = LatentCase("fp8_ds_mla tiles", cache="fp8_ds_mla", rows="f32", latent=256)
        # Positions of which the table has no angles: the rows are not written.
        case = Case("rope", rotary=64)
        batch = self.batch(case, rng, lengths=(5, 3), counts=(2, 1))
        batch.positions[:2] = -1, POSITIONS
        pools, wanted = case.pools(), case.pools()
        out, lse = (np.zeros(shape, kind) for shape, kind in ((batch.query.shape, np.uint16), (batch.query.shape[:2], np.uint32)))
        call(self.compile(case.text()), case, batch, pools, out, lse)
        expected_write(case, batch, wanted)
        differ = sum(int((a != b).sum()) for a, b in zip(pools, wanted))
        self.report("rope: positions outside the table", differ == 0 and (pools[0] != case.pools()[0]).any(), {"codes": differ})

        batch = self.batch(tiles, rng, lengths=(5,), counts=(5,), padding=0)
        batch.key[0, :128] = 0
        batch.key[1, :] = 1e-40
        batch.key[2, :] *= 1e30
        batch.key[3, 5] = np.nan
        self.check(tiles, batch, "fp8_ds_mla: a tile of zeros, subnormal, huge, a NaN")

        batch = self.batch(tiles, rng, lengths=(4, 4), counts=(4, 4))
        batch.value[2, 7] = np.nan
        self.check(tiles, batch, "fp8_ds_mla: NaN in a rotary part stays in its sequence")

    def run_edges(self):
        rng = np.random.default_rng(7)
        case = Case("edges")
        # More queries than tokens: the first two have negative positions.
        self.check(case, self.batch(case, rng, lengths=(3, 1), counts=(5, 1)), "negative positions")
        self.check(case, self.batch(case, rng, lengths=(0, 0), counts=(0, 0)), "nothing but padding")
        self.check(case, self.batch(case, rng, lengths=(16, 17), counts=(16, 17)), "full pages")

        batch = self.batch(case, rng, lengths=(4, 4), counts=(4, 4))
        batch.key[1, 0, 5] = np.nan
        batch.value[2, 1, 6] = np.nan
        self.check(case, batch, "NaN stays in its sequence, head and later rows")

        batch = self.batch(case, rng, lengths=(4, 4), counts=(4, 4), padding=0)
        batch.slots = batch.slots[:5]
        batch.lengths[:] = (4, 0)
        batch.starts[:] = (0, 4, 4)
        self.check(case, batch, "more rows than slots")

        batch = self.batch(case, rng, lengths=(8,), counts=(8,))
        saturating = np.array([447, 448, 449, 464, 465, 1e10, np.inf, -np.inf, -500, 17, 19, 2.0**-10,
                               0.001, -0.0, 3.5 / 0.05, 22.4 / 0.05], np.float32)
        unit = Case("saturation", rows="f32", k_scale=(1.0,), v_scale=(1.0,))
        batch = self.batch(unit, rng, lengths=(8,), counts=(8,))
        batch.key[:, :, :16] = saturating
        batch.value[:, :, :16] = -saturating
        pools = self.check(unit, batch)
        page, token = divmod(int(batch.slots[0]), unit.page)
        codes = pools[0][page, token, 0, :16].tolist()
        self.report("codes of the test values", codes == [
            0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0xFE, 0x58, 0x5A, 0x00, 0x01, 0x80,
            0x69, 0x7E], [hex(code) for code in codes])

        infinite = Case("e5m2 infinities", cache="f8E5M2", rows="f32", k_scale=(1.0,), v_scale=(1.0,))
        batch = self.batch(infinite, rng, lengths=(3,), counts=(3,))
        batch.key[:] = np.inf  # saturates: e5m2 codes of infinity are never written
        self.check(infinite, batch)

    def run_conversions(self):
        """Every code of each narrow type, both ways."""
        rng = np.random.default_rng(3)
        for narrow in LARGEST:
            codes = np.arange(256, dtype=np.uint8)
            for wide in ("f32", "bf16", "f16"):
                model = self.compile(f"""
func.func @main(%x: tensor<?x{narrow}>, %s: memref<1xf32>) -> tensor<?x{wide}> {{
  %zero = arith.constant 0 : index
  %f = memref.load %s[%zero] : memref<1xf32>
  %y = kvcache.dequantize %x by %f : tensor<?x{narrow}> to tensor<?x{wide}>
  return %y : tensor<?x{wide}>
}}
""")
                wrong = 0
                for scale in np.float32([1.0, 0.0123, 3e-40, 1.7e38]):
                    with np.errstate(over="ignore", invalid="ignore"):
                        want = (codes.view(TYPES[narrow]).astype(np.float32) * scale).astype(TYPES[wide])
                    got = model(codes, np.array([scale]))[0].view(TYPES[wide])
                    wrong += int((~((bits(got) == bits(want)) | (np.isnan(got) & np.isnan(want)))).sum())
                self.report(f"dequantize {narrow} to {wide}", wrong == 0, {"wrong": wrong})
            for wide in ("f32", "bf16", "f16"):
                model = self.compile(f"""
func.func @main(%x: tensor<?x{wide}>, %s: memref<1xf32>) -> tensor<?x{narrow}> {{
  %zero = arith.constant 0 : index
  %f = memref.load %s[%zero] : memref<1xf32>
  %y = kvcache.quantize %x by %f : tensor<?x{wide}> to tensor<?x{narrow}>
  return %y : tensor<?x{narrow}>
}}
""")
                if wide == "f32":
                    # Random bits, and every code, tie between two codes, and
                    # neighbour of either.
                    exact = codes.view(TYPES[narrow]).astype(np.float32)
                    exact = np.unique(exact[np.isfinite(exact)])
                    ties = (exact[1:] + exact[:-1]) / 2
                    x = np.concatenate([exact, ties])
                    x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)),
                                        np.nextafter(x, np.float32(-np.inf)),
                                        rng.integers(0, 2**32, 200000, np.uint32).view(np.float32)])
                else:
                    x = np.arange(65536, dtype=np.uint16).view(TYPES[wide])
                wrong = 0
                for scale in np.float32([1.0, 0.0123]):
                    with np.errstate(over="ignore", invalid="ignore"):
                        want = convert(x.astype(np.float32) * (np.float32(1) / scale), narrow)
                    wrong += int((model(bits(x), np.array([scale]))[0] != want).sum())
                self.report(f"quantize {wide} to {narrow}", wrong == 0, {"wrong": wrong, "of": 2 * len(x)})

    def run_golden_operands(self):
        """Stored q, k, v of every step: cache bytes and attention of PyTorch."""
        for model_name, variant in (("llama", "modelopt_fp8"), ("llama", "no_scales"),
                                    ("llama_legacy", "legacy_runtime")):
            folder = os.path.join(GOLDEN, model_name, variant)
            stored = tensor_files.read(os.path.join(folder, "cache.safetensors"))
            for layer in range(2):
                case = Case("golden", k_scale=stored[f"layers.{layer}.k_scale"].data,
                            v_scale=stored[f"layers.{layer}.v_scale"].data, lse=False)
                model = self.compile(case.text())
                pools = tuple(np.full((7, 16, 2, 64), golden.FILL, np.uint8) for _ in "kv")
                differing, elements, worst = 0, 0, 0.0
                for step in golden.steps(folder):
                    q, k, v = (step[f"layers.{layer}.{name}"].data for name in "qkv")
                    batch = Batch(k, v, q, step["page_table"].data, step["lengths"].data,
                                  step["query_start"].data, step["slot_mapping"].data)
                    lse = np.zeros((len(q), 4), np.uint32)
                    out = call(model, case, batch, pools, np.zeros_like(q), lse)[0]
                    want = step[f"layers.{layer}.attn_out"]
                    differing += int((out != want.data).sum())
                    elements += out.size
                    worst = max(worst, golden.attention_excess(
                        tensor_files.values(tensor_files.Tensor("BF16", out)),
                        tensor_files.values(want)))
                codes = sum(int((pool != stored[f"layers.{layer}.{side}_cache"].data).sum())
                            for pool, side in zip(pools, "kv"))
                self.report(f"{variant}, layer {layer}: stored operands", codes == 0 and worst <= 1,
                            {"codes": codes, "elements differing": f"{differing}/{elements}",
                             "of allowed": round(worst, 3)})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvcache-opt", default="kvcache-opt")
    parser.add_argument("--only", choices=("features", "latent", "edges", "conversions", "golden_operands"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as workdir:
        suite = Suite(options.kvcache_opt, workdir)
        for group in ("features", "latent", "edges", "conversions", "golden_operands"):
            if options.only in (None, group):
                getattr(suite, "run_" + group)()
    print(f"{suite.failures} failures")
    return 1 if suite.failures else 0


if __name__ == "__main__":
    sys.exit(main())
