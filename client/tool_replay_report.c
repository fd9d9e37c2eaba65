/* tool_replay_report.c - how a replay went: a JSON object, or a table for people. */
#include "client/tool_replay.h"

/* The smallest latency that so many percent of all do not exceed. */
static double percentile(const replay_result *r, double percent) {
    if (r->n_latencies == 0)
        return 0;
    size_t rank = (size_t)((double)r->n_latencies * percent / 100);
    return r->latencies_us[rank < r->n_latencies ? rank : r->n_latencies - 1];
}

static void put(const char *key, uint64_t value) {
    printf("\"%s\":%llu,", key, (unsigned long long)value);
}

static void print_json(const replay_options *o, const reuse_counts *possible, uint64_t max_pages,
                       const replay_result *r) {
    const replay_counts *c = &r->counts;
    const char *comma = "";
    printf("{\"trace\":");
    tool_json_text(stdout, o->trace);
    printf(",");
    put("workers", o->n_workers);
    put("requests", c->requests);
    put("tokens_asked", c->tokens_asked);
    put("tokens_served", c->tokens_served);
    put("tokens_best", possible->tokens_best);
    put("wrong_bytes", c->wrong_bytes);
    printf("\"check\":\"%s\",", replay_is_exact(o) ? "exact" : "near");
    put("pages_recompressed", c->pages_recompressed);
    put("pages_as_laddered", c->pages_as_laddered);
    put("pages_shared", c->pages_shared);
    put("pages_host", c->pages_host);
    put("pages_disk", c->pages_disk);
    put("pages_sealed", c->pages_sealed);
    put("bytes_read", c->bytes_read);
    put("page_tokens", o->page_tokens);
    put("unique_pages", possible->unique_pages);
    if (max_pages)
        put("max_pages", max_pages);
    printf("\"acquire_us\":{\"p50\":%.1f,\"p99\":%.1f},\"seconds\":%.3f,\"errors\":{",
           percentile(r, 50), percentile(r, 99), r->seconds);
    for (int i = 0; i < KVT_N_STATUS; i++)
        if (c->errors[i]) {
            printf("%s\"%s\":%llu", comma, kvt_status_name((kvt_status)i),
                   (unsigned long long)c->errors[i]);
            comma = ",";
        }
    printf("}}\n");
}

static double share(uint64_t part, uint64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static void row(const char *name, uint64_t value, const char *note) {
    printf("%-30s %15s   %s\n", name, tool_number(value), note);
}

static void print_table(const replay_options *o, const reuse_counts *possible, uint64_t max_pages,
                        const replay_result *r) {
    const replay_counts *c = &r->counts;
    char note[160];
    snprintf(note, sizeof note, "%llu worker process%s, %.1f s", (unsigned long long)o->n_workers,
             o->n_workers == 1 ? "" : "es", r->seconds);
    row("requests", c->requests, note);
    row("tokens asked for", c->tokens_asked, "");
    snprintf(note, sizeof note, "%.2f %%", share(c->tokens_served, c->tokens_asked));
    row("tokens served", c->tokens_served, note);
    snprintf(note, sizeof note, "%.2f %%: one request after another, room for all",
             share(possible->tokens_best, possible->tokens));
    row("  the best possible", possible->tokens_best, note);
    snprintf(note, sizeof note, "of %llu tokens; the trace has %s different ones%s%s",
             (unsigned long long)o->page_tokens, tool_number(possible->unique_pages),
             o->capacity ? ", room was for " : "", o->capacity ? tool_number(max_pages) : "");
    row("pages sealed", c->pages_sealed, note);
    row("pages shared", c->pages_shared, "served to a process that had not sealed them");
    if (c->pages_host + c->pages_disk) {
        row("  from the host's memory", c->pages_host,
            "served, and not in the arena when asked for");
        row("  from the disk", c->pages_disk, "");
    }
    snprintf(note, sizeof note, "%s decoded from the %s", tool_size(c->bytes_read),
             r->on_gpu ? "arena on the GPU, by the host" : "mapped arena");
    row(r->on_gpu ? "bytes read" : "bytes read without a copy", c->bytes_read, note);
    snprintf(note, sizeof note, "half of them within this; 99 %% within %.0f us",
             percentile(r, 99));
    printf("%-30s %12.0f us   %s\n", "acquire", percentile(r, 50), note);
    for (int i = 0; i < KVT_N_STATUS; i++)
        if (c->errors[i])
            row(kvt_status_name((kvt_status)i), c->errors[i], kvt_status_text((kvt_status)i));
    if (c->pages_recompressed) {
        snprintf(note, sizeof note,
                 "by the daemon's ladder; %s of them exactly so, the others near",
                 tool_number(c->pages_as_laddered));
        row("pages recompressed", c->pages_recompressed, note);
    }
    row("wrong bytes", c->wrong_bytes,
        replay_is_exact(o) ? c->pages_recompressed
                                 ? "every byte of all other pages that were read was checked"
                                 : "every byte that was read was checked"
                           : "every row that was read was checked to be near");
}

void replay_report(const replay_options *options, const reuse_counts *possible, uint64_t max_pages,
                   const replay_result *result) {
    if (options->json)
        print_json(options, possible, max_pages, result);
    else
        print_table(options, possible, max_pages, result);
}
