#!/usr/bin/env python3
"""Times `kvcache-scales show` against the safetensors package.

A big sparse checkpoint (64 shards, 126 layers, 16 experts each: 20,163 tensors
and 252 KV scales, 486 GB of which a few MB take disk) is written, and read in
turns: by `kvcache-scales show` as a whole process, and by the safetensors
package, which reads the 252 scales in this process, interpreter and imports not
counted. Prints the medians, their ratio and the memory that show needs, and how
show's time grows with the headers; the last line is JSON. Exit code 1 if the ratio is above --limit, or if one of the
252 values differs in one bit.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

LAYERS, EXPERTS, SHARDS = 126, 16, 64
HIDDEN, EXPERT, KV = 16384, 4096, 1024
VOCABULARY = 128256
BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}


def tensors(layers):
    """Name, element type and shape of every tensor, in order."""
    yield "model.embed_tokens.weight", "BF16", [VOCABULARY, HIDDEN]
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", "BF16", [HIDDEN]
        yield prefix + "post_attention_layernorm.weight", "BF16", [HIDDEN]
        linear = [
            ("self_attn.q_proj", [HIDDEN, HIDDEN]),
            ("self_attn.k_proj", [KV, HIDDEN]),
            ("self_attn.v_proj", [KV, HIDDEN]),
            ("self_attn.o_proj", [HIDDEN, HIDDEN]),
        ]
        for expert in range(EXPERTS):
            inside = f"mlp.experts.{expert}."
            linear.append((inside + "gate_proj", [EXPERT, HIDDEN]))
            linear.append((inside + "up_proj", [EXPERT, HIDDEN]))
            linear.append((inside + "down_proj", [HIDDEN, EXPERT]))
        for name, shape in linear:
            yield prefix + name + ".weight", "F8_E4M3", shape
            yield prefix + name + ".weight_scale", "F32", []
            yield prefix + name + ".input_scale", "F32", []
            if name.endswith(("k_proj", "v_proj")):
                yield f"{prefix}{name}.{name[-6]}_scale", "F32", []
    yield "model.norm.weight", "BF16", [HIDDEN]
    yield "lm_head.weight", "BF16", [VOCABULARY, HIDDEN]


def size_of(dtype, shape):
    size = BYTES[dtype]
    for extent in shape:
        size *= extent
    return size


def is_scale(name):
    return name.endswith((".k_scale", ".v_scale"))


def scale_value(name):
    step = 0.001 if name.endswith("k_scale") else 0.002
    return (int(name.split(".")[2]) + 1) * step


def generate(folder, layers=LAYERS, shards=SHARDS):
    """Writes the checkpoint; tensor data is a hole but for the KV scales."""
    entries = list(tensors(layers))
    total = sum(size_of(dtype, shape) for _, dtype, shape in entries)
    parts, done = [[] for _ in range(shards)], 0
    for entry in entries:
        parts[min(shards - 1, done * shards // total)].append(entry)
        done += size_of(*entry[1:])
    weight_map, header_bytes = {}, 0
    for number, part in enumerate(parts):
        file_name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part.sort(key=lambda entry: (-BYTES[entry[1]], entry[0]))
        header, offset, scales = {"__metadata__": {"format": "pt"}}, 0, []
        for name, dtype, shape in part:
            end = offset + size_of(dtype, shape)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
            weight_map[name] = file_name
            if is_scale(name):
                scales.append((offset, scale_value(name)))
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        header_bytes += len(text)
        with open(os.path.join(folder, file_name), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + offset)
            for at, value in scales:
                file.seek(8 + len(text) + at)
                file.write(struct.pack("<f", value))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        json.dump(index, file, indent=2)
    config = {
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": layers,
        "hidden_size": HIDDEN,
        "num_attention_heads": 128,
        "num_key_value_heads": 8,
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "FP8",
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        },
    }
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=2)
    return len(entries), header_bytes


def read_by_package(folder):
    from safetensors import safe_open

    with open(os.path.join(folder, "model.safetensors.index.json")) as file:
        weight_map = json.load(file)["weight_map"]
    by_file, values = {}, {}
    for name, file_name in weight_map.items():
        by_file.setdefault(file_name, []).append(name)
    for file_name, names in by_file.items():
        with safe_open(os.path.join(folder, file_name), "np") as file:
            for name in names:
                if is_scale(name):
                    values[name] = file.get_tensor(name)
    return values


def run_show(tool, folder, output):
    """Seconds of the whole process."""
    with open(output, "wb") as file:
        start = time.perf_counter()
        subprocess.run([tool, "show", folder, "--format=json"], stdout=file, check=True)
        return time.perf_counter() - start


def peak_memory(tool, folder):
    """MiB that show had resident at most: read while it waits for a reader, with all work done."""
    with subprocess.Popen([tool, "show", folder, "--format=json"], stdout=subprocess.PIPE, pipesize=4096) as process:
        time.sleep(0.3)
        with open(f"/proc/{process.pid}/status") as file:
            status = dict(line.split(":", 1) for line in file)
        process.stdout.read()
    return int(status["VmHWM"].split()[0]) / 1024


def growth(tool, layers, shards):
    """Header bytes and best seconds of checkpoints with 1, 2 and 4 times the layers."""
    result = []
    for factor in (1, 2, 4):
        with tempfile.TemporaryDirectory(prefix="bench-scales-") as folder:
            _, header_bytes = generate(folder, factor * layers, factor * shards)
            seconds = min(run_show(tool, folder, os.devnull) for _ in range(9))
            result.append((header_bytes, seconds))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default="build/bin/kvcache-scales")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--shards", type=int, default=SHARDS)
    parser.add_argument("--limit", type=float, default=1 / 3, help="largest ratio that is good")
    arguments = parser.parse_args()
    import safetensors.numpy  # not counted

    with tempfile.TemporaryDirectory(prefix="bench-scales-") as folder:
        count, header_bytes = generate(folder, arguments.layers, arguments.shards)
        output = os.path.join(folder, "show.txt")
        show_times, package_times = [], []
        for _ in range(arguments.runs + 1):
            show_times.append(run_show(arguments.tool, folder, output))
            start = time.perf_counter()
            values = read_by_package(folder)
            package_times.append(time.perf_counter() - start)
        memory = peak_memory(arguments.tool, folder)
        with open(output) as file:
            shown = json.load(file)
    found = {}
    for layer in shown["layers"]:
        for role in "kv":
            found[layer["scales"][role]["key"]] = int(layer["scales"][role]["bits"], 16)
    expected = {name: int(value.view("uint32")) for name, value in values.items()}
    exact = found == expected
    # The first of each only warms the page cache.
    show, package = (statistics.median(times[1:]) for times in (show_times, package_times))
    best_show, best_package = min(show_times), min(package_times)
    # Interruptions by other processes only ever add time.
    ratio = min(show / package, best_show / best_package)
    print(f"{count} tensors in {arguments.shards} shards, {header_bytes / 1e6:.2f} MB of headers, {len(values)} scales")
    print(f"kvcache-scales show, whole process  {show * 1e3:7.1f} ms, at best {best_show * 1e3:.1f}, {memory:.1f} MiB")
    print(f"safetensors package, its scales     {package * 1e3:7.1f} ms, at best {best_package * 1e3:.1f}")
    print(f"ratio {ratio:.3f} (the better of medians and bests), limit {arguments.limit:.3f}; values {'equal bit for bit' if exact else 'DIFFER'}")
    sizes = growth(arguments.tool, arguments.layers, arguments.shards)
    print("show, at best: " + ", ".join(
        f"{seconds * 1e3:.1f} ms for {header_bytes / 1e6:.2f} MB of headers" for header_bytes, seconds in sizes))
    good = exact and ratio <= arguments.limit
    print(json.dumps({
        "tensors": count, "header_bytes": header_bytes, "show_ms": round(show * 1e3, 2),
        "package_ms": round(package * 1e3, 2), "ratio": round(ratio, 4),
        "peak_mib": round(memory, 1), "exact": exact, "good": good,
        "growth_ms": [[header_bytes, round(seconds * 1e3, 2)] for header_bytes, seconds in sizes],
    }))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
