/* read_eio.c - put in front of liblmdb by LD_PRELOAD: as long as the file that KVT_TEST_EIO names
 * is there, nothing that stands in a database can be read. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

int mdb_get(void *txn, unsigned dbi, void *key, void *data);

int mdb_get(void *txn, unsigned dbi, void *key, void *data) {
    int (*real)(void *, unsigned, void *, void *);
    const char *trigger = getenv("KVT_TEST_EIO");
    if (trigger && access(trigger, F_OK) == 0)
        return EIO;
    *(void **)(void *)&real = dlsym(RTLD_NEXT, "mdb_get");
    return real(txn, dbi, key, data);
}
