#!/usr/bin/env python3
"""Plants faults in the core, one at a time, and sees the simulator find each within 2,000 seeds (most within 50;
a few need much to come together): a simulator that finds nothing proves nothing unless it could.

    mutants.py [--root FOLDER] [--build FOLDER] [--cc CC] [--only WORD]

A mutant is a change of a few places in one source of the daemon, which is compiled and linked with
what the simulator of the build folder is made of.
"""
import argparse
import glob
import os
import subprocess
import sys
import tempfile

SEEDS = "2000"
# What these two do shows only at the end: something that never happened, of all that should have.
# Of so few seeds a sound core has met it all.
FEW_SEEDS = "200"
NEVER = ("an expired claim whose places nobody gets",
         "keys that are the same for all ranks and layer groups")
LIMIT_S = 600
FLAGS = ["-D_GNU_SOURCE", "-std=c17", "-O2", "-g", "-w"]

# Which tenant a core is of, and the first tenant's core, for faults that reach from one to the other.
OTHER = """
static int tenant_of(const core *c) {
    return c->tenant[sizeof "tenant"] - '0';
}
static core *first_tenant(core *c) {
    static core *all[8];
    static uint64_t boot_id, at_ms;
    uint64_t now_ms = c->env.now_ms(c->env.context);
    if (now_ms < at_ms || boot_id != c->config.boot_id)
        for (int i = 0; i < 8; i++)
            all[i] = 0;
    boot_id = c->config.boot_id;
    at_ms = now_ms;
    all[tenant_of(c)] = c;
    return all[0] ? all[0] : c;
}
"""
FRAME_ALLOC = ("kvt_status frame_alloc(core *c, uint32_t arena, uint64_t bytes,"
               " uint32_t *ret_frame) {\n")

