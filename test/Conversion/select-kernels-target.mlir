// RUN: not kvcache-opt %s --kvcache-select-kernels=target=gfx90a 2>&1 | FileCheck %s
// RUN: not kvcache-opt %s --kvcache-select-kernels=target=sm_75 2>&1 | FileCheck %s

// CHECK: error: target: expected one of sm_80, {{.*}}sm_90, {{.*}}, but found '{{gfx90a|sm_75}}'
module {
}
