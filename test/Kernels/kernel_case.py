"""Batches for the attention kernel, and attention in double precision.

Shares nothing with the kernels but the ABI: pages, table and rows are built and
read here with numpy alone.
"""
import ml_dtypes
import numpy as np

from kernel_build import INLINE

LOG2E = 1.4426950408889634


def e4m3_values():
    """Value of each of the 256 e4m3fn codes."""
    c = np.arange(256)
    e, m = c >> 3 & 15, c & 7
    v = np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7.0))
    v[(e == 15) & (m == 7)] = np.nan
    return np.where(c >> 7 == 1, -v, v)


def e5m2_values():
    return (np.arange(256).astype(np.uint16) << 8).view(np.float16).astype(np.float64)


# By cache type: e4m3, e5m2, f16, bf16. Codes of the last two are 16-bit.
with np.errstate(invalid="ignore"):
    VALUES = {0: e4m3_values(), 1: e5m2_values(), 2: np.arange(65536).astype(np.uint16).view(np.float16).astype(np.float64),
              3: (np.arange(65536, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)}


def bf16_bits(x):
    """f32 to bf16 bits, round to nearest even; NaN stays NaN."""
    b = np.ascontiguousarray(x, np.float32).view(np.uint32)
    r = ((b + 0x7FFF + (b >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), r)


def to_bits(x, q_type):
    """Bits of an activation type: f16, bf16, f32, and the codes e4m3 and e5m2."""
    if q_type >= 3:
        return np.ascontiguousarray(x, np.float32).astype((ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)[q_type - 3]).view(np.uint8)
    if q_type == 2:
        return np.ascontiguousarray(x, np.float32).view(np.uint32)
    return bf16_bits(x) if q_type == 1 else np.ascontiguousarray(x, np.float32).astype(np.float16).view(np.uint16)


def from_bits(b, q_type):
    b = np.ascontiguousarray(b)
    if q_type >= 3:
        return VALUES[q_type - 3][b].astype(np.float32)
    if q_type == 2:
        return b.view(np.float32)
    return (b.astype(np.uint32) << 16).view(np.float32) if q_type == 1 else b.view(np.float16).astype(np.float32)


def ulp(x, q_type):
    """Distance of neighbours at |x| in the output type."""
    bits, smallest = ((11, -14), (8, -126), (24, -126), (4, -6), (3, -14))[q_type]
    with np.errstate(divide="ignore"):
        e = np.floor(np.log2(np.abs(x)))
    return 2.0 ** (np.maximum(np.where(np.isfinite(e), e, smallest), smallest) - bits + 1)


class Batch:
    """Sequences with their cache pages; unused slots hold NaN codes.

    lengths: tokens in the cache; queries: rows of each sequence; window: keys seen
    before a query's own; soft_cap: bound of the scores.
    """

    def __init__(self, shape, lengths, queries=None, seed=0, rows=None, spare_pages=3, k_scale=0.9, v_scale=1.25,
                 softmax_scale=None, max_pages=None, window=None, soft_cap=None, o_scale=1.0):
        rng = np.random.default_rng(seed)
        s = self.shape = dict(shape)
        self.window, self.soft_cap = window, soft_cap
        self.o_scale = o_scale if s.get("out_type", 0) >= 3 else 1.0  # of outputs that are codes
        # Sinks around the largest scores; slopes as ALiBi has them for 2^n heads.
        self.sinks = rng.uniform(-4, 8, s["q_heads"]).astype(np.float32) if s.get("has_sinks") else None
        self.slopes = (2.0 ** (-8 * (np.arange(s["q_heads"]) + 1) / s["q_heads"])).astype(np.float32) if s.get("has_alibi") else None
        self.layout, page, heads, dim = s["layout"], s["page_size"], s["kv_heads"], s["head_dim"]
        self.lengths = np.array(lengths, np.int32)
        self.queries = np.array([1] * len(lengths) if queries is None else queries, np.int32)
        self.query_start = np.concatenate([[0], np.cumsum(self.queries)]).astype(np.int32)
        self.total = int(self.query_start[-1])
        self.rows = rows or self.total + 2  # capacity: two rows too many
        needed = [-(-int(n) // page) for n in lengths]
        self.max_pages = max_pages or max(needed + [1]) + 2
        self.pages = sum(needed) + spare_pages
        order, used = rng.permutation(self.pages), 0
        garbage = [2147480000, -1, 0x7FFFFFFF, -2147483648]
        self.table = np.array([[garbage[(i + j) % 4] for j in range(self.max_pages)] for i in range(len(lengths))],
                              np.int32).reshape(len(lengths), self.max_pages)
        self.table_used = np.zeros(self.table.shape, bool)
        for i, n in enumerate(needed):
            self.table[i, :n] = order[used:used + n]
            self.table_used[i, :n] = True
            used += n
        self.slot_used = np.zeros((self.pages, page), bool)
        for i, n in enumerate(lengths):
            t = np.arange(n)
            self.slot_used[self.table[i, t // page], t % page] = True
        self.k_scale, self.v_scale = np.float32(k_scale), np.float32(v_scale)
        # Of tokens, [page][offset][head]: K and V; NaN in unused slots.
        self.token_scales = [(0.01 * 2.0 ** rng.uniform(-9, 9, (self.pages, page, heads))).astype(np.float32) for _ in range(2)]
        for scales in self.token_scales:
            scales[~self.slot_used] = np.nan
        self.out_dim = s.get("v_head_dim", dim)
        self.fill(rng)
        self.q = rng.standard_normal((self.rows, s["q_heads"], dim)).astype(np.float32)
        self.q[self.total:] = np.nan
        self.softmax_scale = dim**-0.5 if softmax_scale is None else softmax_scale

    def codes(self, rng, size):
        """Codes of about normal values."""
        cache_type = self.shape["cache_type"]
        if cache_type in (2, 3):
            codes = to_bits(rng.standard_normal(4096).astype(np.float32), cache_type - 2)
        else:
            values = VALUES[cache_type % 4]  # those of fp8_ds_mla are e4m3
            finite = np.sort(values[:128][np.isfinite(values[:128])])
            x = np.abs(rng.standard_normal(4096))
            codes = (np.abs(finite[None] - x[:, None]).argmin(1) | rng.integers(0, 2, 4096) << 7).astype(np.uint8)
        return codes[rng.integers(0, 4096, size)]

    def fill(self, rng):
        """K and V as codes [page][token][head][dim]; NaN in unused slots."""
        s = self.shape
        heads = s["kv_heads"]
        self.k, self.v = (self.codes(rng, (self.pages, s["page_size"], heads, dim)) for dim in (s["head_dim"], self.out_dim))
        for c in (self.k, self.v):
            c[~self.slot_used] = np.where(np.arange(c.shape[-1]) % 2, *((0x7F, 0xFF) if s["cache_type"] < 2 else (0x7FC1, 0xFFFF))).astype(c.dtype)
        if s["cache_type"] >= 2:
            self.k_scale = self.v_scale = np.float32(1)
        if s.get("per_head"):
            self.k_scale, self.v_scale = (np.float32(x * 1.7 ** np.arange(heads)) for x in (self.k_scale, self.v_scale))

    def rows_of(self, sequence):
        """K and V of a sequence, [token][head][dim] in float64."""
        t, page = np.arange(self.lengths[sequence]), self.shape["page_size"]
        pages, values = self.table[sequence, t // page], VALUES[self.shape["cache_type"]]
        own = [s[pages, t % page][..., None].astype(np.float64) if self.shape.get("token_scales") else 1 for s in self.token_scales]
        return tuple(values[c[pages, t % page]] * np.reshape(np.float64(s), (-1, 1)) * scales
                     for c, s, scales in ((self.k, self.k_scale, own[0]), (self.v, self.v_scale, own[1])))

    def slot(self, sequence, token):
        page = self.shape["page_size"]
        return self.table[sequence, token // page], token % page

    def set_code(self, which, sequence, token, head, dim, code):
        page, offset = self.slot(sequence, token)
        (self.k if which == "k" else self.v)[page, offset, head, dim] = code

    def pools(self):
        """K and V buffers (one for packed layouts) in the layout's strides, and maps of written bytes."""
        lay, s = self.layout, self.shape
        page, heads = s["page_size"], s["kv_heads"]
        codes = [np.ascontiguousarray(c).view(np.uint8) for c in (self.k, self.v)]
        size = self.pages * lay.page_bytes
        if s.get("token_scales") == INLINE:
            codes = [np.concatenate([c, scales[..., None].view(np.uint8)], -1) for c, scales in zip(codes, self.token_scales)]
            size -= lay.pitch - codes[0].shape[-1]  # the padding behind the last row is nobody's

        def index(strides, row_bytes):
            p, t, h, d = np.ogrid[:self.pages, :page, :heads, :row_bytes]
            return p * strides[0] + t * strides[1] + h * strides[2] + d

        pools, maps = [], []
        for _ in range(1 if lay.v_offset is not None else 2):
            pools.append(np.full(size, 0x7F, np.uint8))
            maps.append(np.zeros(size, np.uint8))
        for pool, written, c, strides, first in ((pools[0], maps[0], codes[0], lay.k, 0), (pools[-1], maps[-1], codes[1], lay.v, lay.v_offset or 0)):
            at = first + index(strides, c.shape[-1])
            pool[at], written[at] = c, np.broadcast_to(self.slot_used[:, :, None, None], c.shape)
        return pools, maps

    def query_bits(self):
        return to_bits(self.q, self.shape["q_type"])

    def query_values(self):
        """What the products take: in fp8-math rows that are not codes become e4m3 with a power of two."""
        q = from_bits(self.query_bits(), self.shape["q_type"]).astype(np.float64)
        if not self.shape.get("math") or self.shape["q_type"] >= 3:
            return q
        with np.errstate(all="ignore"):
            top = np.abs(q).max(-1, keepdims=True)
            scale = 2.0 ** (np.floor(np.log2(np.where(top > 0, top, 1))) - 7)
        return VALUES[0][to_bits(q / scale, 3)] * scale

    def query_written(self):
        """Rows past the last query are memory that nobody wrote."""
        written = np.zeros((self.rows, self.shape["q_heads"] * self.shape["head_dim"] * ACTIVATION_BYTES[self.shape["q_type"]]), np.uint8)
        written[:self.total] = 1
        return written.reshape(-1)

    def score_scale(self):
        factor = 2 / self.soft_cap if self.soft_cap else 1
        return np.float32(float(self.softmax_scale) * np.float64(self.k_scale) * LOG2E * factor)

    def output_scale(self):
        return np.float32(np.float64(self.v_scale) / self.o_scale)

    def cap_constant(self):
        return np.float32((self.soft_cap or 0) * LOG2E)

    def reference(self):
        """Output, LSE and the error that probabilities may have of every row in float64."""
        s = self.shape
        group = s["q_heads"] // s["kv_heads"]
        q = self.query_values()
        # P has the type of what it multiplies: f16, or bf16 with a cache of bf16 or of fp8_ds_mla.
        unit = 2.0 ** (-8 if s["cache_type"] >= 3 else -9)
        self.rounded = None
        if s.get("math"):
            self.rounded = tuple(np.zeros((self.total, s["q_heads"], self.out_dim)) for _ in range(2))
        shape = (self.total, s["q_heads"])
        out, magnitude = np.zeros(shape + (self.out_dim,)), np.zeros(shape + (self.out_dim,))
        lse = np.full(shape, -np.inf)
        with np.errstate(all="ignore"):
            for i, n in enumerate(self.lengths):
                k, v = self.rows_of(i)
                for j in range(self.queries[i]):
                    row, position = self.query_start[i] + j, n - self.queries[i] + j
                    if position < 0:
                        continue
                    seen = slice(max(0, position - self.window) if self.window is not None else 0, position + 1)
                    for h in range(s["kv_heads"]):
                        heads = slice(h * group, (h + 1) * group)
                        x = q[row, heads] @ k[seen, h].T * self.softmax_scale
                        if self.soft_cap:
                            x = self.soft_cap * np.tanh(x / self.soft_cap)
                        if self.slopes is not None:
                            x = x + self.slopes[heads, None].astype(np.float64) * (np.arange(n)[seen] - position)
                        top = x.max(1, keepdims=True)
                        if self.sinks is not None:
                            top = np.maximum(top, self.sinks[heads, None])
                        p = np.exp(x - top)
                        norm = p.sum(1, keepdims=True)
                        if self.sinks is not None:
                            norm = norm + np.exp(self.sinks[heads, None].astype(np.float64) - top)
                        out[row, heads] = p @ v[seen, h] / norm
                        magnitude[row, heads] = p @ np.abs(v[seen, h]) / norm * unit
                        if s.get("math"):
                            magnitude[row, heads] = self.round_probabilities(row, heads, x, top, norm, v[seen, h], unit)
                        lse[row, heads] = (top + np.log(norm))[:, 0]
        return out, lse, magnitude

    def round_probabilities(self, row, heads, x, top, norm, v, unit):
        """The error that P in e4m3 may have; `rounded` gets the output with P rounded so, and what may be left.

        P is 2^(score - n) with an integer n, so it is rounded to four bits whatever n is, unless it is smaller than
        2^-12 of the largest: then to a multiple of 2^-15 of it at most. The sum that divides is of exact P, for an LSE,
        else of rounded P.
        """
        score, p = x * LOG2E, np.exp(x - top)
        largest = p.max(1, keepdims=True)
        mantissa = 8 * 2.0 ** (score - np.floor(score))
        step = p / mantissa
        small = np.where(p < 2.0**-12 * largest, 2.0**-16 * largest, 0)
        # Scores of f32 may be on the other side of a tie.
        near = np.abs(mantissa % 1 - 0.5) < 16 * (2.0**-12 + np.abs(score) * 2.0**-20)
        rounded, left = np.rint(mantissa) * step, unit * p + near * step + np.where(small > 0, small + 2.0**-4 * p, 0)
        error, divisor = np.maximum(2.0**-4 * p, small), norm
        if not self.shape.get("has_lse", 1):
            divisor = norm + (rounded - p).sum(1, keepdims=True)
        out = self.rounded[0][row, heads] = rounded @ v / divisor
        self.rounded[1][row, heads] = left @ np.abs(v) / divisor
        if not self.shape.get("has_lse", 1):
            self.rounded[1][row, heads] += np.abs(out) * left.sum(1, keepdims=True) / divisor
            return (error @ np.abs(v) + np.abs(out) * error.sum(1, keepdims=True)) / norm
        return error @ np.abs(v) / norm


class LatentBatch(Batch):
    """The same with one latent row a token (MLA), as bytes [page][token][row]."""

    def __init__(self, shape, lengths, queries=None, softmax_scale=0.1, **more):
        dim = shape["latent_dim"] + shape["rope_dim"]
        super().__init__(dict(shape, q_heads=shape["heads"], kv_heads=1, head_dim=dim, layout=None), lengths, queries,
                         softmax_scale=softmax_scale, **more)

    def fill(self, rng):
        s = self.shape
        self.out_dim = latent = s["latent_dim"]
        where, rope = (self.pages, s["page_size"]), s["rope_dim"]
        if s["cache_type"] == 4:
            # Scales some binades apart, as tokens have them.
            scales = (2.0 ** rng.uniform(-4, 1, where + (latent // 128,))).astype(np.float32)
            parts = (self.codes(rng, where + (latent,)), scales, to_bits(rng.standard_normal(where + (rope,)).astype(np.float32), 1))
        else:
            parts = (self.codes(rng, where + (latent + rope,)),)
        self.rows_bytes = np.concatenate([np.ascontiguousarray(p).view(np.uint8) for p in parts], -1)
        self.rows_bytes[~self.slot_used] = np.where(np.arange(self.rows_bytes.shape[-1]) % 2, 0x7F, 0xFF)
        if s["cache_type"] >= 2:
            self.k_scale = np.float32(1)
        self.v_scale = self.k_scale

    def set_bytes(self, sequence, token, first, data):
        page, offset = self.slot(sequence, token)
        self.rows_bytes[page, offset, first:first + len(data)] = list(data)

    def values(self):
        """Every slot, [page][token][latent and rotary part] in float64."""
        s, rows = self.shape, self.rows_bytes
        latent = s["latent_dim"]
        with np.errstate(invalid="ignore"):
            if s["cache_type"] == 4:
                scales = np.ascontiguousarray(rows[..., latent:latent + latent // 32]).view(np.float32).astype(np.float64)
                rope = VALUES[3][np.ascontiguousarray(rows[..., latent + latent // 32:]).view(np.uint16)]
                return np.concatenate([VALUES[0][rows[..., :latent]] * np.repeat(scales, 128, -1), rope], -1)
            codes = rows if s["cache_type"] < 2 else rows.view(np.uint16)
            return VALUES[s["cache_type"]][codes] * np.float64(self.k_scale)

    def rows_of(self, sequence):
        t, page = np.arange(self.lengths[sequence]), self.shape["page_size"]
        k = self.values()[self.table[sequence, t // page], t % page][:, None]
        return k, k[..., :self.out_dim]

    def pools(self):
        s, width = self.shape, self.rows_bytes.shape[-1]
        pool = np.full(self.pages * s["page_stride"], 0x7F, np.uint8)
        written = np.zeros(pool.size, np.uint8)
        p, t, b = np.ogrid[:self.pages, :s["page_size"], :width]
        at = p * s["page_stride"] + t * s["token_stride"] + b
        pool[at], written[at] = self.rows_bytes, np.broadcast_to(self.slot_used[..., None], at.shape)
        return [pool], [written]


class Result:
    """What a launch left behind, and its comparison with the reference."""

    def __init__(self, batch, out, lse, counters):
        self.batch, self.out, self.lse, self.counters = batch, out, lse, counters

    def problems(self, has_lse=True, lse_error=1e-5):
        """Strings that say what is wrong; none if nothing is."""
        b, found = self.batch, []
        out_type = b.shape["out_type"]
        want, want_lse, magnitude = b.reference()
        if out_type >= 3:  # in codes
            top = (448, 57344)[out_type - 3]
            want, magnitude = np.clip(want / b.o_scale, -top, top), magnitude / b.o_scale
        got = from_bits(self.out[:b.total], out_type).astype(np.float64)
        nan = np.isnan(want)
        if (np.isnan(got) != nan).any():
            found.append(f"NaN in {np.isnan(got).sum()} outputs, expected in {nan.sum()}; first difference at "
                         f"{tuple(np.argwhere(np.isnan(got) != nan)[0])}")
        # Over sums of |p v|, which the bound of exact P has a factor of.
        with np.errstate(all="ignore"):
            unit = 2.0**-4 if b.rounded else 2.0 ** (-8 if b.shape["cache_type"] >= 3 else -9)
            self.relative_error = float(np.nanmax(np.abs(got - want) / (magnitude / unit), initial=0))
        self.worst = self.max_error = 0.0
        references = [("", want, magnitude)]
        if b.rounded:
            rounded, left = (x / b.o_scale for x in b.rounded)
            references.append((" with P in e4m3", np.clip(rounded, -top, top) if out_type >= 3 else rounded, left))
        for what, want, magnitude in references:
            bound = ulp(want, out_type) + magnitude
            with np.errstate(invalid="ignore"):
                error = np.where(nan | np.isnan(got), 0, np.abs(got - want))
                ratio = np.where(nan, 0, error / bound)
            self.worst = max(self.worst, float(ratio.max(initial=0)))
            self.max_error = max(self.max_error, float(error.max(initial=0)))
            if ratio.max(initial=0) > 1:
                at = np.unravel_index(ratio.argmax(), ratio.shape)
                found.append(f"output {tuple(map(int, at))} is {got[at]}, expected {want[at]}{what}: {ratio[at]:.2f} times the bound")
        if has_lse:
            got_lse = self.lse[:b.total].astype(np.float64)
            with np.errstate(invalid="ignore"):
                error = np.where(got_lse == want_lse, 0, np.abs(got_lse - want_lse)) / np.maximum(1, np.abs(want_lse))
            error = np.where(np.isnan(want_lse) & np.isnan(got_lse), 0, error)
            error = np.where(np.isnan(error), np.inf, error)
            self.lse_worst = float(error.max(initial=0))
            if self.lse_worst > lse_error:
                at = np.unravel_index(error.argmax(), error.shape)
                found.append(f"LSE {tuple(map(int, at))} is {got_lse[at]}, expected {want_lse[at]}")
        if (self.out[b.total:] != SENTINELS[out_type]).any() or (self.lse[b.total:].view(np.uint32) != SENTINEL32).any():
            found.append("a row past query_start[max_sequences] was written")
        if self.counters.any():
            found.append(f"counters are not zero again: {np.flatnonzero(self.counters)[:4]}")
        return found


SENTINEL32 = np.uint32(0x7FA5A5A5)
ACTIVATION_BYTES = (2, 2, 4, 1, 1)
# NaN in every type, by activation type.
SENTINELS = (np.uint16(0x7FA5), np.uint16(0x7FA5), SENTINEL32, np.uint8(0x7F), np.uint8(0x7F))
