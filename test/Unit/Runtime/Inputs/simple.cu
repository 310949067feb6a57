//===- simple.cu - Plain kernels with the arguments of the real ones ------===//
//
// One thread computes one output element, so that nothing is shared with the
// kernels that bundles ship but the argument list. simple.ptx is made from it:
//
//   clang++-22 -x cuda --cuda-device-only --cuda-gpu-arch=sm_90 -nocudainc \
//     -nocudalib -std=c++17 -O2 -S simple.cu -o simple.ptx
//
// Shapes: bf16 activations, e4m3 cache, 4 query heads, 2 KV heads, head dim 64,
// pages of 16 tokens. K and V of a page lie side by side in one memory (packed)
// when the V pointer is within a page of the K pointer, else apart.
//
//===----------------------------------------------------------------------===//

#define GLOBAL extern "C" __attribute__((global, launch_bounds(128)))
#define DEVICE static __attribute__((device, always_inline))

constexpr int queryHeads = 4, kvHeads = 2, headDim = 64, pageSize = 16;
constexpr int tokenStride = kvHeads * headDim;

DEVICE float fromBF16(unsigned short code) {
  return __builtin_bit_cast(float, unsigned(code) << 16);
}

DEVICE unsigned short toBF16(float value) {
  unsigned short code;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(code) : "f"(value));
  return code;
}

DEVICE float fromE4M3(unsigned char code) {
  unsigned pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)code));
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)pair));
  return value;
}

DEVICE unsigned char toE4M3(float value) {
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
      : "=h"(pair)
      : "f"(0.0f), "f"(value));
  return (unsigned char)pair;
}

DEVICE float exp2Approximate(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE long long pageStride(const unsigned char *kPages,
                            const unsigned char *vPages) {
  constexpr int page = pageSize * tokenStride;
  bool packed = vPages > kPages && vPages - kPages < 2 * page;
  return packed ? 2 * page : page;
}

// grid (max_tokens, 1, 1), block 128 = kv_heads * head_dim threads.
GLOBAL void simple_write(const unsigned short *k, const unsigned short *v,
                         unsigned char *kPages, unsigned char *vPages,
                         const long long *slots, float kScale, float vScale,
                         int maxTokens, long long numSlots) {
  int row = __nvvm_read_ptx_sreg_ctaid_x(),
      element = __nvvm_read_ptx_sreg_tid_x();
  long long slot = slots[row];
  if (row >= maxTokens || slot < 0 || slot >= numSlots)
    return;
  long long stride = pageStride(kPages, vPages);
  long long place =
      slot / pageSize * stride + slot % pageSize * tokenStride + element;
  kPages[place] = toE4M3(fromBF16(k[row * tokenStride + element]) / kScale);
  vPages[place] = toE4M3(fromBF16(v[row * tokenStride + element]) / vScale);
}

// grid (query_heads, max_tokens, 1), block 128; threads 0..63 own a dim each.
GLOBAL void simple_attention(const unsigned short *q,
                             const unsigned char *kPages,
                             const unsigned char *vPages, const int *table,
                             const int *lengths, const int *queryStart,
                             unsigned short *out, float *lse, float *partials,
                             unsigned *counters, float scoreScale,
                             float outputScale, int maxTokens, int maxSequences,
                             int maxPagesPerSequence) {
  int head = __nvvm_read_ptx_sreg_ctaid_x(),
      row = __nvvm_read_ptx_sreg_ctaid_y();
  int dim = __nvvm_read_ptx_sreg_tid_x();
  if (dim >= headDim || row >= queryStart[maxSequences])
    return;
  int sequence = 0;
  while (row >= queryStart[sequence + 1])
    ++sequence;
  int visible = lengths[sequence] -
                (queryStart[sequence + 1] - queryStart[sequence]) +
                (row - queryStart[sequence]) + 1;
  long long stride = pageStride(kPages, vPages);
  int kvHead = head / (queryHeads / kvHeads);
  float reference = -__builtin_inff(), sum = 0, value = 0;
  for (int t = 0; t < visible; ++t) {
    long long place =
        table[sequence * maxPagesPerSequence + t / pageSize] * stride +
        t % pageSize * tokenStride + kvHead * headDim;
    float score = 0;
    for (int d = 0; d < headDim; ++d)
      score += fromBF16(q[(row * queryHeads + head) * headDim + d]) *
               fromE4M3(kPages[place + d]);
    score *= scoreScale;
    float largest = score > reference ? score : reference;
    float keep = exp2Approximate(reference - largest);
    float weight = exp2Approximate(score - largest);
    sum = sum * keep + weight;
    value = value * keep + weight * fromE4M3(vPages[place + dim]);
    reference = largest;
  }
  out[(row * queryHeads + head) * headDim + dim] =
      toBF16(visible > 0 ? value / sum * outputScale : 0.0f);
}
