// RUN: kvcache-opt %s -allow-unregistered-dialect -pass-pipeline="builtin.module(kvcache-import{page-size=64 kv-layout=packed max-tokens=8 max-sequences=2 max-pages-per-sequence=4 num-pages=9})" | FileCheck %s
// RUN: not kvcache-opt %s -allow-unregistered-dialect -kvcache-import=page-size=12 2>&1 | FileCheck %s --check-prefix=PAGE
// RUN: not kvcache-opt %s -allow-unregistered-dialect -kvcache-import=kv-layout=dhn 2>&1 | FileCheck %s --check-prefix=LAYOUT
// RUN: not kvcache-opt %s -allow-unregistered-dialect -kvcache-import=kv-layout=strides:2592,160 2>&1 | FileCheck %s --check-prefix=TWO
// RUN: not kvcache-opt %s -allow-unregistered-dialect -kvcache-import=kv-layout=strides:2592,160,x 2>&1 | FileCheck %s --check-prefix=WORD
// RUN: not kvcache-opt %s -allow-unregistered-dialect -kvcache-import=kv-layout=nhd:1 2>&1 | FileCheck %s --check-prefix=MORE
// RUN: kvcache-opt %s -allow-unregistered-dialect -kvcache-import=kv-layout=strides:2592,160,80 | FileCheck %s --check-prefix=STRIDES
// RUN: not kvcache-opt %s -allow-unregistered-dialect -kvcache-import=num-pages=-1 2>&1 | FileCheck %s --check-prefix=PAGES

// CHECK: kvcache.cache_group @full page_size 64 {max_pages_per_sequence = 4 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 9 : i64}
// CHECK: kvcache.cache @layer0 {{.*}} layout packed
// PAGE: error: option page-size must be a positive power of two, but is 12
// LAYOUT: error: option kv-layout must be nhd, hnd, packed or strides:PAGE,TOKEN,HEAD (in elements), but is 'dhn'
// TWO: error: option kv-layout must be {{.*}}, but is 'strides:2592,160'
// WORD: error: option kv-layout must be {{.*}}, but is 'strides:2592,160,x'
// MORE: error: option kv-layout must be {{.*}}, but is 'nhd:1'
// STRIDES: kvcache.cache @layer0 {{.*}} layout strides [2592, 160, 80]
// PAGES: error: option num-pages must not be negative, but is -1
func.func @main(%k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>) {
  %0 = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "layers.0.attn", operand_names = ["key", "value"]} : (tensor<4x2x64xbf16>, tensor<4x2x64xbf16>) -> tensor<0xbf16>
  return
}
