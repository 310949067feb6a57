"""Runs the commands on checkpoints with damaged files.

usage: damaged.py TOOL INPUTS SCRATCH [ROUNDS [SEED]]
"""

import os
import random
import shutil
import subprocess
import sys

tool, inputs, scratch = sys.argv[1:4]
rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 120
generator = random.Random(int(sys.argv[5]) if len(sys.argv) > 5 else 7)

CHECKPOINTS = ["modelopt_fp8", "sharded_modelopt", "compressed_tensors_attn_head", "quark_fp8", "mla_deepseek"]
TOKENS = [b"null", b"-1", b"1e999", b"[]", b"{}", b'""', b"18446744073709551616", b"true", b"\x00", b"\xff\xfe", b"NaN"]


def damage(data):
    """Bytes changed, cut off, repeated, or a value of another kind put in."""
    data = bytearray(data)
    # Most of the interest is in headers, which come first.
    end = max(1, min(len(data), 2500))
    for _ in range(generator.randint(1, 4)):
        at = generator.randrange(end)
        kind = generator.randrange(5)
        if kind == 0:
            data[at:at + 1] = bytes([generator.randrange(256)])
        elif kind == 1:
            del data[at:at + generator.randint(1, 40)]
        elif kind == 2:
            data[at:at] = data[at:at + generator.randint(1, 60)]
        elif kind == 3:
            colon = data.find(b":", at)
            comma = data.find(b",", colon)
            if 0 <= colon < comma:
                data[colon + 1:comma] = generator.choice(TOKENS)
        else:
            data = data[:at]
        end = max(1, min(len(data), end))
        if not data:
            break
    return bytes(data)


def run(*arguments):
    result = subprocess.run([tool, *arguments], capture_output=True, timeout=60)
    if result.returncode not in (0, 1, 2):
        sys.exit(f"{arguments}: exit code {result.returncode}\n{result.stderr.decode(errors='replace')}")
    if result.returncode == 1 and not (result.stderr or b"error" in result.stdout):
        sys.exit(f"{arguments}: failed without a word")
    return result.returncode


failures = 0
for number in range(rounds):
    folder = os.path.join(scratch, "checkpoint")
    shutil.rmtree(folder, ignore_errors=True)
    source = os.path.join(inputs, "checkpoints", generator.choice(CHECKPOINTS))
    shutil.copytree(source, folder)
    victim = os.path.join(folder, generator.choice(sorted(os.listdir(folder))))
    with open(victim, "rb") as file:
        data = file.read()
    os.remove(victim)
    with open(victim, "wb") as file:
        file.write(damage(data))
    overlay = os.path.join(inputs, "checkpoints/modelopt_fp8/model.safetensors")
    command = number % 4
    if command == 0:
        failures += run("show", folder, "--kv-cache-dtype=fp8", "--format=html") == 1
    elif command == 1:
        failures += run("show", overlay, "--kv-cache-dtype=fp8", f"--scale-overlay={victim}") == 1
    elif command == 2:
        steps = os.path.join(inputs, "golden/llama/modelopt_fp8/step1.safetensors")
        failures += run("check", folder, "--scale-policy=compatible", f"--activations={steps}") == 1
    else:
        steps = os.path.join(scratch, "steps.safetensors")
        with open(os.path.join(inputs, "golden/llama/modelopt_fp8/step0.safetensors"), "rb") as file:
            data = file.read()
        with open(steps, "wb") as file:
            file.write(damage(data))
        failures += run("calibrate", steps, "-o", os.path.join(scratch, "out.safetensors"), "--quiet") == 1
if failures < rounds // 4:
    sys.exit(f"only {failures} of {rounds} were noticed: the damage does too little")
