/* Prints the architecture that the first device needs ("sm_90") and its name, or fails. */
#include <stdio.h>

int main(void) {
    cudaDeviceProp device;
    if (cudaGetDeviceProperties(&device, 0) != cudaSuccess)
        return 1;
    printf("sm_%d%d %s\n", device.major, device.minor, device.name);
    return 0;
}
