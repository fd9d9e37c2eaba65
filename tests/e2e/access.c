/*
 * access.c - what a worker may not do. It cannot write into the arena, whoever it is; it cannot
 * crash the daemon by cutting its staging file short; a uid of no tenant is refused; a session
 * cannot touch another's leases. Skips (77) what needs root when it is not.
 */
#include "client/wire.h"
#include "kernels/page.h"
#include "tests/e2e/e2e.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534 };

/* The first mapping of this process whose file's name has this in it; its permissions "r--s". */
static int find_mapping(const char *part, char *ret_path, size_t room, char ret_rights[5],
                        char ret_range[64]) {
    char line[1024];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    int found = 0;
    while (!found && fgets(line, sizeof line, maps)) {
        char *name = strchr(line, '/');
        if (!name || !strstr(name, part))
            continue;
        name[strcspn(name, "\n")] = '\0';
        snprintf(ret_path, room, "%s", name);
        CHECK(sscanf(line, "%63s %4s", ret_range, ret_rights) == 2);
        found = 1;
    }
    fclose(maps);
    return found;
}

static void arena_is_read_only(const char *path, const char *rights) {
    /* the same uid: the library maps it read-only, and the mapping cannot be made writable */
    CHECK_MSG(strcmp(rights, "r--s") == 0, "%s is mapped %s", path, rights);
    if (geteuid() != 0)
        return;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        /* another uid: the file's mode */
        if (setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0)
            _exit(2);
        _exit(open(path, O_RDWR) < 0 && errno == EACCES ? 0 : 1);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "another uid may write %s", path);
}

static void mprotect_fails(const char *range) {
    unsigned long from, to;
    CHECK(sscanf(range, "%lx-%lx", &from, &to) == 2);
    CHECK(mprotect((void *)from, 4096, PROT_READ | PROT_WRITE) != 0 && errno == EACCES);
}

/* The mapping of this process's staging file, whose name is gone already. */
static int find_staging(char *range) {
    char line[1024];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    int found = 0;
    while (!found && fgets(line, sizeof line, maps))
        if (strstr(line, "kvtrunk-") && strstr(line, "(deleted)") && !strstr(line, ".arena"))
            found = sscanf(line, "%63s", range) == 1;
    fclose(maps);
    return found;
}

static int truncating_worker(const e2e_daemon *d, uint64_t seed) {
    e2e_worker w;
    uint32_t tokens[E2E_MAX_TOKENS];
    kvt_lease *lease;
    char range[64], map_file[128];
    kvt_layout layout;
    (void)seed;
    e2e_worker_open(&w, d, 5, 20000);
    for (uint32_t i = 0; i < 64; i++)
        tokens[i] = 700000 + i;
    CHECK_EQ(kvt_acquire(w.client, tokens, 64, KVT_CLAIM, &lease), KVT_OK);
    kvt_layout_token_major(&w.realm.geometry, E2E_PAGE_TOKENS, w.part[0], w.part[1], &layout);
    CHECK_EQ(kvt_encode(lease, 0, &layout), KVT_OK);
    if (!find_staging(range))
        return 3;
    snprintf(map_file, sizeof map_file, "/proc/self/map_files/%s", range);
    if (truncate(map_file, 0) != 0)
        return 77;
    size_t sealed = 99;
    kvt_status status = kvt_seal(lease, &sealed);
    CHECK_MSG(status == KVT_EIO || status == KVT_ECORRUPT, "%s", kvt_status_name(status));
    CHECK_EQ(sealed, 0);
    CHECK_EQ(kvt_release(lease), KVT_OK);
    e2e_worker_close(&w);
    return 0;
}

/* Flips a bit of every page in staging memory, `at` bytes in. */
static void damage_staging(const char *range, size_t at) {
    uintptr_t from, to;
    CHECK(sscanf(range, "%" SCNxPTR "-%" SCNxPTR, &from, &to) == 2);
    size_t n = 0;
    for (uintptr_t page = from; page + at < to; page += 64)
        if (memcmp((const void *)page, "KVTP", 4) == 0) {
            ((uint8_t *)page)[at] ^= 1;
            n++;
        }
    CHECK(n > 0);
}

