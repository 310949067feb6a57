#!/usr/bin/env bash
# Checks kernels and runtime on a card, with what was built elsewhere.
#
#   utils/gpu-check.sh pack BUILD KIT [small]    here: tools, libraries and
#                                                bundles into one folder
#   KIT/gpu-check.sh run [--device=cuda|sim] [--driver=FILE] [--out=DIR]
#                                                there: needs the driver, bash
#                                                and python3
#
# run checks each bundle against double precision, compares cache codes with
# those of the PTX machine bit for bit, replays frozen launches, runs
# compute-sanitizer where there is one, and measures. The last line is JSON.
# --device=sim is the dry run: the same steps on the PTX machine.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  sed -n '2,14p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//'
  exit 2
}

pack() {
  [ $# -ge 2 ] || usage
  local build=$1 kit=$2 size=${3:-full} source tool
  source=$(cd "$here/.." && pwd)
  rm -rf "$kit"
  mkdir -p "$kit/bin" "$kit/lib" "$kit/bundles" "$kit/bench"
  for tool in kvcache-run kvcache-bench; do
    cp "$build/bin/$tool" "$kit/bin/"
    # Libraries that a machine with a card need not have.
    ldd "$build/bin/$tool" | awk '/libsimdjson|libmd\.so/ {print $3}' |
      xargs -r -I{} cp -n {} "$kit/lib/" || true
  done
  cp "$here/gpu-check.sh" "$kit/"
  python3 -B - "$source" "$kit" "$size" <<'PYTHON' | while read -r name group q kv d page layout sequences pages; do
import os, sys
sys.path.insert(0, os.path.join(sys.argv[1], "utils"))
from bench_shapes import GRAPH, SHAPES
kit, size = sys.argv[2:]
variants = [("nhd_d128_g8_p16", "check", 8, 1, 128, 16, "nhd", 2, 8)]
if size == "full":
    variants += [("hnd_d128_g8_p64", "check", 16, 2, 128, 64, "hnd", 3, 6), ("packed_d64_g2_p16", "check", 4, 2, 64, 16, "packed", 4, 6),
                 ("nhd_d64_g1_p32", "check", 4, 4, 64, 32, "nhd", 2, 6), ("nhd_d128_g5_p16", "check", 5, 1, 128, 16, "nhd", 2, 40),
                 ("nhd_d128_g16_p128", "check", 32, 2, 128, 128, "nhd", 2, 3), ("hnd_d64_g12_p16", "check", 12, 1, 64, 16, "hnd", 2, 33),
                 ("packed_d128_g4_p64", "check", 8, 2, 128, 64, "packed", 2, 5)]
for name, (q, kv, d, page, sequences, lengths) in SHAPES.items():
    if (name == "small") == (size != "full"):
        variants.append((name, "bench", q, kv, d, page, "nhd", sequences, max(lengths) // page))
for name, group, q, kv, d, page, layout, sequences, pages in variants:
    with open(os.path.join(kit, name + ".mlir"), "w") as f:
        f.write(GRAPH.format(q=q, kv=kv, d=d, page=page, softmax=d**-0.5))
    print(name, group, q, kv, d, page, layout, sequences, pages)
PYTHON
    local folder=bundles
    [ "$group" = bench ] && folder=bench
    "${KVCACHE_COMPILE:-$build/bin/kvcache-compile}" "$kit/$name.mlir" --quiet --target=sm_80,sm_90 \
      --window=0 --soft-cap=0 "--page-size=$page" "--kv-layout=$layout" \
      "--max-tokens=$sequences" "--max-sequences=$sequences" "--max-pages-per-sequence=$pages" \
      "--num-pages=$((pages * sequences))" -o "$kit/$folder/$name.kvb" </dev/null
    rm "$kit/$name.mlir"
  done
  local bytes
  bytes=$(du -sb "$kit" | cut -f1)
  echo "$kit: $((bytes / 1000000)) MB, $(ls "$kit/bundles" | wc -l) bundles to check, $(ls "$kit/bench" | wc -l) to measure"
  [ "$bytes" -lt 60000000 ] || { echo "gpu-check: expected less than 60 MB" >&2; exit 1; }
}

run() {
  local device=cuda out=$PWD/gpu-check driver=()
  for argument in "$@"; do
    case $argument in
    --device=cuda | --device=cuda:* | --device=sim) device=${argument#*=} ;;
    --driver=*) driver=("$argument") ;;
    --out=*) out=${argument#*=} ;;
    *) echo "gpu-check: unknown option $argument" >&2; usage ;;
    esac
  done
  mkdir -p "$out"
  rm -f "$out"/*.json "$out"/*.log "$out"/*.safetensors
  export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  local failed=0 bundle name start lengths
  start=$(date +%s)
  for bundle in "$here"/bundles/*.kvb; do
    name=$(basename "$bundle" .kvb)
    # One token, a page and one more, empty places, capacity, and back.
    lengths=$(python3 - "$bundle" <<'PYTHON'
import json, sys
m = json.load(open(sys.argv[1] + "/manifest.json"))
page, full = m["layers"][0]["page_size"], m["capacities"]["max_pages_per_sequence"] * m["layers"][0]["page_size"]
print(f"1,{page + 1},{full},0,{full}+0,1")
PYTHON
    )
    "$here/bin/kvcache-run" "$bundle" "--device=$device" "${driver[@]}" "--lengths=$lengths" --replay=2 --verify \
      --json --quiet "--outputs=$out/$name.device.safetensors" >"$out/$name.json" 2>"$out/$name.log" || failed=1
    if [ "$device" != sim ]; then
      "$here/bin/kvcache-run" "$bundle" "--lengths=$lengths" --checks=none --json --quiet \
        "--outputs=$out/$name.machine.safetensors" >"$out/$name.machine-run" 2>>"$out/$name.log" || failed=1
    fi
  done
  local sanitizer=none
  if [ "$device" != sim ] && command -v compute-sanitizer >/dev/null; then
    sanitizer=clean
    for tool in memcheck racecheck initcheck synccheck; do
      bundle=$(ls -d "$here"/bundles/*.kvb | head -1)
      timeout 60 compute-sanitizer --tool=$tool --error-exitcode=9 "$here/bin/kvcache-run" "$bundle" \
        "--device=$device" --lengths=17,1 --quiet >"$out/sanitizer-$tool.log" 2>&1 || { sanitizer="$tool"; failed=1; }
    done
  fi
  "$here/bin/kvcache-bench" "$here"/bench/*.kvb "--device=$device" "${driver[@]}" "--json=$out/bench.json" \
    "--svg=$out/bench.svg" ${GPU_CHECK_LENGTHS:+--lengths=$GPU_CHECK_LENGTHS} >"$out/bench.txt" 2>"$out/bench.log" || failed=1
  python3 - "$out" "$device" "$sanitizer" "$failed" "$(($(date +%s) - start))" <<'PYTHON'
import glob, json, os, struct, sys
out, device, sanitizer, failed, seconds = sys.argv[1:]

def tensors(path):
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    return {k: data[v["data_offsets"][0]:v["data_offsets"][1]] for k, v in header.items() if k != "__metadata__"}

checks, good = [], failed == "0"
for path in sorted(glob.glob(os.path.join(out, "*.json"))):
    name = os.path.basename(path)[:-5]
    if name == "bench":
        continue
    try:
        result = json.load(open(path))
    except ValueError:
        result = {"verified": False, "errors": ["no result; see " + name + ".log"]}
    row = {"bundle": name, "verified": result["verified"], "replays": result.get("replays", 0),
           "max_error_over_tolerance": max([l["max_error_over_tolerance"] for l in result.get("layers", [])] or [0])}
    other = os.path.join(out, name + ".machine.safetensors")
    if os.path.exists(other) and os.path.exists(os.path.join(out, name + ".device.safetensors")):
        machine, card = tensors(other), tensors(os.path.join(out, name + ".device.safetensors"))
        caches = [k for k in machine if k.endswith("_cache")]
        row["codes_as_machine"] = all(machine[k] == card[k] for k in caches)
        outputs = [k for k in machine if k.endswith(".output")]
        row["outputs_as_machine"] = sum(machine[k] == card[k] for k in outputs) / max(1, len(outputs))
        good &= row["codes_as_machine"]
    row["errors"] = result.get("errors", [])[:3]
    good &= result["verified"]
    checks.append(row)
    print(f"{name:24} {'verified' if row['verified'] else 'WRONG':9} {row['replays']:4} replays  "
          f"error {row['max_error_over_tolerance']:.3f} of tolerance"
          + (f"  codes {'equal' if row['codes_as_machine'] else 'DIFFER'}" if "codes_as_machine" in row else ""))
    for error in row["errors"]:
        print("  " + error)
bench = {}
if os.path.exists(os.path.join(out, "bench.json")):
    bench = json.load(open(os.path.join(out, "bench.json")))
    print(open(os.path.join(out, "bench.txt")).read(), end="")
else:
    good = False
    print(open(os.path.join(out, "bench.log")).read(), end="")
print(json.dumps({"good": good, "device": device, "sanitizer": sanitizer, "seconds": int(seconds), "checks": checks,
                  "bench": bench}))
sys.exit(0 if good else 1)
PYTHON
}

case ${1:-} in
pack) shift && pack "$@" ;;
run) shift && run "$@" ;;
*) usage ;;
esac
