# With -DKVT_CUDA=ON: the kernels and the arena in GPU memory, for these architectures. No contraction
# and no flush to zero: the bits are those of the C reference.
set(KVT_CUDA_ARCHITECTURES "80;90;100;120" CACHE STRING "GPU architectures to compile for")
if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${KVT_CUDA_ARCHITECTURES})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

add_library(kvt_cuda STATIC device_cuda.c kernels.cu)
target_link_libraries(kvt_cuda PUBLIC kvt_device kvt_kernels CUDA::cudart_static)
set_target_properties(kvt_cuda PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
                      POSITION_INDEPENDENT_CODE ON)
target_compile_options(kvt_cuda PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;-ftz=false;-prec-div=true;-prec-sqrt=true>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
if(KVT_WERROR)
    target_compile_options(kvt_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
