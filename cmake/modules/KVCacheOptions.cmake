# Compiler flags, and the one way in which libraries and unit tests are declared.

add_compile_options(-Wall -Wextra -Wno-unused-parameter)

# kvcache_library(NAME SOURCES... LINK LIBS...): an LLVM-free static library.
function(kvcache_library name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC ${ARG_LINK})
endfunction()

# kvcache_mlir_library(NAME SOURCES... DEPENDS TARGETS... LINK LIBS...): a
# static library on top of MLIR, without RTTI as MLIR itself is built.
function(kvcache_mlir_library name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_include_directories(${name} SYSTEM PUBLIC ${MLIR_INCLUDE_DIRS} ${LLVM_INCLUDE_DIRS})
  if(NOT LLVM_ENABLE_RTTI)
    target_compile_options(${name} PRIVATE -fno-rtti)
  endif()
  target_link_libraries(${name} PUBLIC ${ARG_LINK})
  if(KVCACHE_IN_LLVM_TREE)
    list(APPEND ARG_DEPENDS mlir-headers intrinsics_gen)
  endif()
  if(ARG_DEPENDS)
    add_dependencies(${name} ${ARG_DEPENDS})
  endif()
endfunction()

# kvcache_unit_test(NAME SOURCES... LINK LIBS...): a GoogleTest executable.
function(kvcache_unit_test name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${name} EXCLUDE_FROM_ALL ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gtest GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test/Unit)
  set_property(GLOBAL APPEND PROPERTY KVCACHE_UNIT_TESTS ${name})
endfunction()
