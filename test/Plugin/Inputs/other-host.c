/* Loads a plugin as mlir-opt does, in a process that has no MLIR. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

struct Info {
  uint32_t api_version;
  const char *name, *version;
  void (*callback)(void);
};

#ifdef LLVM_MAJOR
/* What libLLVM of that version answers. */
void LLVMGetVersion(unsigned *major, unsigned *minor, unsigned *patch) {
  *major = LLVM_MAJOR;
  *minor = LLVM_MINOR;
  *patch = 0;
}
#endif

int main(int argc, char **argv) {
  const char *entries[] = {"mlirGetDialectPluginInfo", "mlirGetPassPluginInfo"};
  for (int i = 0; i < 2; ++i) {
    void *plugin = dlopen(argv[1], RTLD_LAZY | RTLD_GLOBAL);
    struct Info (*get)(void) =
        plugin ? (struct Info(*)(void))dlsym(plugin, entries[i]) : 0;
    if (!get) {
      fprintf(stderr, "%s\n", dlerror());
      return 2;
    }
    printf("API version %u of %s\n", get().api_version, get().name);
  }
  return 0;
}
