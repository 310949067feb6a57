"""Freezes a bundle's launches at one set of lengths and replays them at others.

From the freeze on nothing is compiled or planned; only device buffers change.
Each replay must give the bits that a fresh process gets for the same buffers,
leave the arrival counters at zero, and leave the launch bytes as they were.

  graph_proof.py LIBRARY BUNDLE [--cuda FAKE_DRIVER] [--sequences 1+3,17,...] [--program NAME] [--fresh BUNDLE]

--fresh names a bundle whose fresh runs count instead, to see what a plan made for the first lengths does at others.
"""
import argparse
import ctypes
import json
import os
import sys

import numpy as np

from kvcache_runtime import Runtime


class Case:
    """The buffers' contents for one step, from a seed: never from a previous step."""

    def __init__(self, manifest, lengths, seed, new_tokens=1):
        rng = np.random.default_rng(seed)
        sizes = manifest["capacities"]
        tokens, sequences = sizes["max_tokens"], sizes["max_sequences"]
        pages, pool = sizes["max_pages_per_sequence"], sizes["num_pages"]
        self.contents = {}
        for buffer in manifest["buffers"]:
            name, role = buffer["name"], buffer["role"]
            if buffer.get("offset_in") or buffer["owner"] != "caller":
                continue
            page = manifest["layers"][0]["page_size"]
            if role == "cache":
                data = rng.integers(0, 0x78, buffer["bytes"], np.uint8)  # no NaN
                data |= rng.integers(0, 2, buffer["bytes"], np.uint8) << 7
            elif role == "activation":
                values = rng.standard_normal(buffer["bytes"] // 2, np.float32)
                data = (values.view(np.uint32) >> 16).astype(np.uint16)
                if buffer["access"] == "write":
                    data[:] = 0xFFFF
            elif role == "page_table":
                data = np.full((sequences, pages), -1, np.int32)
                ids = rng.permutation(pool)
                for i, length in enumerate(lengths):
                    used = -(-length // page)
                    data[i, :used], ids = ids[:used], ids[used:]
                self.table = data
            elif role == "lengths":
                data = np.array((list(lengths) + [0] * sequences)[:sequences], np.int32)
            elif role == "query_start":
                live = [min(length, new_tokens) for length in lengths]
                data = np.cumsum([0] + (live + [0] * sequences)[:sequences]).astype(np.int32)
            elif role == "slots":
                data = np.full(tokens, -1, np.int64)
            else:
                raise SystemExit(f"{name}: unknown role {role}")
            self.contents[name] = data
        for buffer in manifest["buffers"]:
            if buffer["role"] == "slots":
                row = 0
                for i, length in enumerate(lengths):
                    for at in range(length - min(length, new_tokens), length):
                        self.contents[buffer["name"]][row] = int(self.table[i, at // page]) * page + at % page
                        row += 1

    def store(self, runtime):
        for name, data in self.contents.items():
            runtime.set(name, data)


def results(runtime, manifest):
    return {buffer["name"]: runtime.get(buffer["name"]).tobytes() for buffer in manifest["buffers"]
            if buffer["owner"] == "caller" and not buffer.get("offset_in") and buffer["access"] != "read"}


def counters_at_zero(runtime, manifest, program, chip):
    """How many counters are zero, and the names of the others.

    The workspace holds each runtime buffer at a multiple of 256, in the order of first use by a segment's launches (of
    one segment: in the manifest's order)."""
    launches = next(t for t in manifest["targets"] if t["chip"] == chip)["launches"]
    launches = [launch for launch in launches if launch["program"] == program["name"]]
    order, offset, memory = [], 0, runtime.counters(manifest)
    names = [b["name"] for b in manifest["buffers"]]
    for segment in program["segments"]:
        used = {a["name"] for launch in launches if launch["segment"] == segment["name"]
                for a in launch["arguments"] if a["kind"] == "buffer"}
        order += [n for n in names if n in used and n not in order]
    count, left = 0, []
    for buffer in (next(b for b in manifest["buffers"] if b["name"] == n) for n in order):
        if buffer["owner"] != "runtime":
            continue
        if buffer["element_type"] == "i32":
            if memory[offset:offset + buffer["bytes"]].any():
                left.append(buffer["name"])
            else:
                count += 1
        offset += -(-buffer["bytes"] // 256) * 256
    return count, left


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("bundle")
    parser.add_argument("--cuda", help="driver to open")
    parser.add_argument("--program", default="main")
    parser.add_argument("--fresh", help="bundle of the fresh runs (default: the same)")
    parser.add_argument("--new-tokens", type=int, default=1, help="of each sequence, as far as its length goes")
    parser.add_argument("--sequences", default="", help="lengths of one step, + between sequences; steps by commas")
    options = parser.parse_args()
    with open(os.path.join(options.bundle, "manifest.json")) as f:
        manifest = json.load(f)
    program = next(p for p in manifest["programs"] if p["name"] == options.program)
    sizes = manifest["capacities"]
    capacity = sizes["max_pages_per_sequence"] * manifest["layers"][0]["page_size"]
    sequences = program["bucket"]["sequences"] if "bucket" in program else \
        min(sizes["max_sequences"], sizes["max_tokens"] // options.new_tokens)
    if options.sequences:
        steps = [[int(length) for length in step.split("+")] for step in options.sequences.split(",")]
    else:
        steps = [[length] * sequences for length in (8, 1, 17, capacity, 0)]
        steps += [[capacity] + [0] * (sequences - 1), [8] * sequences]
    cuda = None
    if options.cuda:
        driver, context = ctypes.CDLL(options.cuda), ctypes.c_void_p()
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        cuda = (context.value, options.cuda)

    frozen = Runtime(options.library, options.bundle, cuda, options.program)
    chip = frozen.lib.kvcacheProgramChip(frozen.program).decode()
    Case(manifest, steps[0], 0, options.new_tokens).store(frozen)
    frozen.freeze()
    launch_bytes = frozen.frozen_bytes()
    wrong, counters = 0, 0
    for step, lengths in enumerate(steps):
        case = Case(manifest, lengths, step, options.new_tokens)
        case.store(frozen)
        frozen.replay()
        zeros, left = counters_at_zero(frozen, manifest, program, chip)
        counters += zeros
        fresh = Runtime(options.library, options.fresh or options.bundle, program=options.program)
        case.store(fresh)
        fresh.enqueue()
        expected, found = results(fresh, manifest), results(frozen, manifest)
        different = [name for name in expected if expected[name] != found[name]]
        print(f"lengths {'+'.join(map(str, lengths))}: " +
              (f"differs from a fresh run: {', '.join(different)}" if different else "the bits of a fresh run") +
              (f"; not zero again: {', '.join(left)}" if left else ""))
        wrong += bool(different or left)
        fresh.close()
    if frozen.frozen_bytes() != launch_bytes:
        print("launch bytes changed")
        wrong += 1
    print(f"{len(launch_bytes)} launches on {chip}, {len(steps)} replays, {counters} counters at zero: "
          f"{'WRONG' if wrong else 'one static graph'}")
    frozen.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
