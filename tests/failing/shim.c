/*
 * shim.c - put in front of the C library by LD_PRELOAD: makes the nth allocation or the nth system
 * call of a program fail, once. Counted are calls that come from the program's own code (or, with
 * the scope "nng", from libnng's); those that the C library makes for itself are not seen.
 *
 *     KVT_FAIL=KIND:N:SCOPE:FD[:off]   KIND memory or calls, SCOPE own or nng; when it has failed,
 * the call's name goes to the descriptor FD. off: not before failing_switch(1)
 *
 * It also counts what the program's own code has allocated and not freed.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t each);
extern void *__libc_realloc(void *old, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *memory);

void failing_switch(int on);
long failing_outstanding(void);

typedef enum kind { KIND_NONE, KIND_MEMORY, KIND_CALLS, KIND_SOCKETS } kind;

static kind fail_kind;
static atomic_long left;
static atomic_int is_on;
static int report_fd = -1;
static uintptr_t scope_from, scope_to, own_from, own_to;

/* --- who calls ----------------------------------------------------------------------------------
 */

static void text_of(const struct dl_phdr_info *info, uintptr_t *ret_from, uintptr_t *ret_to) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
            *ret_from = info->dlpi_addr + part->p_vaddr;
            *ret_to = *ret_from + part->p_memsz;
        }
    }
}

static int look_at(struct dl_phdr_info *info, size_t n, void *is_nng) {
    (void)n;
    if (!own_from)
        text_of(info, &own_from, &own_to); /* the program comes first */
    if (*(const int *)is_nng && strstr(info->dlpi_name, "libnng"))
        text_of(info, &scope_from, &scope_to);
    return 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *said = getenv("KVT_FAIL");
    char what[16] = "", off[8] = "";
    long n = 0;
    if (!said || sscanf(said, "%15[a-z]:%ld:%d:%7s", what, &n, &report_fd, off) < 3)
        return;
    int is_nng = strcmp(what, "sockets") == 0;
    dl_iterate_phdr(look_at, &is_nng);
    if (!is_nng)
        scope_from = own_from, scope_to = own_to;
    atomic_store(&left, n);
    atomic_store(&is_on, !off[0]);
    fail_kind = is_nng ? KIND_SOCKETS : strcmp(what, "memory") == 0 ? KIND_MEMORY : KIND_CALLS;
}

void failing_switch(int on) {
    atomic_store(&is_on, on);
}

static int fails(kind of, const char *name, const void *from) {
    uintptr_t at = (uintptr_t)from;
    if (of == KIND_SOCKETS && fail_kind == KIND_CALLS)
        of = KIND_CALLS; /* our own */
    if (fail_kind != of || at < scope_from || at >= scope_to || !atomic_load(&is_on) ||
        atomic_fetch_sub(&left, 1) != 1)
        return 0;
    ssize_t n = write(report_fd, name, strlen(name));
    (void)n;
    return 1;
}

/* --- what is allocated and not freed ------------------------------------------------------------
 */

enum { PLACES = 1 << 16 };
static uintptr_t places[PLACES]; /* open addressing; 1: was used */
static long n_outstanding;
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t place_of(uintptr_t at) {
    return (size_t)((at >> 4) * 0x9e3779b97f4a7c15u >> 48) % PLACES;
}

static void note(void *memory, const void *from) {
    uintptr_t at = (uintptr_t)from;
    if (!memory || at < own_from || at >= own_to)
        return;
    pthread_mutex_lock(&places_lock);
    size_t i = place_of((uintptr_t)memory);
    while (places[i] > 1)
        i = (i + 1) % PLACES;
    places[i] = (uintptr_t)memory;
    n_outstanding++;
    pthread_mutex_unlock(&places_lock);
}

static void forget(void *memory) {
    if (!memory || !own_from)
        return;
    pthread_mutex_lock(&places_lock);
    size_t i = place_of((uintptr_t)memory), n = 0;
    while (places[i] && places[i] != (uintptr_t)memory && n++ < PLACES)
        i = (i + 1) % PLACES;
    if (places[i] == (uintptr_t)memory) {
        places[i] = 1;
        n_outstanding--;
    }
    pthread_mutex_unlock(&places_lock);
}

long failing_outstanding(void) {
    pthread_mutex_lock(&places_lock);
    long n = n_outstanding;
    pthread_mutex_unlock(&places_lock);
    return n;
}

/* --- memory -------------------------------------------------------------------------------------
 */

#define FROM __builtin_return_address(0)

static void *no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t n) {
    if (fails(KIND_MEMORY, "malloc", FROM))
        return no_memory();
    void *memory = __libc_malloc(n);
    note(memory, FROM);
    return memory;
}

