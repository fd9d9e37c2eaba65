/*
 * module.h - the part of kvtrunk that needs CUDA is a shared object of its own, which the daemon
 * and the worker library load if it is there. So both are built and run where no CUDA is installed,
 * and one package serves both kinds of machine.
 */
#ifndef KVT_KERNELS_MODULE_H
#define KVT_KERNELS_MODULE_H

#include "client/kvtrunk.h"

/* Every table in the module begins with this number: a module of another build is not used. */
enum { KVT_MODULE_VERSION = 7 };

/*
 * The address of a table in the module, which is loaded by the first call and stays for good: the
 * file that the environment variable KVTRUNK_CUDA names (a program with raised rights looks at no
 * such variable), else libkvtrunk-cuda.so.0 where the system keeps libraries, else where this build
 * was installed. KVT_ENOTSUP with a sentence in why: no module, or one that this build cannot use.
 * Any thread.
 */
kvt_status kvt_module_table(const char *name, char *why, size_t why_bytes, const void **ret_table);

#endif
