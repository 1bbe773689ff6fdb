# The device plug-ins: <build>/lib/rlengine/rlengine_emu.so and rlengine_cuda.so, from the same
# sources. The first needs a C++ compiler, the second nvcc; neither is needed for the rest.

# Where they are installed: beside the program's other files, or beside the module where that has a
# place of its own. device/plugin.c looks there.
if(RLE_LUA_CPATH)
  set(RLE_PLUGIN_DIR ${RLE_LUA_CPATH}/rlengine)
else()
  set(RLE_PLUGIN_DIR ${CMAKE_INSTALL_LIBDIR}/rlengine)
endif()
get_filename_component(RLE_PLUGIN_FULL_DIR ${RLE_PLUGIN_DIR} ABSOLUTE
  BASE_DIR ${CMAKE_INSTALL_PREFIX})

file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/device/cuda/*.c)
file(GLOB cuda_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.cu)
# Of the engine's own files the plug-in takes what needs nothing of the program.
list(APPEND cuda_sources ${PROJECT_SOURCE_DIR}/engine/base/dtype.c)

if(DEFINED ENV{RLE_EMU})
  set(RLE_EMU $ENV{RLE_EMU} CACHE BOOL "")
endif()
option(RLE_EMU "The emulated device, where a C++ compiler is; the default is $RLE_EMU's" ON)
include(CheckLanguage)
if(RLE_EMU)
  check_language(CXX)
endif()
if(NOT RLE_EMU)
  message(STATUS "the emulated device is left out (RLE_EMU)")
elseif(CMAKE_CXX_COMPILER)
  enable_language(CXX)
  file(GLOB emu_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/emu/*.cc)
  set_source_files_properties(${cuda_kernels} PROPERTIES LANGUAGE CXX
    COMPILE_OPTIONS "-xc++;-Wno-unknown-pragmas")
  add_library(rlengine_emu MODULE ${cuda_sources} ${cuda_kernels} ${emu_sources})
  target_link_libraries(rlengine_emu PRIVATE rle_flags m)
  target_compile_definitions(rlengine_emu PRIVATE RLE_EMU=1)
  target_include_directories(rlengine_emu BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/kernels/emu/include)
  set_target_properties(rlengine_emu PROPERTIES PREFIX "" CXX_STANDARD 17 CXX_EXTENSIONS ON
    CXX_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/rlengine)
else()
  message(STATUS "no C++ compiler was found: the emulated device is not built (apt install g++)")
endif()
include(engine/cmake/cuda.cmake)
