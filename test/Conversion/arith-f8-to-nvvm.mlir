// RUN: kvcache-opt %s --pass-pipeline='builtin.module(gpu.module(convert-arith-f8-to-nvvm{target=sm_90}))' | FileCheck %s --check-prefixes=CHECK,CVT
// RUN: kvcache-opt %s --pass-pipeline='builtin.module(gpu.module(convert-arith-f8-to-nvvm{target=sm_80}))' | FileCheck %s --check-prefixes=CHECK,INT
// Without a chip the code runs everywhere.
// RUN: kvcache-opt %s --pass-pipeline='builtin.module(gpu.module(convert-arith-f8-to-nvvm))' | FileCheck %s --check-prefixes=CHECK,INT
// The targets of the module decide; the oldest one counts, and on sm_89 the PTX version.
// RUN: kvcache-opt %s --pass-pipeline='builtin.module(nvvm-attach-target{chip=sm_89 features=+ptx81},gpu.module(convert-arith-f8-to-nvvm))' | FileCheck %s --check-prefixes=CHECK,CVT
// RUN: kvcache-opt %s --pass-pipeline='builtin.module(nvvm-attach-target{chip=sm_89},gpu.module(convert-arith-f8-to-nvvm))' | FileCheck %s --check-prefixes=CHECK,INT
// RUN: kvcache-opt %s --pass-pipeline='builtin.module(nvvm-attach-target{chip=sm_90},nvvm-attach-target{chip=sm_80},gpu.module(convert-arith-f8-to-nvvm))' | FileCheck %s --check-prefixes=CHECK,INT

gpu.module @kernels {
  // CHECK-LABEL: func.func @narrow
  // The first operand becomes the upper byte: the value is the second one.
  // CVT: %[[ZERO:.*]] = arith.constant 0.000000e+00 : f32
  // CVT: %[[PAIR:.*]] = nvvm.convert.f32x2.to.f8x2 %[[ZERO]], %{{.*}} {rnd = #nvvm.fp_rnd_mode<rn>, sat = #nvvm.sat_mode<satfinite>} : vector<2xi8>(f8E4M3FN)
  // CVT: %[[CODE:.*]] = llvm.extractelement %[[PAIR]]
  // INT-NOT: nvvm.convert
  // INT: arith.minui
  // CHECK: arith.bitcast %{{.*}} : i8 to f8E4M3FN
  // CHECK-NOT: arith.truncf %{{.*}} to f8E4M3FN
  func.func @narrow(%x: f32) -> f8E4M3FN {
    %0 = arith.truncf %x : f32 to f8E4M3FN
    return %0 : f8E4M3FN
  }

  // CHECK-LABEL: func.func @widen
  // CHECK: arith.bitcast %{{.*}} : f8E5M2 to i8
  // CVT: nvvm.convert.f8x2.to.f16x2 %{{.*}} : vector<2xi8>(f8E5M2) -> vector<2xf16>
  // INT-NOT: nvvm.convert
  // CHECK: arith.extf %{{.*}} : f16 to f64
  func.func @widen(%x: f8E5M2) -> f64 {
    %0 = arith.extf %x : f8E5M2 to f64
    return %0 : f64
  }

  // Three elements are two pairs; a matrix is a list of elements.
  // CHECK-LABEL: func.func @vectors
  // CVT: vector.shape_cast %{{.*}} : vector<1x3xf32> to vector<3xf32>
  // CVT-COUNT-2: nvvm.convert.f32x2.to.f8x2
  // CVT-NOT: nvvm.convert
  // INT: arith.minui %{{.*}} : vector<1x3xi32>
  // CHECK: arith.bitcast %{{.*}} : vector<1x3xi8> to vector<1x3xf8E4M3FN>
  func.func @vectors(%x: vector<1x3xf32>) -> vector<1x3xf8E4M3FN> {
    %0 = arith.truncf %x : vector<1x3xf32> to vector<1x3xf8E4M3FN>
    return %0 : vector<1x3xf8E4M3FN>
  }

  // Moving codes about is no arithmetic, and wide floats are upstream's.
  // CHECK-LABEL: func.func @untouched
  // CHECK-NEXT: arith.constant 1.000000e+00 : f8E4M3FN
  // CHECK-NEXT: arith.select
  // CHECK-NEXT: arith.extf %{{.*}} : f16 to f32
  // CHECK-NEXT: return
  func.func @untouched(%x: f8E4M3FN, %c: i1, %h: f16) -> (f8E4M3FN, f32) {
    %one = arith.constant 1.0 : f8E4M3FN
    %0 = arith.select %c, %x, %one : f8E4M3FN
    %1 = arith.extf %h : f16 to f32
    return %0, %1 : f8E4M3FN, f32
  }
}
