"""The steps of gpu-check.sh, which says what they are."""
import argparse
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Seconds after which nothing new is started, of 480.
LAST_START = 400
MOST_BYTES = 60_000_000


def variants(small):
    """name: graph options, and page, layout, sequences, pages a sequence, new tokens of a sequence, window, soft cap."""
    found = {}

    def add(name, q, kv, d, page=16, layout="nhd", sequences=2, pages=6, tokens=1, window=0, soft_cap=0, **options):
        found[name] = (dict(q=q, kv=kv, d=d, **options), page, layout, sequences, pages, tokens, window, soft_cap)

    add("decode", 8, 1, 128, pages=8)
    add("prefill", 8, 2, 64, sequences=1, pages=4, tokens=48)
    add("d80", 8, 2, 80)
    if small:
        return found
    for d in (64, 96, 112, 192, 256):
        add(f"d{d}", 8, 2, d)
    for group, page, pages in ((1, 32, 6), (3, 16, 6), (5, 16, 40), (12, 16, 33), (16, 128, 3), (64, 16, 5), (128, 16, 3)):
        add(f"group{group}", group, 1, 64, page=page, pages=pages)
    for page in (1, 2, 8, 64, 128):
        add(f"page{page}", 8, 2, 128, page=page, pages=max(2, 96 // page))
    add("hnd", 16, 2, 128, page=64, layout="hnd", sequences=3)
    add("packed", 8, 2, 64, layout="packed", sequences=4)
    for cache, query in (("f8E5M2", "bf16"), ("f8E4M3FN", "f16"), ("f8E4M3FN", "f32"), ("f8E5M2", "f16"), ("f16", "f16"),
                         ("bf16", "bf16")):
        add(f"{cache}_{query}", 8, 2, 128, cache=cache, query=query)
    add("window", 8, 2, 128, pages=12, window=33)
    add("soft_cap", 8, 2, 128, soft_cap=30)
    add("window_soft_cap", 16, 4, 64, pages=12, window=17, soft_cap=50, layout="hnd")
    add("per_head", 8, 4, 64, per_head=True)
    add("lse", 8, 2, 128, lse=True)
    add("splits", 8, 1, 128, sequences=1, pages=300)
    add("rows", 8, 2, 64, tokens=4)
    add("prefill_d128", 32, 8, 128, sequences=2, pages=8, tokens=64)
    add("prefill_window", 8, 2, 64, sequences=2, pages=10, tokens=80, window=40)
    add("prefill_soft_cap", 8, 1, 128, sequences=2, pages=6, tokens=48, soft_cap=30, layout="packed")
    add("prefill_per_head", 8, 4, 64, sequences=2, pages=6, tokens=48, per_head=True)
    add("prefill_e5m2_f16", 8, 2, 128, sequences=2, pages=6, tokens=48, cache="f8E5M2", query="f16")
    return found


def pack(build, kit, small):
    sys.path.insert(0, HERE)
    from bench_shapes import SHAPES, compile_bundle, graph
    shutil.rmtree(kit, ignore_errors=True)
    for folder in ("bin", "lib", "bundles", "bench"):
        os.makedirs(os.path.join(kit, folder))
    for tool in ("kvcache-run", "kvcache-bench"):
        path = os.path.join(build, "bin", tool)
        shutil.copy(path, os.path.join(kit, "bin"))
        # Libraries that a machine with a card need not have.
        for line in subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout.split("\n"):
            words = line.split()
            if len(words) > 2 and words[0].startswith(("libsimdjson", "libmd.so")):
                shutil.copy(words[2], os.path.join(kit, "lib"))
    shutil.copy(os.path.join(build, "lib", "libkvcache_ptx.so"), os.path.join(kit, "lib"))
    for file in ("gpu-check.sh", "gpu_check.py", "ptx_conformance.py"):
        shutil.copy(os.path.join(HERE, file), kit)
    compiler = os.environ.get("KVCACHE_COMPILE", os.path.join(build, "bin", "kvcache-compile"))
    for name, (options, page, layout, sequences, pages, tokens, window, soft_cap) in variants(small).items():
        compile_bundle(compiler, os.path.join(kit, "bundles"), name, graph(**options), page, layout, sequences, pages, tokens,
                       "sm_80,sm_90", window, soft_cap)
    for name, (q, kv, d, page, sequences, lengths, tokens) in SHAPES.items():
        if name.startswith("small") == small:
            compile_bundle(compiler, os.path.join(kit, "bench"), name, graph(q, kv, d), page, "nhd", sequences,
                           max(lengths) // page, tokens, "sm_90")
    size = sum(os.path.getsize(os.path.join(folder, file)) for folder, _, files in os.walk(kit) for file in files)
    print(f"{kit}: {size / 1e6:.1f} MB, {len(os.listdir(os.path.join(kit, 'bundles')))} bundles to check, "
          f"{len(os.listdir(os.path.join(kit, 'bench')))} to measure")
    if size >= MOST_BYTES:
        sys.exit(f"gpu-check: expected less than {MOST_BYTES // 1000000} MB")


def tensors(path):
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    return {name: data[slice(*entry["data_offsets"])] for name, entry in header.items() if name != "__metadata__"}


class Check:
    def __init__(self, device, driver, out):
        self.device, self.out, self.start = device, out, time.time()
        self.capability = 999  # of the card, once it is known
        self.driver = [f"--driver={driver}"] if driver else []
        self.environment = dict(os.environ)
        self.environment["LD_LIBRARY_PATH"] = ":".join(filter(None, [os.path.join(HERE, "lib"),
                                                                     os.environ.get("LD_LIBRARY_PATH")]))

    def late(self):
        return time.time() - self.start > LAST_START

    def run(self, command, log, seconds):
        """Standard output, and whether it ended well; what it said on the error stream is in the log."""
        with open(os.path.join(self.out, log), "a") as errors:
            try:
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=self.environment,
                                      timeout=seconds)
                return done.stdout, done.returncode == 0
            except subprocess.TimeoutExpired:
                errors.write(f"gpu-check: stopped after {seconds} seconds\n")
                return "", False

    def conformance(self):
        report = os.path.join(self.out, "conformance.json")
        files = sorted(glob.glob(os.path.join(HERE, "bundles", "*.kvb", "code", "*.ptx")))
        text, good = self.run([sys.executable, "-B", os.path.join(HERE, "ptx_conformance.py"), *files, "--machine",
                               os.path.join(HERE, "lib", "libkvcache_ptx.so"), f"--device={self.device}",
                               *self.driver, f"--json={report}"], "conformance.log", 120)
        if not os.path.exists(report):
            return {"good": False, "text": open(os.path.join(self.out, "conformance.log")).read()[-500:]}
        result = json.load(open(report))
        self.capability = result["capability"] or 999
        opcodes = result["opcodes"].values()
        return {"good": good, "text": text, "opcodes": len(opcodes), "kernels": sum(o["kernels"] for o in opcodes),
                "results": sum(o["results"] for o in opcodes), "close": sum(1 for o in opcodes if o["close"]),
                "different": sorted(n for n, o in result["opcodes"].items() if o["different"] or o["known_wrong"]),
                "known": sum(1 for o in opcodes if o["known"])}

    def variant(self, bundle, chip):
        """One bundle's code for one chip: double precision with poison, replays, and the machine's codes."""
        name = os.path.basename(bundle)[:-4] + "." + chip
        manifest = json.load(open(os.path.join(bundle, "manifest.json")))
        sizes, page = manifest["capacities"], manifest["layers"][0]["page_size"]
        tokens, full = sizes["max_tokens"] // sizes["max_sequences"], sizes["max_pages_per_sequence"] * page
        # The launches are frozen at the first lengths; then one token, a page and
        # one more, capacity, empty places, and back.
        zeros = "+0" * (sizes["max_sequences"] - 1)
        lengths = f"{min(8, full)},1,{min(page + 1, full)},{full},0,{full}{zeros},{min(8, full)}"
        outputs = [os.path.join(self.out, f"{name}.{where}.safetensors") for where in ("device", "machine")]
        command = [os.path.join(HERE, "bin", "kvcache-run"), bundle, f"--target={chip}", f"--lengths={lengths}",
                   f"--new-tokens={tokens}", "--poison", "--json", "--quiet"]
        text, good = self.run([*command, f"--device={self.device}", *self.driver, "--replay=2", "--verify",
                               f"--outputs={outputs[0]}"], name + ".log", 60)
        try:
            result = json.loads(text)
        except ValueError:
            result = {"verified": False, "errors": ["no result; see " + name + ".log"]}
        row = {"variant": name, "verified": bool(good and result["verified"]), "replays": result.get("replays", 0),
               "error": max([layer["max_error_over_tolerance"] for layer in result.get("layers", [])] or [0]),
               "errors": result.get("errors", [])[:3]}
        if self.device != "sim" and row["verified"]:
            _, good = self.run([*command, "--checks=none", f"--outputs={outputs[1]}"], name + ".log", 60)
            card, machine = tensors(outputs[0]), tensors(outputs[1]) if good else {}
            row["codes_equal"] = good and all(machine[k] == card[k] for k in card if k.endswith("_cache"))
            same = [machine.get(k) == card[k] for k in card if k.endswith(".output")]
            row["outputs_equal"] = sum(same) / max(1, len(same))
            row["verified"] &= row["codes_equal"]
        for path in outputs:
            if os.path.exists(path):
                os.remove(path)
        return row

    def sanitize(self, bundles):
        if self.device == "sim" or not shutil.which("compute-sanitizer"):
            return {}
        found, runs = {}, [("memcheck", b) for b in bundles] + [(t, bundles[0]) for t in ("racecheck", "initcheck", "synccheck")]
        for tool, bundle in runs:
            name = f"{tool} {os.path.basename(bundle)[:-4]}"
            if self.late():
                found[name] = "no time"
                continue
            _, good = self.run(["compute-sanitizer", f"--tool={tool}", "--error-exitcode=9",
                                os.path.join(HERE, "bin", "kvcache-run"), bundle, f"--device={self.device}", *self.driver,
                                "--lengths=17,1", "--quiet"], f"sanitizer-{tool}.log", 30)
            found[name] = "clean" if good else f"see sanitizer-{tool}.log"
        return found

    def bench(self):
        report, lengths = os.path.join(self.out, "bench.json"), os.environ.get("GPU_CHECK_LENGTHS")
        text, good = self.run([os.path.join(HERE, "bin", "kvcache-bench"),
                               *sorted(glob.glob(os.path.join(HERE, "bench", "*.kvb"))), f"--device={self.device}", *self.driver,
                               f"--json={report}", f"--svg={os.path.join(self.out, 'bench.svg')}",
                               *([f"--lengths={lengths}"] if lengths else [])], "bench.log", 75)
        return text, json.load(open(report)) if good else {}


def run(device, driver, out):
    os.makedirs(out, exist_ok=True)
    for file in glob.glob(os.path.join(out, "*.json")) + glob.glob(os.path.join(out, "*.log")):
        os.remove(file)
    check = Check(device, driver, out)
    conformance = check.conformance()
    bundles = sorted(glob.glob(os.path.join(HERE, "bundles", "*.kvb")))
    # Measured before the sanitizer, which is slow and the first to be left out.
    bench_text, bench = check.bench()
    rows, left_out = [], []
    for bundle in bundles:
        for target in json.load(open(os.path.join(bundle, "manifest.json")))["targets"]:
            if int(target["chip"].strip("sm_")) > check.capability:
                continue
            if check.late():
                left_out.append(f"{os.path.basename(bundle)[:-4]}.{target['chip']}")
            else:
                rows.append(check.variant(bundle, target["chip"]))
    sanitizer = check.sanitize([b for b in bundles if os.path.basename(b) in ("decode.kvb", "prefill.kvb", "splits.kvb")])
    good = conformance["good"] and bool(bench) and not left_out and all(row["verified"] for row in rows) and \
        all(result == "clean" for result in sanitizer.values())

    print(conformance["text"], end="")
    for row in rows:
        codes = "" if "codes_equal" not in row else f"  codes {'equal' if row['codes_equal'] else 'DIFFER'}"
        print(f"{row['variant']:28} {'verified' if row['verified'] else 'WRONG':9} {row['replays']:3} replays  "
              f"error {row['error']:.3f} of tolerance{codes}")
        for error in row["errors"]:
            print("  " + error)
    for name, result in sanitizer.items():
        print(f"compute-sanitizer {name}: {result}")
    if left_out:
        print(f"no time for {', '.join(left_out)}")
    print(bench_text if bench else open(os.path.join(out, "bench.log")).read(), end="")
    conformance.pop("text")
    print(json.dumps({"good": good, "device": device, "seconds": round(time.time() - check.start), "conformance": conformance,
                      "variants": rows, "left_out": left_out, "sanitizer": sanitizer, "bench": bench}))
    sys.exit(0 if good else 1)


def main():
    parser = argparse.ArgumentParser(prog="gpu-check.sh")
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("build")
    packing.add_argument("kit")
    packing.add_argument("size", nargs="?", choices=["full", "small"], default="full")
    running = commands.add_parser("run")
    running.add_argument("--device", default="cuda")
    running.add_argument("--driver")
    running.add_argument("--out", default="gpu-check")
    options = parser.parse_args()
    if options.command == "pack":
        pack(os.path.abspath(options.build), os.path.abspath(options.kit), options.size == "small")
    elif options.device == "sim" or options.device.split(":")[0] == "cuda":
        run(options.device, options.driver, os.path.abspath(options.out))
    else:
        parser.error(f"--device: expected sim, cuda or cuda:N, found \"{options.device}\"")


if __name__ == "__main__":
    main()
