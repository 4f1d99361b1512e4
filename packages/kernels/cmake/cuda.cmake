# Decides whether this build has CUDA code, and for which architectures. Sets
#   bytebound_with_cuda       TRUE or FALSE
#   bytebound_no_cuda_reason  why not, for cuda_status()
#   bytebound_compiled_archs  what the binary holds, as "sm_90,compute_120"
# and defines bytebound_configure_cuda(target).

# ON and AUTO search the same places, so AUTO never misses a compiler that ON would use.
function(bytebound_find_nvcc out)
  if(CMAKE_CUDA_COMPILER)
    set(nvcc "${CMAKE_CUDA_COMPILER}")
  elseif(DEFINED ENV{CUDACXX})
    set(nvcc "$ENV{CUDACXX}")
  else()
    find_program(
      BYTEBOUND_NVCC nvcc
      HINTS ENV CUDA_HOME ENV CUDA_PATH ENV CUDAToolkit_ROOT
      PATHS /usr/local/cuda /opt/cuda /usr/lib/cuda
      PATH_SUFFIXES bin)
    set(nvcc "${BYTEBOUND_NVCC}")
  endif()
  set(${out} "${nvcc}" PARENT_SCOPE)
endfunction()

# "90-real;120-virtual;80" -> "sm_90,compute_120,sm_80,compute_80"
function(bytebound_name_archs out)
  set(names "")
  foreach(arch IN LISTS ARGN)
    if(arch MATCHES "^([0-9]+[af]?)-real$")
      list(APPEND names "sm_${CMAKE_MATCH_1}")
    elseif(arch MATCHES "^([0-9]+[af]?)-virtual$")
      list(APPEND names "compute_${CMAKE_MATCH_1}")
    elseif(arch MATCHES "^[0-9]+[af]?$")
      list(APPEND names "sm_${arch}" "compute_${arch}")
    else()
      message(FATAL_ERROR "BYTEBOUND_CUDA_ARCHS holds \"${arch}\"; expected names such as 90-real, "
                          "120-virtual, 90 (both), or the single word native")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES names)
  list(JOIN names "," names)
  set(${out} "${names}" PARENT_SCOPE)
endfunction()

# Puts the options that every kernel shares on an object library.
function(bytebound_configure_cuda target)
  set_target_properties(
    ${target}
    PROPERTIES POSITION_INDEPENDENT_CODE ON
               CUDA_STANDARD 17
               CUDA_STANDARD_REQUIRED ON
               CUDA_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON)
  if(CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA")
    target_compile_options(${target} PRIVATE -Xcompiler=-Wall)
    if(BYTEBOUND_LINEINFO)
      # For profilers. Off by default: it writes the build folder's paths into the binary.
      target_compile_options(${target} PRIVATE -lineinfo)
    endif()
    # Compressed for size, code unpacks only on drivers that came with CUDA 12.4 or later; a binary
    # of a 13.x toolkit needs a later driver than that in any case.
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
      target_compile_options(${target} PRIVATE --compress-mode=size)
    endif()
    if(BYTEBOUND_PTXAS_LOG)
      file(MAKE_DIRECTORY "${BYTEBOUND_PTXAS_LOG}")
      target_compile_options(${target} PRIVATE --resource-usage)
      set_target_properties(
        ${target}
        PROPERTIES CUDA_COMPILER_LAUNCHER
                   "sh;${PROJECT_SOURCE_DIR}/cmake/ptxas_log.sh;${BYTEBOUND_PTXAS_LOG}")
    endif()
  endif()
endfunction()

set(bytebound_no_cuda_reason "")
set(bytebound_compiled_archs "")
string(TOUPPER "${BYTEBOUND_CUDA}" mode)
if(NOT mode MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "BYTEBOUND_CUDA is \"${BYTEBOUND_CUDA}\"; expected ON, OFF or AUTO")
endif()

bytebound_find_nvcc(nvcc)
if(mode STREQUAL "OFF")
  set(bytebound_with_cuda FALSE)
  set(bytebound_no_cuda_reason "it was built with BYTEBOUND_CUDA=OFF")
elseif(nvcc)
  set(bytebound_with_cuda TRUE)
elseif(mode STREQUAL "ON")
  message(FATAL_ERROR "BYTEBOUND_CUDA=ON, but there is no nvcc in PATH, CUDACXX, CUDA_HOME, CUDA_PATH "
                      "or the usual install folders. Install the CUDA toolkit or set CUDACXX.")
else()
  set(bytebound_with_cuda FALSE)
  set(bytebound_no_cuda_reason "BYTEBOUND_CUDA was AUTO and no nvcc was found")
  message(WARNING "BYTEBOUND_CUDA=AUTO found no nvcc in PATH, CUDACXX, CUDA_HOME, CUDA_PATH or the "
                  "usual install folders: this build has NO CUDA code and every op will raise "
                  "CudaUnavailableError. BYTEBOUND_CUDA=ON makes this an error.")
endif()

if(bytebound_with_cuda)
  set(CMAKE_CUDA_COMPILER "${nvcc}")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
    message(FATAL_ERROR "CUDA toolkit ${CMAKE_CUDA_COMPILER_VERSION} found; expected 12.0 or later")
  endif()

  string(REGEX REPLACE "[,; ]+" ";" archs "${BYTEBOUND_CUDA_ARCHS}")
  if(archs STREQUAL "native")
    set(archs ${CMAKE_CUDA_ARCHITECTURES_NATIVE})
    if(NOT archs MATCHES "^[0-9]")
      message(FATAL_ERROR "BYTEBOUND_CUDA_ARCHS=native, but nvcc sees no GPU here; name one instead")
    endif()
  elseif(NOT archs)
    set(archs 80-real 86-real 89-real 90-real)
    # One PTX target, the newest, for the GPUs to come.
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
      list(APPEND archs 100-real 120-real 120-virtual)
    else()
      list(APPEND archs 90-virtual)
    endif()
  endif()
  bytebound_name_archs(bytebound_compiled_archs ${archs})
  set(CMAKE_CUDA_ARCHITECTURES ${archs})
  message(STATUS "bytebound kernels: CUDA ${CMAKE_CUDA_COMPILER_VERSION}, "
                 "${bytebound_compiled_archs}")
else()
  message(STATUS "bytebound kernels: no CUDA code, ${bytebound_no_cuda_reason}")
endif()
