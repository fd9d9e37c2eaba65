/* What belongs to the module on the stand-in alone: an account at the process's end. */
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "tests/cuda/fake_cuda.h"

static void add_line(const char *path, const char *line, int n) {
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd >= 0 && write(fd, line, (size_t)n) == n)
        close(fd);
}

/* Exported memory stays to the end, as nobody can know when it may go. */
__attribute__((destructor)) static void account() {
    const char *path = getenv("KVT_FAKE_CUDA_LEAKS");
    unsigned live = fake_cuda_live(), exported = fake_cuda_exported();
    char line[128];
    int n = snprintf(line, sizeof line, "process %d ends with %u things of %u\n", (int)getpid(),
                     live - exported, live);
    add_line(getenv("KVT_FAKE_CUDA_ACCOUNT"), line, n);
    /* Of a lost GPU nothing can be given back. */
    int device;
    if (live != exported && cudaGetDevice(&device) == cudaSuccess)
        add_line(path, line, n);
}
