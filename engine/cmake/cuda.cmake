# The plug-in for NVIDIA GPUs, <build>/lib/rlengine/rlengine_cuda.so, where nvcc is. Nothing else of
# the engine needs CUDA, and at run time only this file and the driver are needed: the CUDA runtime
# is linked in, cuBLAS is opened when a device is.
#
# Kernels are compiled by nvcc in commands of their own: CMake's CUDA language would cost seconds
# at every first configuration. What ptxas says about each kernel (registers, spilled bytes) is
# kept in <build>/cuda/<file>.ptxas; tests/gpu/check_budget.lua reads it.
if(DEFINED ENV{RLE_CUDA})
  set(RLE_CUDA $ENV{RLE_CUDA} CACHE STRING "")
endif()
set(RLE_CUDA AUTO CACHE STRING
  "The plug-in for NVIDIA GPUs: AUTO (where nvcc is found), ON, OFF; the default is $RLE_CUDA's")
set_property(CACHE RLE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(RLE_CUDA_ARCHITECTURES "" CACHE STRING
  "GPUs to build for, as CMAKE_CUDA_ARCHITECTURES; empty: 80-real, 90 and the newest")
set(RLE_CUDA_FLAGS "" CACHE STRING "More options for nvcc, e.g. -lineinfo")

function(rle_no_cuda reason)
  if(RLE_CUDA STREQUAL "AUTO")
    message(STATUS "${reason}: no plug-in for NVIDIA GPUs is built")
  else()
    message(FATAL_ERROR "RLE_CUDA is ${RLE_CUDA}, but ${reason}")
  endif()
endfunction()

if(NOT RLE_CUDA)
  return()
endif()
if(RLE_SANITIZE)
  # The sanitizers' runtime has to come first in a process; the sources are instrumented in the
  # emulated device.
  rle_no_cuda("the build is instrumented")
  return()
endif()

# ---- the compiler ----

if(NOT RLE_NVCC AND NOT "$ENV{CUDACXX}" STREQUAL "")
  set(RLE_NVCC "$ENV{CUDACXX}" CACHE FILEPATH "CUDA's compiler")
endif()
file(GLOB toolkits /usr/local/cuda-*/bin /opt/cuda*/bin)
list(SORT toolkits COMPARE NATURAL ORDER DESCENDING)
find_program(RLE_NVCC nvcc PATHS /usr/local/cuda/bin ${toolkits} DOC "CUDA's compiler")
if(NOT RLE_NVCC)
  rle_no_cuda("nvcc was not found (install the CUDA Toolkit, 12.0 or newer, and put its bin \
folder on PATH or name the compiler in CUDACXX)")
  return()
endif()

# What this nvcc is and can do, asked once: the host compiler it would use, its folders, its GPUs.
file(TIMESTAMP ${RLE_NVCC} nvcc_time UTC)
set(nvcc_is "${RLE_NVCC} ${nvcc_time} $ENV{NVCC_CCBIN}")
if(NOT nvcc_is STREQUAL "${RLE_NVCC_ASKED}")
  execute_process(COMMAND ${RLE_NVCC} --version OUTPUT_VARIABLE version ERROR_VARIABLE version)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" version "${version}")
  set(RLE_CUDA_VERSION "${CMAKE_MATCH_1}" CACHE INTERNAL "nvcc's version")
  execute_process(COMMAND ${RLE_NVCC} --list-gpu-code OUTPUT_VARIABLE codes ERROR_QUIET)
  string(REGEX MATCHALL "sm_[0-9]+" codes "${codes}")
  string(REPLACE "sm_" "" codes "${codes}")
  list(SORT codes COMPARE NATURAL)
  set(RLE_CUDA_CODES "${codes}" CACHE INTERNAL "GPUs nvcc compiles for")
  execute_process(COMMAND ${RLE_NVCC} --dryrun -x cu /dev/null -o x
    OUTPUT_VARIABLE dryrun ERROR_VARIABLE dryrun)
  string(REGEX MATCH "INCLUDES=\"?-I([^\" \n]+)" include "${dryrun}")
  set(RLE_CUDA_INCLUDE_DIR "${CMAKE_MATCH_1}" CACHE INTERNAL "The toolkit's headers")
  string(REGEX MATCHALL "-L[^\" \n]+" libraries "${dryrun}")
  list(TRANSFORM libraries REPLACE "^-L" "")
  set(RLE_CUDA_LIBRARY_DIRS "${libraries}" CACHE INTERNAL "The toolkit's libraries")
  # An nvcc refuses host compilers that are newer than it.
  execute_process(COMMAND ${RLE_NVCC} -x cu -E /dev/null RESULT_VARIABLE failed OUTPUT_QUIET
    ERROR_VARIABLE why)
  set(trouble "")
  if(NOT RLE_CUDA_VERSION)
    set(trouble "${RLE_NVCC} --version says no version")
  elseif(RLE_CUDA_VERSION VERSION_LESS 12)
    set(trouble "${RLE_NVCC} is CUDA ${RLE_CUDA_VERSION}, 12.0 or newer is needed")
  elseif(failed)
    string(REGEX REPLACE "\n.*" "" why "${why}")
    set(trouble "${RLE_NVCC} cannot use the C++ compiler it finds (name another in NVCC_CCBIN): ${why}")
  endif()
  set(RLE_CUDA_TROUBLE "${trouble}" CACHE INTERNAL "Why nvcc cannot be used")
  set(RLE_NVCC_ASKED "${nvcc_is}" CACHE INTERNAL "The nvcc that the answers are of")
endif()
if(RLE_CUDA_TROUBLE)
  rle_no_cuda("${RLE_CUDA_TROUBLE}")
  return()
endif()
find_library(RLE_CUDART cudart_static HINTS ${RLE_CUDA_LIBRARY_DIRS} DOC "The CUDA runtime")
find_path(RLE_CUDA_HEADERS cublas_v2.h HINTS ${RLE_CUDA_INCLUDE_DIR} DOC "The toolkit's headers")
if(NOT RLE_CUDA_HEADERS)
  rle_no_cuda("cublas_v2.h was not found beside ${RLE_NVCC} (install the toolkit's cuBLAS with its \
headers: libcublas-dev)")
  return()
endif()
if(NOT RLE_CUDART)
  rle_no_cuda("libcudart_static.a was not found beside ${RLE_NVCC} (install the toolkit's \
development files: cuda-cudart-dev)")
  return()
endif()

# ---- GPUs ----

# Machine code for sm_80 runs on 8.x, that for sm_90 on 9.0; that for the newest generation's first
# member on all of that generation. The PTX is 9.0's: the driver compiles it when it is first
# loaded, for every GPU from 9.0 on that has no machine code here, those in between and those to
# come. (The newest generation's PTX would leave out those in between.)
set(architectures ${RLE_CUDA_ARCHITECTURES})
if(NOT architectures)
  list(GET RLE_CUDA_CODES -1 newest)
  string(REGEX REPLACE ".$" "" generation ${newest})
  set(first ${RLE_CUDA_CODES})
  list(FILTER first INCLUDE REGEX "^${generation}.$")
  list(GET first 0 first)
  set(architectures 80-real 90)
  if(first GREATER 90)
    list(APPEND architectures ${first}-real)
  endif()
endif()
set(nvcc_codes "")
foreach(architecture IN LISTS architectures)
  if(NOT architecture MATCHES "^([0-9]+[af]?)(-real|-virtual|)$")
    message(FATAL_ERROR "RLE_CUDA_ARCHITECTURES: \"${architecture}\" is none; 80, 90-real and \
120-virtual would be")
  endif()
  set(n ${CMAKE_MATCH_1})
  if(NOT CMAKE_MATCH_2 STREQUAL "-virtual")
    list(APPEND nvcc_codes "-gencode=arch=compute_${n},code=sm_${n}")
  endif()
  if(NOT CMAKE_MATCH_2 STREQUAL "-real")
    list(APPEND nvcc_codes "-gencode=arch=compute_${n},code=compute_${n}")
  endif()
endforeach()

# ---- objects ----

separate_arguments(nvcc_more UNIX_COMMAND "${RLE_CUDA_FLAGS}")
# No multiply-add but those that are written out, so that every GPU has the CPU's bits.
set(nvcc_flags -std=c++17 -O3 -fmad=false -Xptxas=-v ${nvcc_codes} -D_GNU_SOURCE -DNDEBUG
  -I${PROJECT_SOURCE_DIR}/engine -I${PROJECT_SOURCE_DIR}/kernels
  -Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off
  # The plug-in has no C++ library: one thread opens it, and nothing throws.
  -Xcompiler=-fno-exceptions,-fno-rtti,-fno-threadsafe-statics ${nvcc_more})
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/cuda)
set(cuda_objects "")
foreach(kernel IN LISTS cuda_kernels)
  get_filename_component(name ${kernel} NAME_WE)
  set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(OUTPUT ${object} BYPRODUCTS ${PROJECT_BINARY_DIR}/cuda/${name}.ptxas
    COMMAND sh ${PROJECT_SOURCE_DIR}/engine/cmake/nvcc.sh ${PROJECT_BINARY_DIR}/cuda/${name}.ptxas
      ${RLE_NVCC} ${nvcc_flags} -MD -MF ${object}.d -MT ${object} -c ${kernel} -o ${object}
    DEPENDS ${kernel} ${PROJECT_SOURCE_DIR}/engine/cmake/nvcc.sh ${RLE_NVCC}
    DEPFILE ${object}.d COMMENT "Building CUDA object ${name}.o" VERBATIM)
  list(APPEND cuda_objects ${object})
endforeach()

# ---- the plug-in ----

add_library(rlengine_cuda MODULE ${cuda_sources} ${cuda_objects})
set_source_files_properties(${cuda_objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
target_include_directories(rlengine_cuda SYSTEM PRIVATE ${RLE_CUDA_HEADERS})
target_link_libraries(rlengine_cuda PRIVATE rle_flags ${RLE_CUDART} rt ${CMAKE_DL_LIBS} Threads::Threads m)
# One symbol is exported; what it needs is there, or it does not link.
target_link_options(rlengine_cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,-z,defs -Wl,--gc-sections
  -Wl,--as-needed)
set_target_properties(rlengine_cuda PROPERTIES PREFIX "" LINKER_LANGUAGE C
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/rlengine)
string(JOIN " " architectures ${architectures})
message(STATUS "NVIDIA GPUs: ${architectures}, by ${RLE_NVCC} ${RLE_CUDA_VERSION}")