void *calloc(size_t n, size_t each) {
    if (fails(KIND_MEMORY, "calloc", FROM))
        return no_memory();
    void *memory = __libc_calloc(n, each);
    note(memory, FROM);
    return memory;
}

void *realloc(void *old, size_t n) {
    if (fails(KIND_MEMORY, "realloc", FROM))
        return no_memory();
    forget(old);
    void *memory = __libc_realloc(old, n);
    note(memory, FROM);
    return memory;
}

void free(void *memory) {
    forget(memory);
    __libc_free(memory);
}

void *aligned_alloc(size_t align, size_t n) {
    if (fails(KIND_MEMORY, "aligned_alloc", FROM))
        return no_memory();
    void *memory = __libc_memalign(align, n);
    note(memory, FROM);
    return memory;
}

int posix_memalign(void **ret_memory, size_t align, size_t n) {
    if (fails(KIND_MEMORY, "posix_memalign", FROM))
        return ENOMEM;
    *ret_memory = __libc_memalign(align, n);
    note(*ret_memory, FROM);
    return *ret_memory ? 0 : ENOMEM;
}

char *strdup(const char *text) {
    if (fails(KIND_MEMORY, "strdup", FROM))
        return no_memory();
    size_t n = strlen(text) + 1;
    char *copy = __libc_malloc(n);
    note(copy, FROM);
    return copy ? memcpy(copy, text, n) : NULL;
}

/* --- system calls -------------------------------------------------------------------------------
 */

/* A call that gives -1 and errno. */
#define CALL(type, name, error, parameters, ...)                                                   \
    CALL_OF(KIND_CALLS, type, name, error, parameters, __VA_ARGS__)

