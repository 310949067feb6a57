"""Launches kernel instances on the PTX machine."""
import argparse
import os
import sys
import time

import numpy as np

from kernel_build import SIDE, TYPES, Builder, value_dim
from kernel_case import SENTINEL32, SENTINELS, Result
from kernel_machine import Device

KERNELS_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "kernels")


class Attention:
    """Compiled attention instances on a device.

    add() collects instances; they are compiled together, one module per
    architecture, when the first of them runs.
    """

    def __init__(self, builder, device):
        self.builder, self.device = builder, device
        self.instances, self.pending, self.modules = {}, {}, {}

    def add(self, **values):
        key = tuple(sorted((k, v.name if hasattr(v, "page_bytes") else v) for k, v in values.items()))
        if key not in self.instances:
            name = f"attention_{len(self.instances)}"
            kernel, full = self.build(name, values)
            self.instances[key] = (name, full)
            self.pending.setdefault(values["arch"], []).append(kernel)
        return self.instances[key]

    def build(self, name, values):
        given = {k: v for k, v in values.items() if k != "prefill"}
        kernel, full = (self.builder.prefill if values.get("prefill") else self.builder.attention)(name, **given)
        return kernel, dict(full, layout=values["layout"])

    def compile(self):
        for arch, kernels in self.pending.items():
            for n in range(0, len(kernels), 8):  # a batch saves process starts
                part = kernels[n:n + 8]
                module = self.device.module(self.builder.ptx(part, arch))
                self.modules.update((name, module) for name, _ in part)
        self.pending = {}

    def workspace(self, instance, batch):
        _, v = instance
        g = self.builder.geometry
        x, y, splits = g.grid_of(v, batch.rows, len(batch.lengths))
        floats = g.partials(x, y, g.columns_of(v), value_dim(v), splits) // 4
        words = g.counters(x, y, splits) // 4
        return np.full(max(floats, 4), np.nan, np.float32), np.zeros(max(words, 1), np.uint32)

    def pages(self, v, batch, buffers, maps, offsets):
        """Addresses of K and V."""
        k = self.device.buffer(buffers[0], "k_pages", maps[0] if maps else None)
        if len(buffers) > 1:
            vv = self.device.buffer(buffers[1], "v_pages", maps[1] if maps else None)
        else:
            vv = k + batch.layout.v_offset
        return k + offsets[0], vv + offsets[1]

    def arguments(self, v, batch, pointers, rows):
        """All arguments of a launch."""
        pointers = pointers + [np.uint64(self.device.buffer(batch.sinks, "sinks") if v["has_sinks"] else 0),
                               np.uint64(self.device.buffer(batch.slopes, "alibi_slopes") if v["has_alibi"] else 0)]
        if not v.get("prefill"):
            pointers += [np.uint64(self.device.buffer(scales, name) if v["token_scales"] == SIDE else 0)
                         for scales, name in zip(batch.token_scales, ("k_scales", "v_scales"))]
        heads = v["kv_heads"] if v["per_head"] else 1
        arguments = pointers + [*np.resize(batch.score_scale(), heads), *np.resize(batch.output_scale(), heads), batch.cap_constant(),
                                np.int32(rows), np.int32(len(batch.lengths)), np.int32(batch.max_pages), np.int32(batch.window or 0)]
        if v["runtime_strides"]:
            for strides in (batch.layout.k, batch.layout.v):
                arguments += [np.int64(strides[0]), np.int32(strides[1]), np.int32(strides[2])]
        return arguments

    def run(self, instance, batch, launches=1, late=False, quantum=0, pools=None, offsets=(0, 0)):
        """Result of the last of `launches` launches, and findings of all. `pools`: buffers and maps instead of the batch's."""
        self.compile()
        name, v = instance
        d, g, rows = self.device, self.builder.geometry, batch.rows
        partials, counters = self.workspace(instance, batch)
        q = np.ascontiguousarray(batch.query_bits())
        buffers, maps = pools or batch.pools()
        findings, outputs = [], []
        for _ in range(launches):
            d.clear()
            sentinel = SENTINELS[v["out_type"]]
            out = np.full(q.shape[:2] + (batch.out_dim,), sentinel, sentinel.dtype)
            lse = np.full(q.shape[:2], SENTINEL32, np.uint32).view(np.float32)
            split = v["num_splits"] > 1
            pages = self.pages(v, batch, buffers, maps, offsets)
            pointers = [d.buffer(q, "q", batch.query_written()), *pages,
                        d.buffer(batch.table, "page_table", np.repeat(batch.table_used.reshape(-1), 4).astype(np.uint8)),
                        d.buffer(batch.lengths, "lengths"), d.buffer(batch.query_start, "query_start"),
                        d.buffer(out, "out", writable=True),
                        d.buffer(lse, "lse", writable=True) if v["has_lse"] else 0,
                        d.buffer(partials, "partials", np.zeros(partials.nbytes, np.uint8), writable=True) if split else 0,
                        d.buffer(counters, "counters", writable=True) if split else 0]
            arguments = self.arguments(v, batch, [np.uint64(p) for p in pointers], rows)
            grid = g.grid_of(v, rows, len(batch.lengths))
            findings += d.launch(self.modules[name], name, grid, g.shared_of(v), arguments, late=late, quantum=quantum,
                                 block=32 * v.get("warps", 4))
            outputs.append((out.copy(), lse.copy()))
        for out, lse in outputs[1:]:
            if (out != outputs[0][0]).any() or (lse.view(np.uint32) != outputs[0][1].view(np.uint32)).any():
                findings.append("two launches differ")
        return Result(batch, *outputs[-1], counters), findings


