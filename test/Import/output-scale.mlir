// An attention that quantizes its output: codes, and a scale of their own, which
// is the input scale of the next layer.

// RUN: rm -rf %t && split-file %s %t && mkdir %t/checkpoint
// RUN: mkdir %t/kv
// RUN: %python %t/make.py %inputs/checkpoints/modelopt_fp8 %t/checkpoint k_proj.k v_proj.v o_proj.input
// RUN: %python %t/make.py %inputs/checkpoints/modelopt_fp8 %t/kv k_proj.k v_proj.v
// RUN: kvcache-opt %t/graph.mlir -allow-unregistered-dialect -kvcache-import -o %t/imported.mlir
// RUN: FileCheck %s --check-prefix=IMPORT <%t/imported.mlir
// RUN: kvcache-opt %t/imported.mlir -kvcache-resolve-cache-types=kv-cache-dtype=fp8 -kvcache-fold-checkpoint-scales=checkpoint=%t/checkpoint 2>&1 | FileCheck %s --check-prefix=FOLD
// RUN: kvcache-opt %t/imported.mlir -kvcache-resolve-cache-types=kv-cache-dtype=fp8 -kvcache-fold-checkpoint-scales 2>&1 | FileCheck %s --check-prefix=DEFAULT
// RUN: not kvcache-opt %t/imported.mlir -kvcache-resolve-cache-types=kv-cache-dtype=fp8 -kvcache-fold-checkpoint-scales="checkpoint=%t/kv require-calibrated" 2>&1 | FileCheck %s --check-prefix=CALIBRATED
// RUN: not kvcache-opt %t/plain.mlir -allow-unregistered-dialect -kvcache-import 2>&1 | FileCheck %s --check-prefix=PLAIN
// RUN: not kvcache-opt %t/missing.mlir -allow-unregistered-dialect -kvcache-import 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: not kvcache-opt %t/many.mlir -allow-unregistered-dialect -kvcache-import 2>&1 | FileCheck %s --check-prefix=MANY

// IMPORT: kvcache.scale_buffer @layer0.o : f32 dynamic
// IMPORT: kvcache.paged_attention {{.*}} {o_scale = @layer0.o} : tensor<4x4x64xbf16>, {{.*}} -> tensor<4x4x64xf8E4M3FN>
// FOLD: kvcache.scale_buffer @layer0.o : f32 = 3.750000e-02 from checkpoint "model.layers.0.self_attn.o_proj.input_scale"
// DEFAULT: warning: layer 'model.layers.0.self_attn.attn': no o scale for FP8 outputs (o_proj.input_scale); 1.0 is used
// DEFAULT: kvcache.scale_buffer @layer0.o : f32 = 1.000000e+00 from default
// CALIBRATED: error: layer 'model.layers.0.self_attn.attn': no o scale for FP8 outputs
// PLAIN: error: {{.*}}: an "output_scale" with an output of 'bf16' has no meaning; quantized are outputs of f8E4M3FN and f8E5M2
// MISSING: error: {{.*}}: an output of 'f8E4M3FN' needs an "output_scale"
// MANY: error: {{.*}}: "output_scale" must be one scale, but is 'tensor<4xf32>'

//--- make.py
import shutil, sys, os
import numpy as np
from safetensors.numpy import load_file, save_file
source, target, *names = sys.argv[1:]
shutil.copy(os.path.join(source, "config.json"), target)
save_file({f"model.layers.0.self_attn.{name}_scale": np.float32([0.0375]) for name in names}, os.path.join(target, "model.safetensors"))

//--- graph.mlir
func.func @main(%q: tensor<4x4x64xbf16>, %k: tensor<4x2x64xbf16>, %out: tensor<4x4x64xf8E4M3FN>, %s: tensor<1xf32>) -> tensor<4x4x64xf8E4M3FN> {
  %d = "vllm.unified_kv_cache_update"(%k, %k) {layer_name = "model.layers.0.self_attn.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  %o = "vllm.unified_attention_with_output"(%q, %k, %k, %out, %s, %d) {layer_name = "model.layers.0.self_attn.attn", operand_names = ["query", "key", "value", "output", "output_scale", "kv_cache_dummy_dep"]} : (tensor<4x4x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x4x64xf8E4M3FN>, tensor<1xf32>, tensor<0xbf16>) -> tensor<4x4x64xf8E4M3FN>
  return %o : tensor<4x4x64xf8E4M3FN>
}

//--- plain.mlir
func.func @main(%q: tensor<4x4x64xbf16>, %k: tensor<4x2x64xbf16>, %s: tensor<1xf32>) -> tensor<4x4x64xbf16> {
  "vllm.unified_kv_cache_update"(%k, %k) {layer_name = "l0", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> ()
  %o = "vllm.unified_attention_with_output"(%q, %k, %k, %q, %s) {layer_name = "l0", operand_names = ["query", "key", "value", "output", "output_scale"]} : (tensor<4x4x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x4x64xbf16>, tensor<1xf32>) -> tensor<4x4x64xbf16>
  return %o : tensor<4x4x64xbf16>
}

//--- missing.mlir
func.func @main(%q: tensor<4x4x64xbf16>, %k: tensor<4x2x64xbf16>, %out: tensor<4x4x64xf8E4M3FN>) -> tensor<4x4x64xf8E4M3FN> {
  "vllm.unified_kv_cache_update"(%k, %k) {layer_name = "l0", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> ()
  %o = "vllm.unified_attention_with_output"(%q, %k, %k, %out) {layer_name = "l0", operand_names = ["query", "key", "value", "output"]} : (tensor<4x4x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x4x64xf8E4M3FN>) -> tensor<4x4x64xf8E4M3FN>
  return %o : tensor<4x4x64xf8E4M3FN>
}

//--- many.mlir
func.func @main(%q: tensor<4x4x64xbf16>, %k: tensor<4x2x64xbf16>, %out: tensor<4x4x64xf8E4M3FN>, %s: tensor<4xf32>) -> tensor<4x4x64xf8E4M3FN> {
  "vllm.unified_kv_cache_update"(%k, %k) {layer_name = "l0", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> ()
  %o = "vllm.unified_attention_with_output"(%q, %k, %k, %out, %s) {layer_name = "l0", operand_names = ["query", "key", "value", "output", "output_scale"]} : (tensor<4x4x64xbf16>, tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, tensor<4x4x64xf8E4M3FN>, tensor<4xf32>) -> tensor<4x4x64xf8E4M3FN>
  return %o : tensor<4x4x64xf8E4M3FN>
}
