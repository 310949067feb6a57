"""Compares what `kvcache-scales show` says of every configuration with
expected.json, which was read from the models themselves.

usage: configs.py TOOL CONFIGS SCRATCH
"""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
from safetensors.numpy import save_file

tool, configs, scratch = sys.argv[1:]
shutil.rmtree(scratch, ignore_errors=True)
os.makedirs(scratch)
save_file({"norm.weight": np.ones(1, np.float32)}, f"{scratch}/model.safetensors")
expected = json.load(open(f"{configs}/expected.json"))
problems, layers_seen = [], 0


def value(entry, key):
    found = entry.get(key)
    return found["value"] if isinstance(found, dict) else found


for name, want in expected.items():
    shutil.copyfile(f"{configs}/{name}/config.json", f"{scratch}/config.json")
    command = [tool, "show", scratch, "--kv-cache-dtype=fp8"]
    result = subprocess.run([*command, "--format=json"], capture_output=True, text=True)
    refused = [reason for reason in want["refuse"] if not reason.startswith("images only")]
    if result.returncode != (1 if refused else 0):
        problems.append(f"{name}: exit code {result.returncode}: {result.stderr}{result.stdout[-600:]}")
        continue
    report = json.loads(result.stdout)
    refusals = [d for d in report["diagnostics"] if ": not supported: " in d["message"]]
    if len(refusals) != len(refused):
        problems.append(f"{name}: refused for {refusals}, expected {refused}")
    if report["model_type"] != want["model_type"] or len(report["layers"]) != len(want["layers"]):
        problems.append(f"{name}: {report['model_type']} with {len(report['layers'])} layers")
        continue
    text = subprocess.run(command, capture_output=True, text=True).stdout
    for found, layer in zip(report["layers"], want["layers"]):
        layers_seen += 1
        where = f"{name}, layer {layer['index']}"
        owner = layer["kind"].removeprefix("kv-shared:") if layer["kind"].startswith("kv-shared:") else None
        if owner is not None:
            shared = report["layers"][int(owner)]["name"]
            if found["cache"].get("shared_with") != shared:
                problems.append(f"{where}: shares with {found['cache']}, expected {shared}")
        elif (found["cache"] is not None) != layer["kv_cache"]:
            problems.append(f"{where}: cache {found['cache']}, expected {layer['kv_cache']}")
        if found["cache"] is None:
            continue
        attention = found["attention"]
        pairs = {
            "softmax_scale": layer["softmax_scale"],
            "soft_cap": layer["softcap"],
            "window_left": layer["window_left"],
            "query_heads": layer["q_heads"],
            "kv_heads": layer["kv_heads"],
            "head_dim": layer["head_dim"],
            "value_head_dim": layer["v_head_dim"],
            "sinks": layer["sinks"],
            "alibi": layer["alibi"],
        }
        for key, number in pairs.items():
            if value(attention, key) != number:
                problems.append(f"{where}: {key} is {value(attention, key)}, expected {number}")
        line = f"layer {layer['index']}  {found['name']}"
        if line not in text:
            problems.append(f"{where}: the text has no '{line}'")
        if layer["window_left"] is not None and f"; window {layer['window_left'] + 1} (" not in text:
            problems.append(f"{where}: the text has no window of {layer['window_left'] + 1}")
if problems or layers_seen < 200:
    sys.exit("\n".join(problems[:20]) or f"only {layers_seen} layers")
