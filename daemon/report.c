/* report.c - see report.h. */
#include "daemon/report.h"
#include "daemon/json_write.h"

#include <stdio.h>
#include <unistd.h>

#define TEXT_OF(x)    #x
#define VERSION_OF(x) TEXT_OF(x)

/* The names in a report are the fields' own, so that core.h explains them. */
#define COUNTS(X)                                                                                  \
    X(requests)                                                                                    \
    X(refused)                                                                                     \
    X(nonsense)                                                                                    \
    X(acquires)                                                                                    \
    X(tokens_asked)                                                                                \
    X(tokens_served)                                                                               \
    X(full_hits)                                                                                   \
    X(partial_hits)                                                                                \
    X(misses)                                                                                      \
    X(pages_sealed)                                                                                \
    X(pages_duplicate)                                                                             \
    X(pages_corrupt)                                                                               \
    X(values_saturated)                                                                            \
    X(pages_replaced)                                                                              \
    X(pages_passed)                                                                                \
    X(pages_evicted)                                                                               \
    X(bytes_evicted)                                                                               \
    X(pages_vacated)                                                                               \
    X(bytes_vacated)                                                                               \
    X(seals_refused_full)                                                                          \
    X(claims_expired)                                                                              \
    X(claims_cut)                                                                                  \
    X(claims_taken_over)                                                                           \
    X(waits)                                                                                       \
    X(sessions_opened)                                                                             \
    X(sessions_resumed)                                                                            \
    X(sessions_ended)                                                                              \
    X(sessions_died)                                                                               \
    X(sessions_expired)                                                                            \
    X(uids_refused)                                                                                \
    X(duplicates_refused)                                                                          \
    X(find_visits)                                                                                 \
    X(pin_hits)                                                                                    \
    X(pins_expired)                                                                                \
    X(flushes)                                                                                     \
    X(pages_flushed)                                                                               \
    X(pages_demoted)                                                                               \
    X(pages_written)                                                                               \
    X(pages_read)                                                                                  \
    X(pages_promoted)                                                                              \
    X(pages_lost)                                                                                  \
    X(pages_damaged)                                                                               \
    X(tier_errors)                                                                                 \
    X(reads_failed)                                                                                \
    X(pages_found)                                                                                 \
    X(pages_cooled)                                                                                \
    X(bytes_cooled)                                                                                \
    X(tokens_from_host)                                                                            \
    X(tokens_from_disk)                                                                            \
    X(rows_important)                                                                              \
    X(sessions)                                                                                    \
    X(orphans)                                                                                     \
    X(leases)                                                                                      \
    X(groups)                                                                                      \
    X(waiting)                                                                                     \
    X(jobs)                                                                                        \
    X(realms)                                                                                      \
    X(pages_max)                                                                                   \
    X(pages_free)                                                                                  \
    X(pages_filling)                                                                               \
    X(pages_evictable)                                                                             \
    X(pages_pinned)                                                                                \
    X(arena_bytes)                                                                                 \
    X(arena_used_bytes)                                                                            \
    X(arena_waste_bytes)                                                                           \
    X(frames_used)                                                                                 \
    X(frames_max)                                                                                  \
    X(pins)                                                                                        \
    X(pinned_bytes)                                                                                \
    X(views)                                                                                       \
    X(pages_viewed)                                                                                \
    X(flushed_held)                                                                                \
    X(pages_device)                                                                                \
    X(pages_host)                                                                                  \
    X(pages_disk)                                                                                  \
    X(pages_dirty)                                                                                 \
    X(pages_never)                                                                                 \
    X(host_bytes)                                                                                  \
    X(host_used_bytes)                                                                             \
    X(host_frames_max)                                                                             \
    X(disk_bytes)                                                                                  \
    X(disk_used_bytes)

#define ONE(name) +1
_Static_assert(sizeof(core_counts) == (0 COUNTS(ONE)) * sizeof(uint64_t),
               "a count was added to core_counts: add it to COUNTS");

static void put_counts(json_writer *w, const core *c) {
    core_counts counts;
    core_count(c, &counts);
    json_open(w, "counts", '{');
#define PUT(name) json_put_u64(w, #name, counts.name);
    COUNTS(PUT)
#undef PUT
    json_close(w, '}');
}

static void put_config(json_writer *w, const param_values *values) {
    char text[1024];
    json_open(w, "config", '{');
    for (size_t i = 0; i < params_n; i++) {
        if (params[i].type == PARAM_TENANTS)
            continue; /* there may be others, which are nobody else's business */
        param_print(&params[i], values, text, sizeof text);
        json_put_raw(w, params[i].name, text);
    }
    json_close(w, '}');
}

