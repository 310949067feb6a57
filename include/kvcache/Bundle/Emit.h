//===- Emit.h - A bundle's code in other forms ------------------*- C++ -*-===//
//
// PTX and cubins by themselves, a C header with a bundle's facts, and the files
// that Triton's launcher and its ahead-of-time linker take:
//
//   {kernel}.json .ptx .cubin   one kernel, as Triton's cache holds it
//   {name}.{hash}_{suffix}.h .c one launch, with its grid and constants in it,
//                               as triton/tools/compile.py writes it and
//                               triton/tools/link.py takes it
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_BUNDLE_EMIT_H
#define KVCACHE_BUNDLE_EMIT_H

#include "kvcache/Bundle/Bundle.h"

#include <functional>

namespace kvcache {

/// A C header that names what a caller of kvcache-c/Runtime.h needs at compile
/// time: capacities, buffers by index with their bytes, segments by index, and
/// each layer's compatibility digest. `prefix` starts every name.
std::string emitHeader(const Manifest &manifest, const std::string &prefix);

/// One kernel of a PTX text as a module of its own: the text's directives and
/// module-scope variables, and that kernel, with `extraPointers` further 64-bit
/// parameters that it does not read. Fails when there is no such kernel.
Expected<std::string> extractKernel(const std::string &ptx,
                                    const std::string &kernel,
                                    unsigned extraPointers = 0);

/// What a release of Triton appends to a kernel's parameters: nothing before
/// 3.3, global scratch in 3.3 and 3.4, global and profile scratch from 3.5 on.
/// Fails for text that is no release.
Expected<unsigned> tritonScratchPointers(const std::string &release);

/// Makes a cubin of PTX for a chip.
using Assemble = std::function<Expected<std::string>(const std::string &chip,
                                                     const std::string &ptx)>;

/// The files of one target for Triton, by name. Without `assemble` there are no
/// cubins, and the C files hold PTX, which the driver takes in their place.
Expected<std::map<std::string, std::string>>
emitTriton(const Bundle &bundle, const Target &target,
           const std::string &release, const Assemble &assemble);

/// A kernel that Triton compiled, as a launch: `directory` holds {name}.json
/// and {name}.ptx as Triton's cache does, and mapping.json, which says what
/// each parameter gets:
///
///   {"arguments": ["query", "k_cache", {"i32": 16}, {"f32": 0.125}, "null"],
///    "grid": ["query_heads", "max_tokens", 1]}
///
/// Names are those of LayerBuffers (query, key, value, output, lse, k_cache,
/// v_cache, page_table, lengths, query_start, slot_mapping), "score_scale" and
/// "output_scale" (the constants of the launch that is replaced), "k_scale",
/// "v_scale", and "null", which also fills Triton's scratch parameters. Every
/// launch of `op` is replaced, on targets whose chip the kernel was made for;
/// their cubins are dropped.
Error useTritonKernel(Bundle &bundle, LaunchOp op,
                      const std::string &directory);

} // namespace kvcache

#endif // KVCACHE_BUNDLE_EMIT_H