/* A worker whose own bugs write to its staging memory is told which page that was, and where. */
static int damaging_worker(const e2e_daemon *d, uint64_t seed) {
    static const struct {
        size_t at;
        const char *what;
    } faults[] = {{4, "version"}, {20, "header"}, {KVT_PAGE_HEADER_BYTES + 100, "payload"}};
    (void)seed;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        e2e_worker w;
        uint32_t tokens[E2E_MAX_TOKENS];
        kvt_lease *lease;
        char range[64];
        kvt_layout layout;
        e2e_worker_open(&w, d, 5, 20000);
        e2e_path(80 + (uint32_t)i, tokens);
        CHECK_EQ(kvt_acquire(w.client, tokens, 64, KVT_CLAIM, &lease), KVT_OK);
        CHECK_EQ(e2e_fill(&w, lease, tokens, 1), KVT_OK);
        kvt_layout_token_major(&w.realm.geometry, E2E_PAGE_TOKENS, w.part[0], w.part[1], &layout);
        CHECK_EQ(kvt_encode(lease, 1, &layout), KVT_OK);
        if (!find_staging(range))
            return 3;
        damage_staging(range, faults[i].at);
        size_t sealed = 99;
        CHECK_EQ(kvt_seal(lease, &sealed), KVT_ECORRUPT);
        CHECK_EQ(sealed, E2E_PAGE_TOKENS);
        CHECK_MSG(strstr(kvt_last_error(), "page 1 of the path") &&
                      strstr(kvt_last_error(), faults[i].what),
                  "%s", kvt_last_error());
        CHECK_EQ(kvt_release(lease), KVT_OK);
        e2e_worker_close(&w);
    }
    return 0;
}

/* Connects as a uid that the daemon does not know. The socket is open to all here, since another
 * uid is in the list. */
static int stranger(const e2e_daemon *d, uint64_t seed) {
    (void)seed;
    CHECK(setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
    kvt_realm realm;
    kvt_client *client;
    kvt_options options = {.socket = d->socket, .timeout_ms = 20000};
    e2e_realm(&realm);
    kvt_status status = kvt_open(&options, &realm, &client);
    CHECK_MSG(status == KVT_EDENIED, "%s", kvt_status_name(status));
    status = kvt_open_reports(&options, &client);
    CHECK_MSG(status == KVT_EDENIED, "%s", kvt_status_name(status));
    return 0;
}

static const e2e_jobs jobs[] = {{"truncating", truncating_worker},
                                {"damaging", damaging_worker},
                                {"stranger", stranger},
                                {NULL, NULL}};

static int run(const e2e_daemon *d, const char *job) {
    e2e_child child = e2e_spawn(d, job, 1);
    return e2e_child_end(&child);
}

int main(int argc, char **argv) {
    int child = e2e_child_main(argc, argv, jobs);
    if (child >= 0)
        return child;
    e2e_daemon d = {0};
    const char *settings[] = {"arena=2MiB", "max_pages=200", "uids=0,1000", NULL};
    const char *own[] = {"arena=2MiB", "max_pages=200", NULL};
    int root = geteuid() == 0;
    e2e_start(&d, root ? settings : own);
    CHECK(chmod(d.folder, 0755) == 0);
    e2e_worker w;
    char path[512], rights[5], range[64];
    e2e_worker_open(&w, &d, 1, 20000);
    CHECK(find_mapping(".arena", path, sizeof path, rights, range));
    arena_is_read_only(path, rights);
    mprotect_fails(range);
    int code = run(&d, "truncating");
    CHECK_MSG(code == 0 || (code == 77 && !root), "the truncating worker ended with %d", code);
    CHECK_EQ(run(&d, "damaging"), 0);
    if (root)
        CHECK_EQ(run(&d, "stranger"), 0);
    /* and it serves on */
    for (int i = 0; i < 20; i++)
        e2e_request(&w);
    CHECK(w.served + w.sealed > 0);
    for (int i = 0; i < KVT_N_STATUS; i++)
        CHECK_MSG(i == KVT_EFULL || w.failed[i] == 0, "%s", kvt_status_name((kvt_status)i));
    e2e_worker_close(&w);
    if (root)
        CHECK(e2e_count(&d, "uids_refused") >= 2);
    e2e_finish(&d);
    return 0;
}