MUTANTS = [
    ("a write that overtakes an erasure of its key", "daemon/core_spill.c",
     [(" || key_is_leaving(t, &record.key)) {", ") {")]),
    ("an unpinned page", "daemon/core_acquire.c",
     [("        l->partial_tokens = m.partial_tokens;\n        radix_pin(c->tree, l->partial);\n",
       "        l->partial_tokens = m.partial_tokens;\n")]),
    ("a claim that is not handed over", "daemon/core_lease.c",
     [("            node_set_filler(c, node, NONE);\n            c->wake = 1;\n",
       "            c->wake = 1;\n")]),
    ("an expired claim whose places nobody gets", "daemon/core_claim.c",
     [("    uint32_t patience = 64;\n", "    uint32_t patience = 0;\n")]),
    ("an expired claim that is cut under another's", "daemon/core_claim.c",
     [("expired_at(c, l->tail) == n_pins", "1")]),
    ("a page that is visible before it is sealed", "daemon/core_seal.c",
     [("static kvt_status copy_settle(core *c, const session *s, const core_job *job,"
       " core_copy *copy) {\n    if (copy->status != KVT_OK) {",
       "static kvt_status copy_settle(core *c, const session *s, const core_job *job,"
       " core_copy *copy) {\n    if (copy->status != KVT_OK && copy->status != KVT_EINTERNAL) {"),
      ("/* May this page of the message be taken? */\n",
       "static kvt_status copy_settle(core *c, const session *s, const core_job *job,"
       " core_copy *copy);\n"),
      ("    c->realms[l->realm].n_jobs++;\n    c->env.submit(c->env.context, job);\n",
       "    c->realms[l->realm].n_jobs++;\n"
       "    for (uint32_t i = 0; i < job->n_copies; i++)\n"
       "        copy_settle(c, s, job, &job->copies[i]);\n"
       "    c->env.submit(c->env.context, job);\n")]),
    ("a page that was flushed and can be had", "daemon/core_flush.c",
     [("                radix_hide(c->tree, top);\n                c->n_hidden++;\n", "")]),
    ("what was flushed and stays on disk for who leases it", "daemon/core_flush.c",
     [("    let_go_on_disk(c);\n    c->counts.flushes++;\n", "    c->counts.flushes++;\n")]),
    ("a damaged page that stays", "daemon/core_damage.c",
     [("    flush_from(c, r, entry->node);\n", ""),
      ("    int forgotten = is_forgotten(c, page_get(c->pages, page));\n",
       "    int forgotten = k->copy.status == KVT_ECORRUPT;\n")]),
    ("a page that goes and is not told of", "daemon/core_evict.c",
     [("    event_removed(c, node);\n", "")]),
    ("ranks that are told different lengths", "daemon/core_group.c",
     [("    if (!g->answered) {\n", "    if (1) {\n")]),
    ("an answer to ranks that nothing keeps", "daemon/core_group.c",
     [("        radix_pin(c->tree, l->tail);\n        if (l->partial != RADIX_NONE)\n"
       "            radix_pin(c->tree, l->partial);\n        c->n_groups++;\n",
       "        c->n_groups++;\n"),
      ("    lease_drop_path(c, anchor, anchor->tail, anchor->partial);\n", "")]),
    ("a page that is held when one rank has sealed it", "daemon/core_slots.c",
     [("int node_is_sealed(const core *c, radix_node node) {\n",
       "int node_is_sealed(const core *c, radix_node node) {\n"
       "    return node_has(c, node, 0);\n")]),
    ("a view whose pages are taken from under it", "daemon/core_room.c",
     [("        page_is_viewed(c, page) || entry->state", "        entry->state"),
      ("->node) || page_is_viewed(c, page);", "->node);")]),
    ("a view that does not keep its window", "daemon/core_view.c",
     [("        name_page(c, v->page);\n",
       "        name_page(c, v->page);\n"
       "        if (number * r->page_tokens >= l->sinks)\n"
       "            page_drop(c, v->page);\n")]),
    ("a view that lacks a row", "daemon/core_view.c",
     [("h.tokens, req->sinks, req->window,\n",
       "h.tokens, req->sinks,\n                     req->window - (req->window > 9),\n")]),
    ("a rank that asks for another view and is served", "daemon/core_group.c",
     [("(is_view && !view_is_same(&g->anchor, req))", "0")]),
    ("a view that ends where its windows lack rows", "daemon/core_view.c",
     [("        named = named < end ? named : end;\n", "        named = first;\n")]),
    ("an importance that goes to the next row", "daemon/core_importance.c",
     [("            if (first + row >= req->first_row)\n                note(c, node, row, ",
       "            if (first + row >= req->first_row)\n                note(c, node, row ^ 1, ")]),
    ("a page whose importance stays behind", "daemon/core_evict.c",
     [("    importance_gone(c, node);\n", "")]),
    ("a lease that is not told what came from the disk", "daemon/core_promote.c",
     [("        tier_of(c, copy->page)->read_at = ++c->tiers->moves;\n", "")]),
    ("a page that cools while it is leased", "daemon/core_cool.c",
     [("    if (entry->node == RADIX_NONE || radix_is_busy(c->tree, entry->node) ||\n"
       "        page_is_viewed(c, copy->page))\n        return 0;\n",
       "    if (entry->node == RADIX_NONE)\n        return 0;\n")]),
    ("a first page that cools as all others do", "daemon/core_cool.c",
     [("                     .is_first = radix_depth(c->tree, entry->node) == 1};",
       "                     .is_first = 0};")]),
    ("what was flushed is written when the disk was lost", "daemon/core_lost.c",
     [("int never = entry->node != RADIX_NONE && is_flushed(c, entry->node);", "int never = 0;")]),
    ("keys that are the same for all ranks and layer groups", "store/tier_key.c",
     [("    tier_store_u32(bytes + TIER_KEY_BYTES, slot);\n",
       "    tier_store_u32(bytes + TIER_KEY_BYTES, 0 * slot);\n")]),
    ("a page that is found as another rank's or layer group's", "daemon/core_found.c",
     [("    page = node_page(c, node, record->slot);\n    if (!page &&",
       "    page = node_page(c, node, record->slot ^ (radix_slots(c->tree, node) > 1));\n"
       "    if (!page &&")]),
    ("a run of tokens that is held without a rank's page", "daemon/core_found.c",
     [("        if (r->windows[slot % r->n_groups] && slot != record->slot && slot != r->spine)\n",
       "        if (slot != record->slot)\n")]),
    ("a run of tokens that stays though it was found in part", "daemon/core_found.c",
     [("            !radix_is_busy(c->tree, node))\n            node_discard(c, node);",
       "            !radix_is_busy(c->tree, node))\n            continue;")]),
    ("a rank that is told of what has come up for another", "daemon/core_window.c",
     [("    for (uint32_t rank = 0; rank < r->n_ranks; rank++) {\n"
       "        uint32_t slot = slot_of(r, rank, group);\n        if (!node_has",
       "    for (uint32_t rank = 0; rank < (in_arena ? 1 : r->n_ranks); rank++) {\n"
       "        uint32_t slot = slot_of(r, rank, group);\n        if (!node_has")]),
    ("a window that is told though it lies below", "daemon/core_window.c",
     [("!all_ranks_have(c, r, node, group, in_arena))", "!all_ranks_have(c, r, node, group, 0))")]),
    ("a page that is found in another tenant's tree", "daemon/core_session.c",
     [("int core_has_uid(const core *c, uint32_t uid) {\n",
       "int core_has_uid(const core *c, uint32_t uid) {\n    if (uid < 900)\n        return 1;\n")]),
    ("an arena that is shown to another tenant", "daemon/core_realm.c",
     [("    const char *path = c->arenas[rq->session->arena - 1].path;\n",
       "    const char *path = first_tenant(c)->arenas[rq->session->arena - 1].path;\n"),
      ("void serve_realm(", OTHER + "void serve_realm(")]),
    ("a page that is charged to another tenant's quota", "daemon/core_evict.c",
     [(FRAME_ALLOC,
       OTHER + FRAME_ALLOC +
       "    uint32_t frame;\n"
       "    if (first_tenant(c) != c) {\n"
       "        if (frame_take(first_tenant(c), arena, bytes, &frame) != KVT_OK)\n"
       "            return KVT_EFULL;\n"
       "        frame_free(first_tenant(c), frame);\n"
       "    }\n")]),
    ("a pin that is charged to another tenant's quota", "daemon/core_pin.c",
     [("/* Answers and returns 0 if the pin", OTHER + "/* Answers and returns 0 if the pin"),
      ("    uint64_t limit = c->config.max_pinned_bytes, owner",
       "    if (first_tenant(c) != c)\n"
       "        all += first_tenant(c)->pinned_bytes;\n"
       "    uint64_t limit = c->config.max_pinned_bytes, owner")]),
    ("a tenant whose tails go for another's pages", "daemon/core_evict.c",
     [(FRAME_ALLOC,
       OTHER + FRAME_ALLOC +
       "    if (first_tenant(c) != c)\n"
       "        evict_coldest(first_tenant(c));\n")]),
    ("an event that is told to another tenant", "daemon/core_event.c",
     [("static void emit(", OTHER + "static void emit("),
      ("        c->env.event(c->env.context, event);\n",
       "        c->env.event(first_tenant(c)->env.context, event);\n")]),
    ("a pin that keeps nothing", "daemon/core_pin.c",
     [("    radix_pin(c->tree, p->tail);\n", ""),
      ("    p->number = 0;\n    node_unpin(c, p->tail);\n", "    p->number = 0;\n")]),
    ("a frame that goes back to another GPU's arena", "daemon/core_arena.c",
     [("    frames_free(frames_with(c, frame), in_arena(c, frame));\n",
       "    frames *f = frames_with(c, frame);\n"
       "    if (frames_in_use(c->arenas[0].frames, in_arena(c, frame)))\n"
       "        f = c->arenas[0].frames;\n"
       "    frames_free(f, in_arena(c, frame));\n")]),
    ("a page in another GPU's arena than its rank's", "daemon/core_seal.c",
     [("arena = slot_arena(c, &c->realms[job->realm], slot);", "arena = 0;")]),
    ("a page that is copied into another GPU's memory", "kernels/device_many.c",
     [("    return d->ops->write_file(d,",
       "    d = ((const device_many *)device)->devices[0];\n    return d->ops->write_file(d,"),
      ("    return d->ops->check(d,",
       "    d = ((const device_many *)device)->devices[0];\n    return d->ops->check(d,")]),
    ("a page that comes up into another GPU's memory", "kernels/device_many.c",
     [("    return d->ops->write(d,",
       "    d = ((const device_many *)device)->devices[0];\n    return d->ops->write(d,")]),
    ("a worker that is told another GPU's places", "daemon/core_arena.c",
     [("    page->generation = at.generation;\n",
       "    page->generation = frames_generation(c->arenas[0].frames, page->frame);\n")]),
]


