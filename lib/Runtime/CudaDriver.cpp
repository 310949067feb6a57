//===- CudaDriver.cpp - Opening the driver --------------------------------===//

#include "CudaDriver.h"

#include <dlfcn.h>
#include <map>
#include <mutex>

namespace kvcache::cuda {

namespace {

std::string versionText(int version) {
  return std::to_string(version / 1000) + "." +
         std::to_string(version % 1000 / 10);
}

Outcome resolve(void *handle, const std::string &name, Driver &driver) {
  std::string missing;
#define KVCACHE_CUDA_RESOLVE(symbol, parameters)                               \
  driver.symbol =                                                              \
      reinterpret_cast<decltype(driver.symbol)>(::dlsym(handle, #symbol));     \
  if (!driver.symbol && missing.empty())                                       \
    missing = #symbol;
  KVCACHE_CUDA_FUNCTIONS(KVCACHE_CUDA_RESOLVE)
  std::string required = missing;
  KVCACHE_CUDA_OPTIONAL_FUNCTIONS(KVCACHE_CUDA_RESOLVE)
#undef KVCACHE_CUDA_RESOLVE
  if (driver.cuDriverGetVersion &&
      driver.cuDriverGetVersion(&driver.version) == Success &&
      driver.version < oldestDriver)
    return {KVCACHE_DRIVER_TOO_OLD,
            name + ": expected a driver for CUDA " + versionText(oldestDriver) +
                " or newer, found CUDA " + versionText(driver.version)};
  if (!required.empty())
    return {KVCACHE_DRIVER_TOO_OLD, name + ": has no function " + required +
                                        ", which drivers have since CUDA " +
                                        versionText(oldestDriver)};
  return {};
}

} // namespace

Outcome Driver::open(const std::string &library, const Driver *&driver) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Driver>> opened;
  std::string name = library.empty() ? "libcuda.so.1" : library;
  std::lock_guard<std::mutex> lock(mutex);
  auto known = opened.find(name);
  if (known != opened.end()) {
    driver = known->second.get();
    return {};
  }
  void *handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return {KVCACHE_NO_DRIVER,
            std::string("the CUDA driver cannot be opened: ") + ::dlerror()};
  auto fresh = std::make_unique<Driver>();
  if (Outcome outcome = resolve(handle, name, *fresh)) {
    ::dlclose(handle);
    return outcome;
  }
  if (Result result = fresh->cuInit(0)) {
    Outcome outcome = fresh->failure(result, "cuInit");
    ::dlclose(handle);
    return outcome;
  }
  driver = fresh.get();
  opened.emplace(name, std::move(fresh));
  return {};
}

std::string Driver::describe(Result result) const {
  const char *name = nullptr, *text = nullptr;
  if (cuGetErrorName(result, &name) != Success || !name)
    name = "unknown error";
  if (cuGetErrorString(result, &text) != Success || !text)
    text = "the driver has no text for it";
  return std::string(name) + " (" + std::to_string(result) + "): " + text;
}

bool isSticky(Result result) {
  switch (result) {
  case ErrorDeinitialized:
  case ErrorEccUncorrectable:
  case ErrorIllegalAddress:
  case ErrorLaunchTimeout:
  case ErrorContextIsDestroyed:
  case ErrorAssert:
  case ErrorHardwareStackError:
  case ErrorIllegalInstruction:
  case ErrorMisalignedAddress:
  case ErrorInvalidAddressSpace:
  case ErrorInvalidPc:
  case ErrorLaunchFailed:
    return true;
  default:
    return false;
  }
}

static KvcacheStatus statusOf(Result result) {
  if (isSticky(result))
    return KVCACHE_DEVICE_LOST;
  if (result >= ErrorStreamCaptureUnsupported &&
      result <= ErrorStreamCaptureWrongThread)
    return KVCACHE_CAPTURE;
  switch (result) {
  case ErrorOutOfMemory:
    return KVCACHE_OUT_OF_MEMORY;
  case ErrorNoDevice:
  case ErrorSystemNotReady:
    return KVCACHE_NO_DRIVER;
  case ErrorSystemDriverMismatch:
    return KVCACHE_DRIVER_TOO_OLD;
  case ErrorInvalidImage:
  case ErrorNoBinaryForGpu:
  case ErrorInvalidPtx:
  case ErrorUnsupportedPtxVersion:
    return KVCACHE_NO_CODE;
  case ErrorInvalidContext:
  case ErrorInvalidDevice:
    return KVCACHE_INVALID_ARGUMENT;
  case ErrorLaunchOutOfResources:
    return KVCACHE_LAUNCH_FAILED;
  default:
    return KVCACHE_DRIVER_ERROR;
  }
}

Outcome Driver::failure(Result result, const std::string &what) const {
  return {statusOf(result), what + " failed: " + describe(result)};
}

} // namespace kvcache::cuda
