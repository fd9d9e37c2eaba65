/*
 * disk.c - the simulated disk: records that outlive daemons, under the rules of the real one
 * (daemon/disk.h): a key finds, everything is compared, a parent is there before its child.
 */
#include "daemon/core_state.h"
#include "tests/check.h"
#include "tests/sim/world.h"

static sim_record *find(sim_world *w, const tier_key *key) {
    for (uint32_t i = 0; i < SIM_MAX_RECORDS; i++)
        if (w->records[i].used && tier_key_equal(&w->records[i].name.key, key))
            return &w->records[i];
    return NULL;
}

static int same_page(const sim_record *r, const core_job *job, const core_record *name) {
    return r->n_realm_bytes == job->n_realm_bytes &&
           memcmp(r->realm_bytes, job->realm_bytes, job->n_realm_bytes) == 0 &&
           r->name.parent_serial == name->parent_serial && r->name.slot == name->slot &&
           r->name.depth == name->depth && tier_key_equal(&r->name.parent, &name->parent) &&
           r->name.n_tokens == name->n_tokens &&
           memcmp(r->name.tokens, name->tokens, name->n_tokens * sizeof *name->tokens) == 0;
}

static void drop(sim_record *r) {
    free(r->bytes);
    *r = (sim_record){0};
}

static kvt_status write_one(sim_world *w, const core_job *job, core_copy *copy, core_record *name) {
    if (name->parent_in_job) {
        const core_copy *before = &job->copies[name->parent_in_job - 1];
        CHECK(before < copy);
        if (before->status != KVT_OK)
            return KVT_EORDER;
        name->parent_serial = job->records[name->parent_in_job - 1].serial;
    }
    if (name->depth > 0) {
        const sim_record *parent = find(w, &name->parent);
        if (!parent || parent->name.serial != name->parent_serial)
            return KVT_EORDER;
    }
    sim_record *r = find(w, &name->key), *other = w->records;
    if (r && !same_page(r, job, name))
        return KVT_EEXIST;
    while (!r && other < w->records + SIM_MAX_RECORDS && other->used)
        other++;
    if (other == w->records + SIM_MAX_RECORDS || sim_chance(w, 20))
        return KVT_EFULL; /* what stands there stays */
    if (r) {
        name->serial = r->name.serial;
        drop(r);
    } else {
        name->serial = ++w->last_serial;
    }
    name->stored = 1 + sim_below(w, copy->bytes);
    r = r ? r : other;
    *r = (sim_record){.used = 1, .name = *name, .n_bytes = copy->bytes, .rows = copy->rows};
    r->bytes = malloc(copy->bytes);
    CHECK(r->bytes && copy->from_offset + copy->bytes <= w->config.host_bytes);
    memcpy(r->bytes, w->host + copy->from_offset, copy->bytes);
    r->n_realm_bytes = job->n_realm_bytes;
    memcpy(r->realm_bytes, job->realm_bytes, job->n_realm_bytes);
    r->damaged = sim_chance(w, 10);
    return KVT_OK;
}

static kvt_status read_one(sim_world *w, const core_job *job, const core_copy *copy,
                           const core_record *name) {
    sim_record *r = find(w, &name->key);
    if (!r || r->name.serial != name->serial || !same_page(r, job, name) ||
        r->n_bytes != copy->bytes || sim_chance(w, 5))
        return KVT_ENOENT;
    if (r->damaged) {
        drop(r);
        return KVT_ECORRUPT;
    }
    CHECK(copy->to_offset + copy->bytes <= w->config.host_bytes);
    memcpy(w->host + copy->to_offset, r->bytes, r->n_bytes);
    return KVT_OK;
}

static kvt_status erase_one(sim_world *w, const core_record *name) {
    sim_record *r = find(w, &name->key);
    if (!r || r->name.serial != name->serial)
        return KVT_ENOENT;
    drop(r);
    return KVT_OK;
}