def build(arguments, folder, path, changes):
    """The simulator with the changed source; its path, or None if a change has no place any more."""
    with open(os.path.join(arguments.root, path), encoding="utf-8") as file:
        text = file.read()
    for old, new in changes:
        if text.count(old) != 1:
            return None
        text = text.replace(old, new)
    source, program = os.path.join(folder, "mutant.c"), os.path.join(folder, "sim")
    with open(source, "w", encoding="utf-8") as file:
        file.write(text)
    objects = glob.glob(os.path.join(arguments.build, "tests/CMakeFiles/sim.dir/sim/*.o"))
    archives = [os.path.join(arguments.build, name) for name in (
        "daemon/libkvt_core.a", "daemon/libkvt_policy.a", "client/libkvt_wire.a",
        "radix/libkvt_radix.a", "store/libkvt_store.a", "store/libkvt_tier.a",
        "kernels/libkvt_device.a", "kernels/libkvt_kernels.a")]
    subprocess.run([arguments.cc, *FLAGS, "-I" + arguments.root, source, *objects,
                    "-Wl,--start-group", *filter(os.path.exists, archives), "-Wl,--end-group",
                    "-lxxhash", "-lm", "-o", program], check=True)
    return program


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=".")
    parser.add_argument("--build", default="build")
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    failures = 0
    for name, path, changes in MUTANTS:
        if arguments.only not in name:
            continue
        with tempfile.TemporaryDirectory(prefix="kvtrunk-mutant-") as folder:
            program = build(arguments, folder, path, changes)
            if not program:
                print(f"{name}: {path} has changed: the fault has no place any more")
                failures += 1
                continue
            seeds = FEW_SEEDS if name in NEVER else SEEDS
            done = subprocess.run([program, "--count", seeds], capture_output=True, text=True,
                                  timeout=LIMIT_S, check=False)
            lines = (done.stderr or done.stdout).strip().splitlines() or ["a crash without a word"]
            print(f"{name}: {'NOT FOUND' if done.returncode == 0 else 'found: ' + lines[0]}",
                  flush=True)
            failures += done.returncode == 0
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
