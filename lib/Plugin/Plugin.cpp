//===- Plugin.cpp - kvcache in a stock mlir-opt ---------------------------===//
//
//   mlir-opt --load-dialect-plugin=libKVCachePlugin.so \
//            --load-pass-plugin=libKVCachePlugin.so \
//            --pass-pipeline='builtin.module(kvcache-import)' ...
//
// MLIR checks the version of its plugin interface, which is 1 since there are
// plugins, and not its own. A library that is linked with another MLIR would
// end in unresolved symbols, or bring a second MLIR into the process. This one
// needs no symbol of MLIR: it looks which MLIR is there, and says so, or opens
// libKVCachePluginPasses.so beside it.
//
//===----------------------------------------------------------------------===//

#include "llvm/Config/llvm-config.h"

// The infos are plain structs; nothing of LLVM is to be linked for them.
#define LLVM_DISABLE_ABI_BREAKING_CHECKS_ENFORCING 1
#include "mlir/Tools/Plugins/DialectPlugin.h"
#include "mlir/Tools/Plugins/PassPlugin.h"

#include <cstdio>
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

namespace {

void complain(const char *what) {
  fprintf(stderr, "kvcache plugin: error: %s\n", what);
}

/// Whether the MLIR of this process is the one that the passes are linked with.
bool fits() {
  // RTLD_NOLOAD finds what is there and opens nothing.
  if (void *present = dlopen(KVCACHE_MLIR_LIBRARY, RTLD_LAZY | RTLD_NOLOAD)) {
    dlclose(present);
    return true;
  }
  char text[512];
  unsigned major = 0, minor = 0, patch = 0;
  auto version = reinterpret_cast<void (*)(unsigned *, unsigned *, unsigned *)>(
      dlsym(RTLD_DEFAULT, "LLVMGetVersion"));
  if (version)
    version(&major, &minor, &patch);
  if (major == LLVM_VERSION_MAJOR && minor == LLVM_VERSION_MINOR)
    snprintf(text, sizeof(text),
             "this program does not use the shared " KVCACHE_MLIR_LIBRARY
             ", with which the plugin is linked, and a second MLIR beside its "
             "own cannot read its IR; link the program with the shared MLIR, "
             "or register kvcache in it with kvcache/InitAll.h");
  else if (version)
    snprintf(text, sizeof(text),
             "expected MLIR " LLVM_VERSION_STRING " (" KVCACHE_MLIR_LIBRARY
             "), found LLVM %u.%u.%u in this program; use the mlir-opt of "
             "LLVM %d.%d, or build kvcache with the -DMLIR_DIR of this one",
             major, minor, patch, LLVM_VERSION_MAJOR, LLVM_VERSION_MINOR);
  else
    snprintf(text, sizeof(text),
             "expected MLIR " LLVM_VERSION_STRING " (" KVCACHE_MLIR_LIBRARY
             ") in the program that loads the plugin, found none");
  complain(text);
  return false;
}

/// The library with the passes; null, after a message, when it cannot be used.
void *openPasses() {
  if (!fits())
    return nullptr;
  Dl_info self;
  char path[PATH_MAX];
  if (!dladdr(reinterpret_cast<void *>(&openPasses), &self) ||
      !realpath(self.dli_fname, path)) {
    complain("cannot find its own folder");
    return nullptr;
  }
  char *name = strrchr(path, '/') + 1;
  snprintf(name, sizeof(path) - (name - path), "%s", KVCACHE_PASSES_LIBRARY);
  void *passes = dlopen(path, RTLD_NOW);
  if (!passes)
    complain(dlerror());
  return passes;
}

void *getPasses() {
  static void *passes = openPasses();
  return passes;
}

/// What `entry` of the passes' library answers. Without it the info of no API
/// version, which MLIR refuses with the plugin's path.
template <typename Info> Info getInfo(const char *entry) {
  void *passes = getPasses();
  void *symbol = passes ? dlsym(passes, entry) : nullptr;
  if (!symbol)
    return {0, "kvcache", KVCACHE_VERSION, nullptr};
  return reinterpret_cast<Info (*)()>(symbol)();
}

} // namespace

extern "C" LLVM_ATTRIBUTE_WEAK mlir::DialectPluginLibraryInfo
mlirGetDialectPluginInfo() {
  return getInfo<mlir::DialectPluginLibraryInfo>("mlirGetDialectPluginInfo");
}

extern "C" LLVM_ATTRIBUTE_WEAK mlir::PassPluginLibraryInfo
mlirGetPassPluginInfo() {
  return getInfo<mlir::PassPluginLibraryInfo>("mlirGetPassPluginInfo");
}
