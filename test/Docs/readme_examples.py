"""Runs the README's first example and compares with its second; compares what
`make demo` printed with what the README shows."""

import re
import subprocess
import sys

from console_examples import matches

readme, checkpoint, demo = sys.argv[1:]
with open(readme) as file:
    text = file.read()
before, after = (re.search(rf"```mlir {name}\n(.*?)```", text, re.S)[1] for name in ("before", "after"))


def printed(source, *passes):
    result = subprocess.run(["kvcache-opt", "--allow-unregistered-dialect", *passes], input=source,
                            capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stderr)
    return result.stdout


got = printed(before, f"--kvcache-scale-pipeline=checkpoint={checkpoint}")
want = printed(after)
if got != want:
    sys.exit(f"the README says\n{want}\nbut the pipeline gives\n{got}")
# The text itself, not only what it parses to.
body = [line.strip() for line in got.strip().splitlines()[1:-1]]
shown = [line.strip() for line in after.splitlines()]
if body != shown:
    sys.exit("the README's text differs from the printed form:\n" + "\n".join(body))


def without_errors(lines):
    """Rounding errors change with the kernels, in their last places."""
    text = re.sub(r'"logits_max": [\d.]+', '"logits_max": #', "\n".join(lines))
    return re.sub(r"[\d.]+ +[\d.]+( +0 +0)$", r"#\1", text, flags=re.M).split("\n")


shown = re.search(r"^```\n(== .*?)^```", text, re.M | re.S)[1].splitlines()
with open(demo) as file:
    got = file.read().splitlines()
if not matches(without_errors(shown), without_errors(got)):
    sys.exit("the README shows\n" + "\n".join(shown) + "\nbut make demo prints\n" + "\n".join(got))