/* An element that does not fit is taken back, and so is all behind it. */
static int put_session(void *context, const core_session_info *session) {
    json_writer *w = context, before = *w;
    json_open(w, NULL, '{');
    json_put_u64(w, "session", session->session);
    json_put_text(w, "name", session->name);
    json_put_u64(w, "pid", session->peer.pid);
    json_put_u64(w, "uid", session->peer.uid);
    json_put_bool(w, "orphaned", session->orphaned);
    if (session->arena)
        json_put_u64(w, "arena", session->arena - 1);
    else
        json_put_text(w, "arena", "");
    json_put_u64(w, "leases", session->leases);
    json_put_u64(w, "claimed_pages", session->claimed_pages);
    json_put_u64(w, "staging_bytes", session->staging_bytes);
    json_put_u64(w, "requests", session->requests);
    json_close(w, '}');
    if (!w->full)
        return 0;
    *w = before;
    return 1;
}

static void put_arenas(json_writer *w, const report_facts *facts, const core *c) {
    json_open(w, "arenas", '[');
    for (uint32_t i = 0; i < facts->n_arenas; i++) {
        const report_arena *a = &facts->arenas[i];
        core_arena_counts n;
        core_count_arena(c, i, &n);
        json_open(w, NULL, '{');
        json_put_u64(w, "arena", i);
        json_put_text(w, "where", a->where);
        json_put_u64(w, "bytes", n.arena_bytes);
        json_put_u64(w, "used_bytes", n.used_bytes);
        json_put_u64(w, "waste_bytes", n.waste_bytes);
        json_put_u64(w, "frames_used", n.frames_used);
        json_put_u64(w, "ranks", n.ranks);
        json_put_text(w, "state", a->failure ? a->failure : "works");
        json_put_text(w, "path", a->path);
        json_close(w, '}');
    }
    json_close(w, ']');
}

/* Room for what stands behind the list of sessions. */
enum { STATUS_TAIL_BYTES = 32 };

static void put_disk(json_writer *w, const disk_stats *stats, const core *c) {
    static const char *const states[] = {[CORE_DISK_WORKS] = "works",
                                         [CORE_DISK_FULL] = "full",
                                         [CORE_DISK_FAILS] = "fails",
                                         [CORE_DISK_AWAY] = "away"};
    json_open(w, "disk", '{');
    core_disk state = core_disk_state(c);
    int is_silent = state == CORE_DISK_WORKS && stats->silent_ms >= DISK_SILENT_MS;
    json_put_text(w, "state", is_silent ? "silent" : states[state]);
    json_put_u64(w, "silent_ms", stats->silent_ms);
    json_put_u64(w, "records", stats->records);
    json_put_u64(w, "file_used_bytes", stats->bytes);
    json_put_u64(w, "file_bytes", stats->file_bytes);
    json_put_u64(w, "aside_bytes", stats->aside_bytes);
    json_put_u64(w, "budget_bytes", stats->budget_bytes);
    json_put_u64(w, "page_bytes", stats->page_bytes);
    json_put_u64(w, "stored_bytes", stats->stored_bytes);
    json_put_u64(w, "full", stats->full);
    json_put_u64(w, "corrupt", stats->corrupt);
    json_put_u64(w, "foreign", stats->foreign);
    json_put_u64(w, "dropped", stats->dropped);
    json_put_u64(w, "collisions", stats->collisions);
    json_put_u64(w, "restarts", stats->restarts);
    json_put_u64(w, "files_lost", stats->files_lost);
    json_put_u64(w, "moved_aside", stats->moved_aside);
    json_close(w, '}');
}

size_t report_status(const report_facts *facts, const core *c, uint64_t now_ms, char *to,
                     size_t room) {
    json_writer w;
    json_start(&w, to, room - STATUS_TAIL_BYTES);
    json_open(&w, NULL, '{');
    json_put_text(&w, "version",
                  VERSION_OF(KVT_VERSION_MAJOR) "." VERSION_OF(KVT_VERSION_MINOR) "." VERSION_OF(
                      KVT_VERSION_PATCH));
    json_put_hex(&w, "boot_id", core_boot_id(c));
    json_put_text(&w, "socket", facts->socket);
    if (facts->n_arenas == 1) /* of several: "arenas" */
        json_put_text(&w, "arena_path", facts->arenas[0].path);
    json_put_text(&w, "device", facts->device);
    if (facts->n_arenas == 1)
        json_put_text(&w, "arena_where", facts->arenas[0].where);
    json_put_text(&w, "config_file", facts->config_file);
    json_put_u64(&w, "pid", (uint64_t)getpid());
    json_put_u64(&w, "uptime_s", (now_ms - facts->started_ms) / 1000);
    json_put_u64(&w, "listeners_replaced", facts->listeners_replaced);
    put_counts(&w, c);
    if (facts->on_disk)
        put_disk(&w, facts->on_disk, c);
    put_config(&w, facts->values);
    put_arenas(&w, facts, c);
    json_open(&w, "sessions_open", '['); /* "sessions" is their number, a count */
    if (w.full)                          /* the room is less than what a message always has */
        return (size_t)snprintf(to, room, "{\"truncated\":true}");
    int cut = core_each_session(c, put_session, &w);
    w.room = room;
    json_close(&w, ']');
    if (cut)
        json_put_bool(&w, "truncated", 1);
    json_close(&w, '}');
    return w.n_bytes;
}