class MLA(Attention):
    """Compiled instances of attention over a latent cache."""

    def build(self, name, values):
        return self.builder.mla(name, **values)

    def pages(self, v, batch, buffers, maps, offsets):
        return (self.device.buffer(buffers[0], "pages", maps[0] if maps else None),)

    def arguments(self, v, batch, pointers, rows):
        return pointers + [batch.score_scale(), batch.output_scale(), np.int32(rows), np.int32(len(batch.lengths)), np.int32(batch.max_pages)]


def rope_buffers(device, rope):
    """Addresses of a table of cosines and sines and of positions; nulls without them."""
    if not len(rope):
        return [0, 0]
    return [device.buffer(np.ascontiguousarray(rope[0], np.float32), "rope_table"),
            device.buffer(np.ascontiguousarray(rope[1], np.int64), "positions")]


class Write:
    """Compiled write instances on a device."""

    def __init__(self, builder, device):
        self.builder, self.device, self.modules = builder, device, {}

    def add(self, instances):
        """`instances`: {name: values} of one architecture, compiled as one module."""
        built = {name: self.builder.write(name, **values) for name, values in instances.items()}
        (arch,) = {values["arch"] for values in instances.values()}
        module = self.device.module(self.builder.ptx([kernel for kernel, _ in built.values()], arch))
        self.modules.update((name, (module, dict(full, layout=instances[name]["layout"]))) for name, (_, full) in built.items())

    def run(self, name, k, v, slots, pages, scales, max_tokens=None, fill=0xAA, num_slots=None, rope=()):
        """k, v: u16 bits [token][head][dim]; rope: a table and positions. Returns the pools and findings. Rows past
        max_tokens do not exist."""
        module, values = self.modules[name]
        d, lay = self.device, values["layout"]
        d.clear()
        pools = [np.full(pages * lay.page_bytes, fill, np.uint8) for _ in range(1 if lay.v_offset is not None else 2)]
        at = [d.buffer(p, f"pages{n}", writable=True) for n, p in enumerate(pools)]
        rows = max_tokens or len(slots)
        pointers = [d.buffer(np.ascontiguousarray(k), "k"), d.buffer(np.ascontiguousarray(v), "v"), at[0],
                    at[1] if len(at) > 1 else at[0] + lay.v_offset, d.buffer(np.ascontiguousarray(slots, np.int64), "slots"),
                    *rope_buffers(d, rope)]
        g, heads = self.builder.geometry, values["kv_heads"]
        if values.get("token_scales"):
            # `scales` are the side tensors, which the kernel fills, if there are such.
            pointers[5:5] = [d.buffer(s, name, writable=True) for s, name in zip(scales, ("k_scales", "v_scales"))] or [0, 0]
            arguments = [*(np.uint64(p) for p in pointers), np.int32(rows), np.int64(pages * values["page_size"])]
            return pools, d.launch(module, name, (g.token_scaled_write_grid(rows, heads, values["head_dim"], values["v_head_dim"]), 1, 1), 0, arguments)
        arguments = [np.uint64(p) for p in pointers]
        per_head = values["per_head"]
        # One scale for K and one for V; per head, an array of them each.
        arguments += [np.float32(x) for s in scales for x in (s if per_head else [s])]
        arguments += [np.int32(rows),
                      np.int64(pages * values["page_size"] if num_slots is None else num_slots)]
        grid = (g.write_grid(rows, 1 if per_head else heads, values["head_dim"], values["v_head_dim"]), g.write_grid_y(heads, per_head), 1)
        return pools, d.launch(module, name, grid, 0, arguments)


