"""How lit runs the tests of kvcache."""

import os
import shutil
import subprocess

import lit.formats

config.name = "kvcache"
config.test_format = lit.formats.ShTest(execute_external=True)
config.suffixes = [".mlir", ".test", ".py"]
config.excludes = ["Inputs", "Unit", "CMakeLists.txt", "lit.cfg.py", "requirements.txt"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.path.join(config.kvcache_build, "test")

if config.mlir_enabled.upper() in ("ON", "1", "TRUE", "YES"):
    config.available_features.add("mlir")
else:
    # A build without MLIR has no compiler: what it does and what takes its bundles is left out.
    config.excludes += ["CAPI", "Conversion", "Docs", "Embedding", "Import", "Integration", "IR", "Kernels", "Passes", "Plugin",
                        "Runtime", "Transforms", "Triton", "completion", "kvcache-bench", "kvcache-compile",
                        "kvcache-lsp-server", "kvcache-reduce", "kvcache-run", "kvcache-translate"]
    lit_config.note("a build without MLIR: tests that need the compiler are left out")
    filecheck = shutil.which("FileCheck") or shutil.which("FileCheck-22")
    if not filecheck:
        lit_config.fatal("FileCheck of LLVM is not on PATH; on Debian it is in llvm-22-tools")
    config.llvm_tools = os.path.dirname(os.path.realpath(filecheck))
binaries = os.path.join(config.kvcache_build, "bin")
libraries = os.path.join(config.kvcache_build, "lib")
config.environment["PATH"] = os.pathsep.join([binaries, config.llvm_tools, os.environ["PATH"]])
config.environment["FILECHECK_OPTS"] = "-enable-var-scope"
config.environment["PYTHONDONTWRITEBYTECODE"] = "1"
for name in ("CUDA_HOME", "CUDA_PATH", "NVDISASM", "PTXAS"):
    if name in os.environ:
        config.environment[name] = os.environ[name]

config.substitutions += [
    ("%python", config.python),
    ("%ptx_lib", os.path.join(libraries, "libkvcache_ptx" + config.library_suffix)),
    ("%kernels_bc", os.path.join(libraries, "kvcache", "kvcache_kernels.bc")),
    ("%llvm_bin", config.llvm_tools),
    ("%plugin", os.path.join(libraries, "libKVCachePlugin" + config.module_suffix)),
    ("%inputs", os.path.join(config.test_source_root, "Inputs")),
    ("%cxx", config.cxx),
    ("%cc", config.cc),
    ("%mlir_include", config.mlir_include),
    ("%source", config.kvcache_source),
    ("%build", config.kvcache_build),
]


def python_has(module):
    return subprocess.run([config.python, "-c", f"import {module}"], capture_output=True).returncode == 0


if python_has("triton"):
    config.available_features.add("triton")
# Sweeps that `make check-full` runs.
if "slow" in lit_config.params:
    config.available_features.add("slow")
for tool in ("nvcc", "ptxas"):
    if shutil.which(tool):
        config.available_features.add(tool)
