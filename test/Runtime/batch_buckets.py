"""Live batches run in the next bucket, padded, with the bits of the unpadded run.

All buckets share the buffers of one bundle. Each is frozen at the first batch that it serves. The unpadded run is that
of a bundle compiled for exactly so many sequences.

  batch_buckets.py LIBRARY BUCKETS UNPADDED-N ... (bundles whose names end in their number of sequences)
"""
import json
import os
import sys

from graph_proof import Case
from kvcache_runtime import Runtime

library, path, *others = sys.argv[1:]


def manifest_of(bundle):
    with open(os.path.join(bundle, "manifest.json")) as f:
        return json.load(f)


def launches(manifest, program):
    return [launch for launch in manifest["targets"][0]["launches"] if launch["program"] == program]


buckets = manifest_of(path)
unpadded = {int(bundle.rsplit("-", 1)[1]): bundle for bundle in others}
capacity = buckets["capacities"]["max_pages_per_sequence"] * buckets["layers"][0]["page_size"]
whole = Runtime(library, path)
programs = {}
wrong = 0
for step, count in enumerate(sorted(unpadded) + sorted(unpadded, reverse=True)):
    name = whole.program_for_batch(count, count)
    if name not in programs:
        programs[name] = Runtime(library, path, program=name, beside=whole)
        fresh = True
    lengths = [1 + (7 * i + 11 * step) % capacity for i in range(count)]
    case = Case(buckets, lengths, step)
    case.store(whole)
    if fresh:
        programs[name].freeze()
        fresh = False
    programs[name].replay()

    exact = Runtime(library, unpadded[count])
    manifest = manifest_of(unpadded[count])
    for buffer in manifest["buffers"]:
        if buffer["name"] in case.contents:
            # The rows that are live; a pool of as many pages.
            whole_rows = case.contents[buffer["name"]].reshape(-1)
            exact.set(buffer["name"], whole_rows[:buffer["bytes"] // whole_rows.itemsize])
    exact.enqueue()
    for buffer in manifest["buffers"]:
        if buffer["owner"] == "caller" and buffer["access"] != "read":
            expected = exact.get(buffer["name"])
            if (whole.get(buffer["name"])[:expected.size] != expected).any():
                print(f"{buffer['name']}: differs from the unpadded run")
                wrong += 1
    same = [a["kernel"] == b["kernel"] for a, b in zip(launches(buckets, name), launches(manifest, "main"))]
    print(f"{count} sequences in {name}: {'the unpadded bits' if not wrong else 'WRONG'}, "
          f"{sum(same)} of {len(same)} launches with the same kernel")
    exact.close()
print(f"no program for {9}: {whole.program_for_batch(9, 9)}; for 2 sequences of 5 tokens: {whole.program_for_batch(2, 5)}")
sys.exit(1 if wrong else 0)