class WriteLatent:
    """Compiled instances of the write of latent rows."""

    def __init__(self, builder, device):
        self.builder, self.device, self.modules = builder, device, {}

    def add(self, instances):
        """`instances`: {name: values} of one architecture, compiled as one module."""
        built = {name: self.builder.write_latent(name, **values) for name, values in instances.items()}
        (arch,) = {values["arch"] for values in instances.values()}
        module = self.device.module(self.builder.ptx([kernel for kernel, _ in built.values()], arch))
        self.modules.update((name, (module, full)) for name, (_, full) in built.items())
        return {name: full for name, (_, full) in built.items()}

    def run(self, name, latent, rope, slots, pages, scale=1, fill=0xAA, num_slots=None, rotation=()):
        """latent, rope: bits [token][element]; rotation: a table and positions. Returns the pool and findings."""
        module, v = self.modules[name]
        d, g = self.device, self.builder.geometry
        d.clear()
        pool = np.full(pages * v["page_stride"], fill, np.uint8)
        pointers = [d.buffer(np.ascontiguousarray(latent), "latent"), d.buffer(np.ascontiguousarray(rope), "rope"),
                    d.buffer(pool, "pages", writable=True), d.buffer(np.ascontiguousarray(slots, np.int64), "slots"),
                    *rope_buffers(d, rotation)]
        arguments = [*(np.uint64(p) for p in pointers), np.float32(scale), np.int32(len(slots)),
                     np.int64(pages * v["page_size"] if num_slots is None else num_slots)]
        grid = (g.latent_write_grid(len(slots), v["latent_dim"], v["rope_dim"]), 1, 1)
        return pool, d.launch(module, name, grid, 0, arguments)


class Suite:
    """A test file: options, checks, and the last line that lit's reader wants to see."""

    def __init__(self, description):
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--machine", required=True, help="libkvcache_ptx.so")
        parser.add_argument("--library", required=True, help="kvcache_kernels.bc")
        parser.add_argument("--llvm", required=True, help="folder of the LLVM 22 tools")
        parser.add_argument("--work", required=True, help="folder for PTX")
        parser.add_argument("--verbose", action="store_true")
        self.options = o = parser.parse_args()
        os.environ["KVCACHE_LLVM_BIN"] = o.llvm
        self.builder = Builder(o.library, KERNELS_DIR, o.work)
        self.device = Device(o.machine)
        self.attention = Attention(self.builder, self.device)
        self.mla = MLA(self.builder, self.device)
        self.write = Write(self.builder, self.device)
        self.write_latent = WriteLatent(self.builder, self.device)
        self.passed = self.failed = 0
        self.start = time.time()

    def check(self, name, problems):
        if problems:
            self.failed += 1
            print(f"FAIL {name}")
            for p in list(problems)[:8]:
                print(f"    {p}")
        else:
            self.passed += 1
            if self.options.verbose:
                print(f"pass {name}")

    def attend(self, name, instance, batch, **options):
        """Runs a batch and compares it with the reference."""
        lse_error = options.pop("lse_error", 1e-5)
        kind = self.mla if "latent_dim" in instance[1] else self.attention
        result, findings = kind.run(instance, batch, **options)
        problems = result.problems(bool(instance[1]["has_lse"]), lse_error) + findings
        self.check(f"{name} {describe(instance)}", problems)
        return result

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed")
        if self.options.verbose:
            print(f"{time.time() - self.start:.1f} s, {self.device.instructions} warp instructions", file=sys.stderr)
        sys.exit(1 if self.failed or not self.passed else 0)


def describe(instance):
    v = instance[1]
    if "latent_dim" in v:
        return (f"mla sm_{v['arch']} {TYPES[v['q_type']]} to {TYPES[v['out_type']]} {v['heads']} heads {v['latent_dim']}+{v['rope_dim']} cache "
                f"{v['cache_type']} page {v['page_size']} tile {v['tile']}x{v['stages']} splits {v['num_splits']}x{v['split_tokens']} "
                f"rows {v['rows']} lse {v['has_lse']}")
    return (f"{'prefill ' if v.get('prefill') else ''}sm_{v['arch']} {TYPES[v['q_type']]} to {TYPES[v['out_type']]} {v['q_heads']}/{v['kv_heads']} D{v['head_dim']}/{v['v_head_dim']} "
            f"page {v['page_size']} {v['layout'].name} tile {v['tile']}x{v['stages']} u{v['unroll']} "
            f"splits {v['num_splits']}x{v['split_tokens']} cache {v['cache_type']} lse {v['has_lse']} rows {v['rows']} "
            f"window {v['has_window']} cap {v['has_soft_cap']}{' fp8-math' if v.get('math') else ''}")
