/* report_lists.c - PINS and LEASES: one object a line, see report.h. */
#include "daemon/json_write.h"
#include "daemon/report.h"

enum { TAIL_BYTES = 24 /* {"truncated":true} and its newline */ };

typedef struct list {
    json_writer writer;
    uint32_t lines_left;
} list;

static void list_start(list *l, uint32_t max_lines, char *to, size_t room) {
    l->lines_left = max_lines;
    json_start(&l->writer, to, room - TAIL_BYTES);
}

/* A line that does not fit is taken back, and so is all behind it. */
static int line_end(list *l, json_writer before) {
    json_close(&l->writer, '}');
    json_newline(&l->writer);
    if (l->writer.full || l->lines_left == 0) {
        l->writer = before;
        return 1;
    }
    l->lines_left--;
    return 0;
}

static size_t list_end(list *l, int cut, size_t room) {
    if (cut) {
        l->writer.room = room;
        json_open(&l->writer, NULL, '{');
        json_put_bool(&l->writer, "truncated", 1);
        json_close(&l->writer, '}');
        json_newline(&l->writer);
    }
    return l->writer.n_bytes;
}

static int put_pin(void *context, const core_pin_info *pin) {
    list *l = context;
    json_writer before = l->writer;
    json_open(&l->writer, NULL, '{');
    json_put_u64(&l->writer, "pin", pin->pin);
    json_put_u64(&l->writer, "realm", pin->realm);
    json_put_u64(&l->writer, "uid", pin->uid);
    json_put_text(&l->writer, "owner", pin->owner);
    json_put_u64(&l->writer, "tokens", pin->n_tokens);
    json_put_u64(&l->writer, "bytes", pin->n_bytes);
    json_put_u64(&l->writer, "max_bytes", pin->max_bytes);
    json_put_u64(&l->writer, "ttl_ms", pin->ttl_ms);
    json_put_u64(&l->writer, "left_ms", pin->left_ms);
    json_put_u64(&l->writer, "hits", pin->hits);
    return line_end(l, before);
}

size_t report_pins(const core *c, uint32_t max_lines, char *to, size_t room) {
    list l;
    list_start(&l, max_lines, to, room);
    return list_end(&l, core_each_pin(c, put_pin, &l), room);
}

static int put_lease(void *context, const core_lease_info *lease) {
    list *l = context;
    json_writer before = l->writer;
    json_open(&l->writer, NULL, '{');
    json_put_u64(&l->writer, "session", lease->session);
    json_put_text(&l->writer, "name", lease->name);
    json_put_u64(&l->writer, "request", lease->request);
    json_put_u64(&l->writer, "realm", lease->realm);
    json_put_u64(&l->writer, "rank", lease->rank);
    json_put_u64(&l->writer, "tokens", lease->n_tokens);
    json_put_u64(&l->writer, "held_tokens", lease->held_tokens);
    json_put_u64(&l->writer, "from_host", lease->host_tokens);
    json_put_u64(&l->writer, "from_disk", lease->disk_tokens);
    json_put_u64(&l->writer, "claimed_pages", lease->claimed_pages);
    json_put_bool(&l->writer, "flushed", lease->flushed);
    json_put_bool(&l->writer, "view", lease->view);
    return line_end(l, before);
}

size_t report_leases(const core *c, uint32_t max_lines, char *to, size_t room) {
    list l;
    list_start(&l, max_lines, to, room);
    return list_end(&l, core_each_lease(c, put_lease, &l), room);
}
