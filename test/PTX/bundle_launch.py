"""Launches the kernels of a bundle on the PTX machine, as its manifest says."""

import json
import os

import numpy as np

WORD = {"i32": np.int32, "i64": np.int64, "f32": np.float32}


def placed(logical, buffer):
    """The bytes of a buffer whose elements lie at its strides."""
    memory = np.zeros(buffer["bytes"], np.uint8)
    np.lib.stride_tricks.as_strided(memory, buffer["shape"], buffer["strides"])[...] = logical
    return memory


class Bundle:
    """The buffers of one layer, with random activations and caches. Slots of the
    cache that no token has hold NaN codes and count as never written."""

    def __init__(self, machine, folder, lengths, queries, seed=0):
        """lengths: tokens of each sequence, of which the last queries[i] are new."""
        with open(os.path.join(folder, "manifest.json")) as f:
            self.manifest = json.load(f)
        target = self.manifest["targets"][0]
        with open(os.path.join(folder, target["ptx"]["file"])) as f:
            self.module = machine.module(f.read(), "bundle")
        self.machine, self.launches = machine, [x for x in target["launches"] if x["layer"] == "layer0"]
        names = {a["name"] for x in self.launches for a in x["arguments"] if a["kind"] == "buffer"}
        self.buffers = {b["name"]: b for b in self.manifest["buffers"] if b["name"] in names}
        capacity, layer = self.manifest["capacities"], self.manifest["layers"][0]
        page, rng = layer["page_size"], np.random.default_rng(seed)
        rows, pages = sum(queries), [-(-n // page) for n in lengths]
        order = rng.permutation(capacity["num_pages"])[: sum(pages)]
        table = np.full((capacity["max_sequences"], capacity["max_pages_per_sequence"]), -1, np.int32)
        start = np.full(capacity["max_sequences"] + 1, rows, np.int32)
        slots = np.full(capacity["max_tokens"], -1, np.int64)
        used = np.zeros((capacity["num_pages"], page), bool)
        first, row = 0, 0
        for i, (n, new) in enumerate(zip(lengths, queries)):
            table[i, : pages[i]] = order[first : first + pages[i]]
            first += pages[i]
            t = np.arange(n)
            slot = table[i, t // page].astype(np.int64) * page + t % page
            used.reshape(-1)[slot[: n - new]] = True
            start[i] = row
            slots[row : row + new] = slot[n - new :]
            row += new
        full = np.zeros(capacity["max_sequences"], np.int32)
        full[: len(lengths)] = lengths
        self.start = {"page_table": table, "lengths": full, "query_start": start, "slots": slots}
        self.data, self.valid = {}, {}
        for name, b in self.buffers.items():
            shape = b["shape"]
            if b["role"] in self.start:
                self.data[name] = self.start[b["role"]]
                continue
            if b["role"] == "cache":  # every finite e4m3 code below 2
                codes = rng.integers(0, 0x40, shape).astype(np.uint8) | rng.integers(0, 2, shape).astype(np.uint8) << 7
                mask = np.broadcast_to(used[:, :, None, None], shape)
                self.data[name] = placed(np.where(mask, codes, 0x7F), b)
                self.valid[name] = placed(mask, b)
            elif b["role"] == "workspace":
                self.data[name] = np.zeros(b["bytes"], np.uint8)
                if "counters" not in name:
                    self.valid[name] = np.zeros(b["bytes"], np.uint8)
            elif b["access"] == "write":
                self.data[name] = np.full(b["bytes"], 0xEE, np.uint8)
                self.valid[name] = np.zeros(b["bytes"], np.uint8)
            else:
                x = rng.standard_normal(shape).astype(np.float32)
                self.data[name] = (x.view(np.uint32) >> 16).astype(np.uint16)  # bf16

    def run(self, **options):
        """-> (all bytes that kernels wrote, findings, counters of each launch)"""
        m = self.machine
        m.clear()
        data = {n: np.ascontiguousarray(a).copy() for n, a in self.data.items()}
        address = {}
        for n, b in self.buffers.items():
            init = np.ascontiguousarray(self.valid[n]) if n in self.valid else None
            address[n] = m.buffer(data[n], n, init, read_only=b["access"] == "read",
                                  propagate=b["role"] in ("cache", "workspace"))
        findings, counters = [], []
        for launch in self.launches:
            arguments = []
            for a in launch["arguments"]:
                if a["kind"] == "buffer":
                    arguments.append(address[a["name"]])
                elif a["kind"] == "null":
                    arguments.append(0)
                elif "bits" in a:
                    arguments.append(np.uint32(int(a["bits"], 16)))
                else:
                    arguments.append(WORD[a["kind"]](a["value"]))
            report = m.launch(self.module, launch["kernel"], tuple(launch["grid"]), tuple(launch["block"]),
                              launch["shared_bytes"], arguments, **options)
            findings += report["findings"]
            counters.append(report["counters"])
        written = {n: data[n].tobytes() for n, b in self.buffers.items()
                   if b["access"] != "read" and b["role"] != "workspace"}
        # Counters are zero again for the next launch.
        for n, b in self.buffers.items():
            if b["role"] == "workspace" and "counters" in n:
                written[n] = data[n].tobytes()
        return written, findings, counters
