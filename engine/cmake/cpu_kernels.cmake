# The CPU kernels are compiled once per instruction set; device/cpu picks at run time.
# All three give the same bits: every sum has a fixed order and every fused multiply-add
# is written out. Without FMA instructions (baseline) double precision imitates it, slowly.
# Clang would warn where a loop marked as free of dependencies stays scalar (pow): not here.
file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/device/cpu/isa/*.c)
file(GLOB cpu_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/device/cpu/*.c)
add_library(rle_cpu OBJECT ${cpu_sources})
target_link_libraries(rle_cpu PRIVATE rle_flags)
# A slot is told its device; the CPU is one, and does not look. (Of the sources, so that it comes
# behind -Wextra: with clang the last word counts.)
set_source_files_properties(${cpu_sources} PROPERTIES COMPILE_OPTIONS -Wno-unused-parameter)
target_compile_options(rle_cpu PRIVATE $<$<CONFIG:Release>:-O3>
  $<$<C_COMPILER_ID:Clang>:-Wno-pass-failed>)
list(APPEND RLE_ENGINE_OBJECTS $<TARGET_OBJECTS:rle_cpu>)
if(kernel_sources)
  set(isas baseline)
  set(isa_flags_baseline "")
  set(isa_optimize_baseline -O3)
  set(isa_optimize_avx2 -O3)
  set(isa_optimize_avx512 -O3)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND isas avx2 avx512)
    target_compile_definitions(rle_cpu PRIVATE RLE_CPU_X86=1)
    # Machines without AVX2 are rare by now: there, building quickly counts for more.
    set(isa_optimize_baseline -O1)
    set(isa_flags_avx2 -march=x86-64-v3)
    set(isa_flags_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
  endif()
  foreach(isa IN LISTS isas)
    add_library(rle_kernels_${isa} OBJECT ${kernel_sources})
    target_link_libraries(rle_kernels_${isa} PRIVATE rle_flags)
    target_compile_definitions(rle_kernels_${isa} PRIVATE RLE_ISA=${isa})
    target_compile_options(rle_kernels_${isa} PRIVATE ${isa_flags_${isa}}
      $<$<CONFIG:Release>:${isa_optimize_${isa}}>
      -fno-trapping-math $<$<C_COMPILER_ID:Clang>:-Wno-pass-failed>)
    list(APPEND RLE_ENGINE_OBJECTS $<TARGET_OBJECTS:rle_kernels_${isa}>)
  endforeach()
endif()
