# What `cmake --install` gives to other projects: headers, libraries and
# KVCacheConfig.cmake, in the component Development.

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/KVCache)

# Which libraries, and in which export set: what needs no LLVM, and the compiler.
set(runtime_libraries
  KVCacheSupport KVCacheCheckpoint KVCacheBundle KVCachePTX KVCacheRuntime)
set(compiler_libraries
  KVCacheIR KVCacheImport KVCacheTorchExport KVCacheTransforms KVCacheConversion KVCachePipelines
  KVCacheCAPI)

foreach(set IN ITEMS runtime compiler)
  set(installed)
  foreach(library ${${set}_libraries})
    if(NOT TARGET ${library})
      continue()
    endif()
    list(APPEND installed ${library})
    # Paths of the build tree and of MLIR stay out of the installed package.
    set(include_dirs
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
      $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    if(set STREQUAL compiler)
      foreach(folder ${MLIR_INCLUDE_DIRS} ${LLVM_INCLUDE_DIRS})
        list(APPEND include_dirs $<BUILD_INTERFACE:${folder}>)
      endforeach()
      set_target_properties(${library} PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "")
    endif()
    set_target_properties(${library} PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${include_dirs}"
      INTERFACE_COMPILE_FEATURES cxx_std_17)
  endforeach()
  # In LLVM's tree the libraries link targets of that tree, which no package of
  # ours could name.
  if(installed AND NOT KVCACHE_IN_LLVM_TREE)
    install(TARGETS ${installed} EXPORT KVCache-${set}
      ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT Development)
    install(EXPORT KVCache-${set} FILE KVCache-${set}-targets.cmake
      DESTINATION ${package_dir} COMPONENT Development)
    export(EXPORT KVCache-${set}
      FILE ${PROJECT_BINARY_DIR}/lib/cmake/KVCache/KVCache-${set}-targets.cmake)
  endif()
endforeach()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kvcache ${PROJECT_SOURCE_DIR}/include/kvcache-c
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT Development
  FILES_MATCHING PATTERN "*.h" PATTERN "*.td")
if(KVCACHE_ENABLE_MLIR)
  install(DIRECTORY ${PROJECT_BINARY_DIR}/include/kvcache
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT Development
    FILES_MATCHING PATTERN "*.inc")
  install(FILES ${PROJECT_BINARY_DIR}/lib/kvcache/kvcache_kernels.bc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/kvcache COMPONENT Development)
endif()

if(KVCACHE_IN_LLVM_TREE)
  return()
endif()
include(CMakePackageConfigHelpers)
set(KVCACHE_PACKAGE_MLIR_DIR "${MLIR_DIR}")
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/KVCacheConfig.cmake.in
  ${PROJECT_BINARY_DIR}/cmake/KVCacheConfig.cmake
  INSTALL_DESTINATION ${package_dir}
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/cmake/KVCacheConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/cmake/KVCacheConfig.cmake
  ${PROJECT_BINARY_DIR}/cmake/KVCacheConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/modules/FindLibZip.cmake
  DESTINATION ${package_dir} COMPONENT Development)
