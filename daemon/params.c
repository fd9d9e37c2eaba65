/*
 * params.c - the table itself; how values are read is in params_value.c, how it is printed in
 * params_print.c.
 */
#include "daemon/params.h"

#define AT(field) offsetof(param_values, field)
#define GiB       (UINT64_C(1) << 30)
#define TiB       (UINT64_C(1) << 40)

const param params[] = {
    {.name = "socket",
     .type = PARAM_TEXT,
     .flags = PARAM_AUTO | PARAM_PATH,
     .offset = AT(socket),
     .low = 2,
     .high = 106, /* a socket address holds 107 bytes, and one is needed: see socket_path.h */
     .standard = "\"auto\"",
     .text = "Path of the socket on which workers connect. `auto` takes `$KVTRUNK_SOCKET`; else "
             "`kvtrunk.sock` in systemd's `$RUNTIME_DIRECTORY`; else, for root, "
             "`/run/kvtrunk/kvtrunk.sock`; else `kvtrunk.sock` in `$XDG_RUNTIME_DIR`. A file with "
             "`.lock` behind this name is kept locked, so that no second daemon takes the path."},
    {.name = "device",
     .type = PARAM_ENUM,
     .offset = AT(device),
     .choices = {"auto", "cuda", "host"},
     .standard = "\"auto\"",
     .text =
         "Where the arena is: in a GPU's memory (`cuda`) or in shared host memory (`host`). With "
         "`cuda` workers on that GPU read and write pages there, without the host, and a start "
         "without a GPU fails; kvtrunk's CUDA module and a driver must be there. `auto` takes the "
         "GPU, or all that `gpu` names, where they work, else host memory; the log says which, and "
         "why."},
    {.name = "gpu",
     .type = PARAM_GPUS,
     .offset = AT(gpus),
     .low = 0,
     .high = 62,
     .standard = "0",
     .text =
         "The GPU, or the GPUs, by their numbers as CUDA counts them for the daemon "
         "(`CUDA_VISIBLE_DEVICES` counts): `0`, `\"0,1\"`, `\"all\"`. Each has an arena of its "
         "own, of the size of `arena`, and makes room in it by itself. The pages of a rank stand "
         "on "
         "the GPU that its worker is on, so the ranks of one model can be on one each. What stands "
         "on one GPU is not read from another: workers of the same rank of one realm on several "
         "GPUs need a salt each, or a daemon each. Workers find a GPU by its place on the bus, "
         "whatever number it has for them."},
    {.name = "arena",
     .type = PARAM_SIZE,
     .flags = PARAM_OF_TENANT | PARAM_AUTO,
     .offset = AT(arena),
     .low = UINT64_C(1) << 20,
     .high = 64 * TiB,
     .standard = "\"auto\"",
     .text = "Room for encoded pages. All of it is reserved and touched at start. A size that "
             "cannot be had is refused, with the figures. `auto` takes what is there: the least of "
             "4GiB, half of the free room of `arena_dir`'s file system, a quarter of the available "
             "memory and a quarter of what the control group leaves; and less if even that fails. "
             "On a GPU: a quarter of its free memory; on several the same on each, by the one with "
             "the least. A size is that of each."},
    {.name = "arena_dir",
     .type = PARAM_TEXT,
     .flags = PARAM_PATH,
     .offset = AT(arena_dir),
     .low = 1,
     .high = 160, /* the file's name has up to 61 bytes, and paths on the wire 255 */
     .standard = "\"/dev/shm\"",
     .text = "Directory of the arena's file. It should be in memory; workers must be able to reach "
             "it. Of an arena on a GPU the file has the head alone: 8 bytes a page; with several "
             "GPUs there is one for each."},
    {.name = "arena_mode",
     .type = PARAM_MODE,
     .flags = PARAM_OF_TENANT,
     .offset = AT(arena_mode),
     .low = 0600,
     .high = 0644,
     .standard = "\"0640\"",
     .text = "Permission bits of the arena's file. Workers map it read-only, and only the daemon "
             "may write: so group and others can be given reading (`0640`, `0644`) and nothing "
             "else. What stands in the arena is the KV cache of every worker of the tenant."},
    {.name = "arena_group",
     .type = PARAM_TEXT,
     .flags = PARAM_OF_TENANT | PARAM_EMPTY,
     .offset = AT(arena_group),
     .high = 64,
     .standard = "\"\"",
     .text = "Group of the arena's file, by name or number, for workers of other users. Empty: the "
             "daemon's own group."},
    {.name = "staging_dir",
     .type = PARAM_TEXT,
     .flags = PARAM_PATH,
     .offset = AT(staging_dir),
     .low = 1,
     .high = PARAM_MAX_TEXT_BYTES,
     .standard = "\"/dev/shm\"",
     .text = "Directory in which workers make their staging files. It should be in memory; workers "
             "must be able to create files there that the daemon can read."},
    {.name = "tenant",
     .type = PARAM_TEXT,
     .flags = PARAM_OF_TENANT | PARAM_NAME,
     .offset = AT(tenant),
     .low = 1,
     .high = 63,
     .standard = "\"default\"",
     .text =
         "Name of the tenant that this daemon serves, as workers and reports see it. Where there "
         "are several, it names the tenant's folder in `disk_dir`, too."},
    {.name = "uids",
     .type = PARAM_UIDS,
     .flags = PARAM_OF_TENANT,
     .offset = AT(uids),
     .low = 0,
     .high = PARAM_MAX_UIDS,
     .standard = "[]",
     .text =
         "Users who belong to the tenant, by number or name: `[1000, \"alice\"]`. They can read "
         "each other's cached prompts. Everybody else is refused, root too. Empty: only the "
         "user that the daemon runs as. With others in the list the socket is open to "
         "everybody (mode 0666) and who connects is told by the kernel; otherwise its mode is "
         "0600."},
    {.name = "gids",
     .type = PARAM_GIDS,
     .flags = PARAM_OF_TENANT,
     .offset = AT(gids),
     .low = 0,
     .high = PARAM_MAX_UIDS,
     .standard = "[]",
     .text =
         "Groups whose members belong to the tenant, by number or name: users whose process runs "
         "with one of these as its own group (not a supplementary one). A user who is named in "
         "another tenant's `uids` belongs to that one."},
    {.name = "tenants",
     .type = PARAM_TENANTS,
     .offset = AT(tenants),
     .low = 0,
     .high = PARAM_MAX_TENANTS,
     .standard = "[]",
     .text =
         "Several tenants that share nothing: each has a tree, an arena with a mode and a group "
         "of its own, limits, pins, events and counters, and nobody sees or counts what is "
         "another's. Each is an object with `name`, `uids` or `gids`, and whatever of the "
         "parameters that are marked `also in tenants` differs from what stands beside this list "
         "(all others, `host`, `disk` and `disk_dir` among them, stand beside it alone): "
         "`{\"name\": \"red\", "
         "\"uids\": [\"red\"], \"arena\": \"8GiB\", \"arena_group\": \"red\"}`. With it, `tenant`, "
         "`uids` "
         "and `gids` stand in these objects alone. Empty: one tenant, which everything beside "
         "this list describes."},
    {.name = "page_tokens",
     .type = PARAM_COUNT,
     .flags = PARAM_POWER,
     .offset = AT(page_tokens),
     .low = 16,
     .high = 128,
     .standard = "64",
     .text = "The most tokens that a page of any realm may have. Realms with smaller pages are "
             "welcome; each node of the tree keeps room for this many tokens."},
    {.name = "max_pages",
     .type = PARAM_COUNT,
     .flags = PARAM_OF_TENANT,
     .offset = AT(max_pages),
     .low = 0,
     .high = UINT64_C(1) << 26,
     .standard = "0",
     .text =
         "Pages that can be known at the same time, in all tiers together: one that is in the "
         "arena, "
         "in the host tier and on disk counts once, and so does one that is on disk alone. A start "
         "with fewer deletes the records that are too many, and the log counts them. 0: as many as "
         "fit into arena, host and disk together if each takes 4KiB, which is less than any model "
         "in use needs, and at least 1024, at most 4194304. Set, it is "
         "the number of places in the arena, too. A page costs about 400 bytes of the daemon's "
         "memory once it "
         "is used, and nothing before, except 8 bytes in the arena's file; and 2 bytes a token "
         "once an engine has said how important its rows are."},
    {.name = "max_slots",
     .type = PARAM_COUNT,
     .offset = AT(max_slots),
     .low = 1,
     .high = 64,
     .standard = "8",
     .text = "The most ranks times layer groups that a realm may have: so many pages belong to the "
             "same tokens. Each page and slot costs 8 bytes of address space; memory only where a "
             "realm has so many."},
    {.name = "max_realms",
     .type = PARAM_COUNT,
     .flags = PARAM_OF_TENANT,
     .offset = AT(max_realms),
     .low = 1,
     .high = 65536,
     .standard = "256",
     .text = "Combinations of model, engine, adapter, salt, codec set and geometry that can be "
             "known at the same time."},
    {.name = "max_sessions",
     .type = PARAM_COUNT,
     .flags = PARAM_OF_TENANT,
     .offset = AT(max_sessions),
     .low = 1,
     .high = 4096,
     .standard = "256",
     .text = "Workers that can be connected at the same time. Each takes up to three of the "
             "daemon's file descriptors."},
    {.name = "max_leases",
     .type = PARAM_COUNT,
     .flags = PARAM_OF_TENANT,
     .offset = AT(max_leases),
     .low = 1,
     .high = UINT64_C(1) << 20,
     .standard = "4096",
     .text = "Leases that one worker can hold at the same time."},
    {.name = "max_leases_total",
     .type = PARAM_COUNT,
     .flags = PARAM_OF_TENANT,
     .offset = AT(max_leases_total),
     .low = 1,
     .high = UINT64_C(1) << 24,
     .standard = "65536",
     .text = "Leases of all workers together."},
    {.name = "max_claimed_pages",
     .type = PARAM_COUNT,
     .flags = PARAM_OF_TENANT,
     .offset = AT(max_claimed_pages),
     .low = 0,
     .high = UINT64_C(1) << 26,
     .standard = "0",
     .text = "Pages that one worker can have claimed and not yet sealed, at most `max_pages`. 0: "
             "16,384, the longest path that there can be in pages of 64 tokens, or half of "
             "`max_pages` if that is less, so that one worker leaves room for others."},
    {.name = "max_requests",
     .type = PARAM_COUNT,
     .flags = PARAM_OF_TENANT,
     .offset = AT(max_requests),
     .low = 0,
     .high = 65536,
     .standard = "0",
     .text =
         "Calls of one worker that may be under way at the same time: pages that are copied, "
         "and waits. Over it a worker is told to try again. 0: no limit for each, only those of "
         "all together."},
    {.name = "claim_ms",
     .type = PARAM_MS,
     .flags = PARAM_OF_TENANT,
     .offset = AT(claim_ms),
     .low = 0,
     .high = 24 * 3600 * 1000,
     .standard = "30000",
     .text =
         "Who computes pages must seal one within this time, from its claim or the last one that "
         "it sealed; else whoever waits for them, or asks next, computes them. The late one may "
         "seal them all the same, if it comes first. 0: it has for ever."},
    {.name = "event_tokens",
     .type = PARAM_BOOL,
     .flags = PARAM_OF_TENANT,
     .offset = AT(event_tokens),
     .standard = "true",
     .text = "Whether events (`kvtrunk watch`) tell the tokens of a page that was added. They are "
             "parts of prompts."},
    {.name = "max_pins",
     .type = PARAM_COUNT,
     .flags = PARAM_OF_TENANT,
     .offset = AT(max_pins),
     .low = 0,
     .high = 65536,
     .standard = "1024",
     .text = "Prefixes that can be pinned (`kvtrunk pin`) at the same time. 0: none."},
    {.name = "max_pinned",
     .type = PARAM_SIZE,
     .flags = PARAM_OF_TENANT | PARAM_AUTO,
     .offset = AT(max_pinned),
     .low = 4096,
     .high = 64 * TiB,
     .standard = "\"auto\"",
     .text = "Bytes of pages that all pins together may keep; a page under two pins counts twice. "
             "`auto` is half of the arena, so that there is always room for what is not pinned."},
    {.name = "max_pinned_owner",
     .type = PARAM_SIZE,
     .flags = PARAM_OF_TENANT | PARAM_AUTO,
     .offset = AT(max_pinned_owner),
     .low = 4096,
     .high = 64 * TiB,
     .standard = "\"auto\"",
     .text = "The same for the pins of one owner: a user id with the name that the worker gives "
             "itself. `auto` is `max_pinned`."},
    {.name = "max_jobs",
     .type = PARAM_COUNT,
     .flags = PARAM_OF_TENANT,
     .offset = AT(max_jobs),
     .low = 1,
     .high = 4096,
     .standard = "64",
     .text = "Copies of sealed pages that can be under way or waiting for a thread at the same "
             "time; a worker that asks for more is told to try again."},
    {.name = "job_threads",
     .type = PARAM_COUNT,
     .offset = AT(job_threads),
     .low = 1,
     .high = 64,
     .standard = "2",
     .text = "Threads that copy and check sealed pages."},
    {.name = "policy",
     .type = PARAM_ENUM,
     .offset = AT(policy),
     .choices = {"worth", "lru", NULL},
     .standard = "\"worth\"",
     .text =
         "Which pages go when room is needed; always ends of prefixes only. `worth`: those that "
         "have stayed as long as pages of their kind are worth, which is learned from what "
         "comes back. It begins as `lru`, and departs from it as far as a sample of prefixes, on "
         "which both are followed, shows that more is found so. It costs up to 24 bytes a page "
         "more. "
         "`lru`: those that were unused longest. `kvtrunk simulate` compares both."},
    {.name = "grace_ms",
     .type = PARAM_MS,
     .flags = PARAM_OF_TENANT,
     .offset = AT(grace_ms),
     .low = 0,
     .high = 3600 * 1000,
     .standard = "10000",
     .text = "How long the leases of a worker are kept after its connection broke, if its process "
             "lives on. It may still be reading, and may come back."},
    {.name = "max_wait_ms",
     .type = PARAM_MS,
     .flags = PARAM_OF_TENANT,
     .offset = AT(max_wait_ms),
     .low = 0,
     .high = 3600 * 1000,
     .standard = "60000",
     .text = "The longest that one call may wait for pages which another worker computes."},
    {.name = "host",
     .type = PARAM_SIZE,
     .offset = AT(host),
     .low = 0,
     .high = 64 * TiB,
     .standard = "\"0B\"",
     .text =
         "Room for pages in the memory of the host, below the arena; with several tenants, of "
         "each: "
         "so much, in whole 64KiB, is reserved once for every one of them. Pages are copied there "
         "before they have to leave the arena, and come back when they are asked for. 0: no "
         "such tier, or, with a `disk_dir`, 64MiB, since pages go to disk and come back through "
         "it. It has places for as many pages as fit if each takes 4KiB, and at least 1024; where "
         "`max_pages` is set and more, for as many as that, if they fit. Pages "
         "that the arena has may have a copy here, so one smaller than the arena adds less than "
         "its "
         "size. Reserved at start, like the arena."},
    {.name = "disk_dir",
     .type = PARAM_TEXT,
     .flags = PARAM_PATH | PARAM_EMPTY,
     .offset = AT(disk_dir),
     .high = PARAM_MAX_TEXT_BYTES,
     .standard = "\"\"",
     .text = "Directory for pages on disk; made if it is not there, mode 0700. One that others may "
             "write, or that belongs to another user, is refused, and one with another program's "
             "`data.mdb` in it. Every sealed page is written there "
             "soon, and found again after a restart. One daemon uses it at a time. A start waits 7 "
             "s for a disk that does not answer; what is there is found when it does. "
             "Empty: pages are kept in memory only."},
    {.name = "disk",
     .type = PARAM_SIZE,
     .offset = AT(disk),
     .low = UINT64_C(16) << 20,
     .high = 64 * TiB,
     .standard = "\"16GiB\"",
     .text =
         "What the files in `disk_dir` may take, at every moment; with several tenants, those of "
         "each: all together may take so much times their number. A file that has more than that "
         "at a start is thrown away, "
         "so lowering this may cost all that is on disk. Less than the arena has is legal, and the "
         "log says so: what has no room on disk stays in memory alone. A page counts with what it "
         "takes there where others come and go; so files that are new are smaller than that, most "
         "of all with pages of less than 2KiB."},
    {.name = "ladder",
     .type = PARAM_TEXT,
     .flags = PARAM_EMPTY,
     .offset = AT(ladder),
     .high = PARAM_MAX_TEXT_BYTES,
     .standard = "\"\"",
     .text =
         "Codec sets that pages go through as they cool, 2 to 4 of them with > between them, each "
         "of "
         "fewer bits than the one before it; blanks do not count, and commas are not taken. "
         "`\"ladder\": \"i8 > i4\"` puts the coldest pages of "
         "realms with i8 into i4, when room is short in the lowest tier, before any is evicted. "
         "Realms whose set is not named, or is the last, are left alone; `f16 > i8 > i4` is "
         "possible, and each step loses bits. A page is decoded as its header says, so workers "
         "need not know. Where pages are smaller than 4KiB, set `max_pages`: else places run out "
         "before bytes do, and pages go instead of cooling. Empty: pages stay as they were "
         "sealed."},
    {.name = "promote_wait_ms",
     .type = PARAM_MS,
     .offset = AT(promote_wait_ms),
     .low = 0,
     .high = 3600 * 1000,
     .standard = "2000",
     .text =
         "How long an acquire waits for pages that come up from the host tier or from disk. "
         "Then it is answered with those that are there; the others go on coming. From a disk that "
         "answers no read for 5 seconds, or is away for so long, none are waited for: who claims "
         "what it alone has computes it again."},
    {.name = "drain_ms",
     .type = PARAM_MS,
     .flags = PARAM_RELOADS,
     .offset = AT(drain_ms),
     .low = 0,
     .high = 600 * 1000,
     .standard = "5000",
     .text =
         "On SIGTERM or SIGINT: how long copies under way may take to end; the disk's file then "
         "has 2 s more to be closed, if nothing is under way. A second signal ends the daemon "
         "at once."},
    {.name = "log_level",
     .type = PARAM_ENUM,
     .flags = PARAM_RELOADS,
     .offset = AT(log_level),
     .choices = {"error", "warning", "info", "debug"},
     .standard = "\"info\"",
     .text = "What is written to standard error: this and everything graver."},
    {.name = "tree_tokens",
     .type = PARAM_BOOL,
     .flags = PARAM_OF_TENANT | PARAM_RELOADS,
     .offset = AT(tree_tokens),
     .standard = "true",
     .text =
         "Whether `kvtrunk tree` shows the first tokens of each run of pages. They are parts of "
         "prompts: where those who may ask for reports should not see them, say `false`."},
    {.name = "audit",
     .type = PARAM_BOOL,
     .flags = PARAM_RELOADS,
     .offset = AT(audit),
     .standard = "false",
     .text = "Whether the daemon checks all that it knows after everything that happens, and stops "
             "with SIGABRT when something does not agree. For tests and for the hunt after a "
             "fault: each check walks every page."},
};
const size_t params_n = sizeof params / sizeof *params;
