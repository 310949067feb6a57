"""Triton's own CompiledKernel reads what --emit=triton wrote: metadata.py FOLDER"""
import glob
import os
import re
import sys

from triton.compiler.compiler import CompiledKernel

folder = sys.argv[1]
count = 0
for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
    base = path[:-5]
    group = {os.path.basename(p): p for p in (path, base + ".ptx", base + ".cubin")}
    kernel = CompiledKernel(None, group, "0")
    name = os.path.basename(base)
    assert kernel.name == name, (kernel.name, name)
    assert kernel.metadata.target.arch == 90 and kernel.metadata.target.backend == "cuda"
    assert kernel.metadata.num_warps == 4 and kernel.metadata.num_ctas == 1
    assert kernel.packed_metadata[:3] == (4, 1, kernel.metadata.shared), kernel.packed_metadata
    assert kernel.kernel[:4] == b"\x7fELF"
    ptx = kernel.asm["ptx"]
    assert re.findall(r"\.visible \.entry (\w+)", ptx) == [name]
    parameters = re.search(r"\.entry \w+\((.*?)\)", ptx, re.S).group(1).split(",")
    assert all("_scratch_" in p and ".u64" in p for p in parameters[-2:]), parameters[-2:]
    for field in ("global_scratch_size", "global_scratch_align", "profile_scratch_size", "profile_scratch_align",
                  "launch_cooperative_grid", "launch_pdl", "tensordesc_meta", "tmem_size"):
        getattr(kernel.metadata, field)
    count += 1
print(f"{count} kernels accepted by Triton")
