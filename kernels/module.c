/* module.c - see module.h. */
#include "kernels/module.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/say.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *module;
static char why_not[384];

static void load(void) {
    const char *said = secure_getenv("KVTRUNK_CUDA");
    const char *const names[] = {"libkvtrunk-cuda.so.0", KVT_MODULE_PATH};
    size_t n = said && said[0] ? 1 : sizeof names / sizeof names[0];
    for (size_t i = 0; i < n && !module; i++) {
        module = dlopen(said && said[0] ? said : names[i], RTLD_NOW | RTLD_LOCAL);
        /* What the first says counts, unless it is only that there is none. */
        const char *error = module ? NULL : dlerror();
        if (error && (i == 0 || !strstr(error, "No such file")))
            snprintf(why_not, sizeof why_not, "%s", error);
    }
}

kvt_status kvt_module_table(const char *name, char *why, size_t why_bytes, const void **ret_table) {
    pthread_once(&once, load);
    if (!module)
        return kvt_say(why, why_bytes, KVT_ENOTSUP, "kvtrunk's CUDA module is not there: %s",
                       why_not);
    const void *table = dlsym(module, name);
    if (!table || *(const uint32_t *)table != KVT_MODULE_VERSION)
        return kvt_say(why, why_bytes, KVT_ENOTSUP, "kvtrunk's CUDA module is of another version");
    *ret_table = table;
    return KVT_OK;
}