/* --- tree --------------------------------------------------------------------------------------
 */

enum {
    FIRST_TOKENS = 8,
    TREE_TAIL_BYTES = 24, /* {"truncated":true} and its newline */
};

typedef struct tree_report {
    json_writer writer;
    uint32_t lines_left;
    int show_tokens;
} tree_report;

static void put_realm(json_writer *w, const core_realm_info *realm) {
    const kvt_realm *desc = realm->desc;
    json_open(w, NULL, '{');
    json_put_u64(w, "realm", realm->realm);
    json_put_text(w, "model", desc->model);
    json_put_text(w, "engine", desc->engine ? desc->engine : "");
    json_put_text(w, "adapter", desc->adapter ? desc->adapter : "");
    json_put_text(w, "adapter_version", desc->adapter_version ? desc->adapter_version : "");
    json_put_bool(w, "salted", desc->salt && desc->salt[0]); /* a salt may be a secret */
    json_put_text(w, "codec", desc->codec ? desc->codec : "");
    json_put_u64(w, "page_tokens", desc->geometry.page_tokens);
    json_put_u64(w, "page_bytes", realm->page_bytes);
    if (desc->geometry.n_ranks > 1)
        json_put_u64(w, "ranks", desc->geometry.n_ranks);
    if (desc->geometry.n_groups > 1) {
        json_open(w, "groups", '[');
        for (uint32_t i = 0; i < desc->geometry.n_groups; i++) {
            json_open(w, NULL, '{');
            json_put_u64(w, "layers", desc->geometry.groups[i].n_layers);
            json_put_u64(w, "window", desc->geometry.groups[i].window);
            json_close(w, '}');
        }
        json_close(w, ']');
    }
    json_close(w, '}');
}

static void put_run(json_writer *w, const core_realm_info *realm, const radix_run *run,
                    const uint32_t *first_tokens, uint32_t n_first_tokens) {
    uint32_t n_groups = realm->desc->geometry.n_groups;
    json_open(w, NULL, '{');
    json_put_u64(w, "realm", realm->realm);
    json_put_u64(w, "depth", run->depth);
    json_put_u64(w, "pages", run->n_pages);
    json_put_u64(w, "tokens", run->n_tokens);
    json_put_u64(w, "children", run->n_children);
    json_put_u64(w, "pins", run->pins);
    json_put_bool(w, "held", run->held);
    json_put_bool(w, "busy", run->busy);
    if (run->hidden)
        json_put_bool(w, "flushed", 1);
    if (n_groups > 1) {
        json_open(w, "group_pages", '[');
        for (uint32_t i = 0; i < n_groups; i++)
            json_put_u64(w, NULL, realm->group_pages[i]);
        json_close(w, ']');
    }
    if (n_first_tokens > 0) {
        json_open(w, "first_tokens", '[');
        for (uint32_t i = 0; i < n_first_tokens; i++)
            json_put_u64(w, NULL, first_tokens[i]);
        json_close(w, ']');
    }
    json_close(w, '}');
}

static int put_line(void *context, const core_realm_info *realm, const radix_run *run,
                    const uint32_t *first_tokens, uint32_t n_first_tokens) {
    tree_report *report = context;
    json_writer before = report->writer;
    if (report->lines_left == 0)
        return 1;
    if (!run)
        put_realm(&report->writer, realm);
    else
        put_run(&report->writer, realm, run, first_tokens,
                !report->show_tokens            ? 0
                : n_first_tokens > FIRST_TOKENS ? FIRST_TOKENS
                                                : n_first_tokens);
    json_newline(&report->writer);
    report->lines_left--;
    if (!report->writer.full)
        return 0;
    report->writer = before;
    return 1;
}

size_t report_tree(const report_facts *facts, const core *c, uint32_t max_lines, char *to,
                   size_t room) {
    tree_report report = {.lines_left = max_lines, .show_tokens = facts->values->tree_tokens != 0};
    json_start(&report.writer, to, room - TREE_TAIL_BYTES);
    int cut = core_each_run(c, put_line, &report);
    if (cut) {
        report.writer.room = room;
        json_open(&report.writer, NULL, '{');
        json_put_bool(&report.writer, "truncated", 1);
        json_close(&report.writer, '}');
        json_newline(&report.writer);
    }
    return report.writer.n_bytes;
}
