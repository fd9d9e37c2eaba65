# With -DKVT_CUDA=ON: the kernels and the arena in GPU memory, for these architectures. No contraction
# and no flush to zero: the bits are those of the C reference.
set(KVT_CUDA_ARCHITECTURES "80;90;100;120" CACHE STRING "GPU architectures to compile for")
if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${KVT_CUDA_ARCHITECTURES})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# The module (module.h). CUDA's runtime is in it; a driver is needed only to use it.
add_library(kvtrunk_cuda SHARED cuda_handles.c cuda_mover.c device_cuda.c kernels.cu
            ${PROJECT_SOURCE_DIR}/client/map_cuda.c ${PROJECT_SOURCE_DIR}/client/map_cuda_areas.c
            ${PROJECT_SOURCE_DIR}/client/map_cuda_check.c)
target_link_libraries(kvtrunk_cuda PRIVATE kvt_device kvt_kernels CUDA::cudart_static
                      Threads::Threads)
set_target_properties(kvtrunk_cuda PROPERTIES OUTPUT_NAME kvtrunk-cuda VERSION ${PROJECT_VERSION}
                      SOVERSION 0 CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
                      POSITION_INDEPENDENT_CODE ON
                      LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/module.map)
target_link_options(kvtrunk_cuda PRIVATE
                    -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/module.map)
if(NOT KVT_SANITIZE) # their run-time libraries are only there in the program
    target_link_options(kvtrunk_cuda PRIVATE -Wl,--no-undefined)
endif()
target_compile_options(kvtrunk_cuda PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;-ftz=false;-prec-div=true;-prec-sqrt=true>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
if(KVT_WERROR)
    target_compile_options(kvtrunk_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
install(TARGETS kvtrunk_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