#define CALL_OF(kind, type, name, error, parameters, ...)                                          \
    type name parameters {                                                                         \
        static type(*next) parameters;                                                             \
        if (!next)                                                                                 \
            next = (type(*) parameters)dlsym(RTLD_NEXT, #name);                                    \
        if (fails(kind, #name, FROM)) {                                                            \
            errno = error;                                                                         \
            return (type)-1;                                                                       \
        }                                                                                          \
        return next(__VA_ARGS__);                                                                  \
    }

/* With a mode if O_CREAT. */
#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        static int (*next)(const char *, int, ...);                                                \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;                  \
        va_end(more);                                                                              \
        if (!next)                                                                                 \
            next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);                       \
        if (fails(KIND_CALLS, #name, FROM)) {                                                      \
            errno = EMFILE;                                                                        \
            return -1;                                                                             \
        }                                                                                          \
        return next(path, flags, mode);                                                            \
    }

#define OPENAT(name)                                                                               \
    int name(int dir, const char *path, int flags, ...) {                                          \
        static int (*next)(int, const char *, int, ...);                                           \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;                  \
        va_end(more);                                                                              \
        if (!next)                                                                                 \
            next = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, #name);                  \
        if (fails(KIND_CALLS, #name, FROM)) {                                                      \
            errno = EMFILE;                                                                        \
            return -1;                                                                             \
        }                                                                                          \
        return next(dir, path, flags, mode);                                                       \
    }

int __open_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
ssize_t __pread_chk(int fd, void *to, size_t n, off_t at, size_t room);
ssize_t __pread64_chk(int fd, void *to, size_t n, off_t at, size_t room);
ssize_t __read_chk(int fd, void *to, size_t n, size_t room);
int eventfd(unsigned value, int flags);
int signalfd(int fd, const sigset_t *mask, int flags);
int fstatvfs(int fd, void *to);
int statvfs(const char *path, void *to);
int flock(int fd, int operation);
ssize_t getrandom(void *to, size_t n, unsigned flags);
long syscall(long number, ...);

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
CALL(int, __open_2, EMFILE, (const char *path, int flags), path, flags)
CALL(int, __openat_2, EMFILE, (int dir, const char *path, int flags), dir, path, flags)
CALL(ssize_t, pread, EIO, (int fd, void *to, size_t n, off_t at), fd, to, n, at)
CALL(ssize_t, pread64, EIO, (int fd, void *to, size_t n, off_t at), fd, to, n, at)
CALL(ssize_t, __pread_chk, EIO, (int fd, void *to, size_t n, off_t at, size_t room), fd, to, n, at,
     room)
CALL(ssize_t, __pread64_chk, EIO, (int fd, void *to, size_t n, off_t at, size_t room), fd, to, n,
     at, room)
CALL(ssize_t, read, EIO, (int fd, void *to, size_t n), fd, to, n)
CALL(ssize_t, __read_chk, EIO, (int fd, void *to, size_t n, size_t room), fd, to, n, room)
CALL(int, ftruncate, ENOSPC, (int fd, off_t n), fd, n)
CALL(int, ftruncate64, ENOSPC, (int fd, off_t n), fd, n)
CALL(int, fstat, ENOMEM, (int fd, struct stat *to), fd, to)
CALL(int, fstat64, ENOMEM, (int fd, struct stat64 *to), fd, to)
CALL(int, stat, ENOMEM, (const char *path, struct stat *to), path, to)
CALL(int, lstat, ENOMEM, (const char *path, struct stat *to), path, to)
CALL(int, lstat64, ENOMEM, (const char *path, struct stat64 *to), path, to)
CALL(int, fstatvfs, EIO, (int fd, void *to), fd, to)
CALL(int, statvfs, EIO, (const char *path, void *to), path, to)
CALL(int, fchmod, EIO, (int fd, mode_t mode), fd, mode)
CALL(int, fchown, EIO, (int fd, uid_t uid, gid_t gid), fd, uid, gid)
CALL(int, mkdir, ENOSPC, (const char *path, mode_t mode), path, mode)
CALL(int, rename, ENOSPC, (const char *from, const char *to), from, to)
CALL(int, unlink, EIO, (const char *path), path)
CALL(int, flock, ENOLCK, (int fd, int operation), fd, operation)
CALL_OF(KIND_SOCKETS, int, socket, EMFILE, (int domain, int type, int protocol), domain, type,
        protocol)
CALL_OF(KIND_SOCKETS, int, bind, ENOMEM, (int fd, const struct sockaddr *to, socklen_t n), fd, to,
        n)
CALL_OF(KIND_SOCKETS, int, listen, ENOMEM, (int fd, int n), fd, n)
CALL_OF(KIND_SOCKETS, int, connect, ENOMEM, (int fd, const struct sockaddr *to, socklen_t n), fd,
        to, n)
CALL(int, epoll_create1, EMFILE, (int flags), flags)
CALL(int, epoll_ctl, ENOMEM, (int fd, int op, int of, struct epoll_event *event), fd, op, of, event)
CALL(int, eventfd, EMFILE, (unsigned value, int flags), value, flags)
CALL(int, signalfd, EMFILE, (int fd, const sigset_t *mask, int flags), fd, mask, flags)
CALL(ssize_t, getrandom, EINTR, (void *to, size_t n, unsigned flags), to, n, flags)
CALL(ssize_t, pwrite, ENOSPC, (int fd, const void *from, size_t n, off_t at), fd, from, n, at)
CALL(int, renameat2, ENOSPC, (int a, const char *from, int b, const char *to, unsigned flags), a,
     from, b, to, flags)
CALL(void *, mmap, ENOMEM, (void *at, size_t n, int protection, int flags, int fd, off_t from), at,
     n, protection, flags, fd, from)
CALL(void *, mmap64, ENOMEM, (void *at, size_t n, int protection, int flags, int fd, off_t from),
     at, n, protection, flags, fd, from)

int posix_fallocate(int fd, off_t at, off_t n) {
    static int (*next)(int, off_t, off_t);
    if (!next)
        next = (int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate");
    return fails(KIND_CALLS, "posix_fallocate", FROM) ? ENOSPC : next(fd, at, n);
}

int posix_fallocate64(int fd, off_t at, off_t n) {
    static int (*next)(int, off_t, off_t);
    if (!next)
        next = (int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate64");
    return fails(KIND_CALLS, "posix_fallocate64", FROM) ? ENOSPC : next(fd, at, n);
}

int pthread_create(pthread_t *ret_thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument) {
    static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!next)
        next = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(
            RTLD_NEXT, "pthread_create");
    return fails(KIND_CALLS, "pthread_create", FROM) ? EAGAIN
                                                     : next(ret_thread, attributes, run, argument);
}

FILE *fopen(const char *path, const char *mode) {
    static FILE *(*next)(const char *, const char *);
    if (!next)
        next = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
    if (fails(KIND_CALLS, "fopen", FROM)) {
        errno = EMFILE;
        return NULL;
    }
    return next(path, mode);
}

DIR *opendir(const char *path) {
    static DIR *(*next)(const char *);
    if (!next)
        next = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
    if (fails(KIND_CALLS, "opendir", FROM)) {
        errno = EMFILE;
        return NULL;
    }
    return next(path);
}

/* Of those that have no name in the library only the one that gives a descriptor. */
long syscall(long number, ...) {
    static long (*next)(long, ...);
    long a[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    if (!next)
        next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    if (number == SYS_pidfd_open && fails(KIND_CALLS, "pidfd_open", FROM)) {
        errno = EMFILE;
        return -1;
    }
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