void sim_disk_run(sim_world *w, core_job *job) {
    w->disk_is_as_checked = 0;
    int is_down = sim_chance(w, 20);
    if (is_down && sim_chance(w, 500)) { /* else it fails, and its process lives */
        core_disk_up(w->core, 0);
        sim_push(w, (sim_event){.kind = EVENT_DISK_UP}, sim_chance(w, 300) ? SIM_SILENT_MS : 2000);
    }
    for (uint32_t i = 0; i < job->n_copies; i++) {
        core_copy *copy = &job->copies[i];
        if (is_down && job->kind == CORE_JOB_WRITE && sim_chance(w, 500))
            write_one(w, job, copy, &job->records[i]); /* done, and nobody is told */
        if (is_down)
            copy->status = KVT_EIO;
        else if (job->kind == CORE_JOB_WRITE)
            copy->status = write_one(w, job, copy, &job->records[i]);
        else if (job->kind == CORE_JOB_READ)
            copy->status = read_one(w, job, copy, &job->records[i]);
        else
            copy->status = erase_one(w, &job->records[i]);
        w->n.disk_writes += job->kind == CORE_JOB_WRITE && copy->status == KVT_OK;
        if (job->kind != CORE_JOB_READ || copy->status != KVT_OK)
            continue;
        w->n.disk_reads++;
        w->n.ranks_back +=
            job->records[i].slot >= w->geometry.n_groups && job->records[i].serial <= w->old_serial;
    }
    if (is_down && sim_chance(w, 300)) /* its process died: it looks through all of it again */
        w->scan_depth = w->scan_at = 0;
    if (sim_chance(w, is_down ? 300 : 25)) {
        sim_disk_close(w);
        w->lost_serial = w->last_serial;
        core_disk_lost(w->core);
        w->n.lost++;
    }
}

static void check_page(void *context, page_handle page, const page_entry *entry) {
    sim_world *w = context;
    const tier_page *at = tier_of(w->core, page);
    /* A reader may have found it damaged, and has not said so yet. */
    if (entry->node == RADIX_NONE || at->flags & TIER_READING || !(at->flags & TIER_ON_DISK) ||
        at->serial <= w->lost_serial)
        return;
    const sim_record *r = find(w, &at->key);
    if (!r || r->name.serial != at->serial)
        sim_fail(w, "the core has page %u (%u deep) on disk with serial %llu; the disk has %s",
                 (uint32_t)page, at->depth, (unsigned long long)at->serial,
                 r ? "another under its key" : "nothing under its key");
}

/* What the core believes is on disk is there. Only what was lost with all of it may be missing. */
void sim_disk_check(sim_world *w) {
    w->n.silent += w->core->tiers && w->core->tiers->n_absent && disk_is_silent(w->core);
    if (w->disk_is_as_checked || !w->core->tiers)
        return;
    page_table_each(w->core->pages, check_page, w);
    w->disk_is_as_checked = 1;
}

/* --- the scan ----------------------------------------------------------------------------------
 */

void sim_disk_start(sim_world *w) {
    w->scan_depth = w->scan_at = 0;
    w->scanning = 1;
    w->old_serial = w->last_serial;
    sim_push(w, (sim_event){.kind = EVENT_SCAN}, 50);
}

/* A record whose parent is gone is an orphan: dropped. */
static int is_orphan(sim_world *w, const sim_record *r) {
    const sim_record *parent = find(w, &r->name.parent);
    return r->name.depth > 0 && (!parent || parent->name.serial != r->name.parent_serial);
}

static void found(sim_world *w, sim_record *r) {
    if (is_orphan(w, r)) {
        drop(r);
        return;
    }
    core_found f = {.realm = core_found_realm(w->core, r->realm_bytes, r->n_realm_bytes),
                    .record = &r->name,
                    .bytes = r->n_bytes,
                    .rows = (uint16_t)r->rows,
                    .disk_bytes = 1000};
    if (f.realm == 0)
        return;
    core_found_page(w->core, &f);
    w->n.found++;
    w->n.parts_found += r->name.slot > 0;
}

void sim_disk_scan(sim_world *w) {
    for (int n = 0; n < 8; n++) {
        uint32_t deepest = 0;
        for (uint32_t i = 0; i < SIM_MAX_RECORDS; i++)
            if (w->records[i].used && w->records[i].name.depth > deepest)
                deepest = w->records[i].name.depth;
        while (w->scan_at < SIM_MAX_RECORDS &&
               (!w->records[w->scan_at].used || w->records[w->scan_at].name.depth != w->scan_depth))
            w->scan_at++;
        if (w->scan_at < SIM_MAX_RECORDS) {
            found(w, &w->records[w->scan_at++]);
        } else if (w->scan_depth < deepest) {
            w->scan_depth++;
            w->scan_at = 0;
        } else {
            core_found_all(w->core);
            w->scanning = 0;
            return;
        }
    }
    sim_push(w, (sim_event){.kind = EVENT_SCAN}, 50);
}

void sim_disk_close(sim_world *w) {
    for (uint32_t i = 0; i < SIM_MAX_RECORDS; i++)
        drop(&w->records[i]);
}
