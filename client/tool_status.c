/*
 * tool_status.c - kvtrunk status: the daemon's counters and settings, for people or as they came.
 * It prints whatever the report holds, so that a newer daemon's counters are seen as well; the few
 * lines at the head are made of those that it knows.
 */
#include "client/tool.h"

#include <cjson/cJSON.h>
#include <string.h>

enum { MAX_COLUMNS = 16, CELL_BYTES = 160 };

/* A whole number below 2^53, up to which a double is exact; 0 if it is none. */
static uint64_t number_of(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble < 0x1p53
               ? (uint64_t)item->valuedouble
               : 0;
}

static const char *text_of(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? item->valuestring : "?";
}

static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* A value as people read it. plain: without thousands and units, for ids and settings. */
static const char *value_text(const cJSON *item, int plain, char *to) {
    const char *key = item->string ? item->string : "";
    double x = item->valuedouble;
    if (cJSON_IsString(item)) {
        snprintf(to, CELL_BYTES, "%s", item->valuestring);
    } else if (cJSON_IsBool(item)) {
        snprintf(to, CELL_BYTES, "%s", cJSON_IsTrue(item) ? "yes" : "no");
    } else if (!cJSON_IsNumber(item)) {
        char *json = cJSON_PrintUnformatted(item);
        snprintf(to, CELL_BYTES, "%s", json ? json : "?");
        cJSON_free(json);
    } else if (x < 0 || x >= 0x1p53 || x != (double)(uint64_t)x) {
        /* Over 2^53 the last digits are lost here; --json has them. */
        snprintf(to, CELL_BYTES, "%s%.15g", x >= 0x1p53 ? "about " : "", x);
    } else if (plain) {
        snprintf(to, CELL_BYTES, "%.0f", x);
    } else if (ends_with(key, "_bytes") && x >= 1024) {
        snprintf(to, CELL_BYTES, "%s  %s", tool_number((uint64_t)x), tool_size((uint64_t)x));
    } else {
        snprintf(to, CELL_BYTES, "%s", tool_number((uint64_t)x));
    }
    return to;
}

/* --- head ---------------------------------------------------------------------------------------
 */

static void print_bar(const char *name, uint64_t part, uint64_t whole) {
    enum { WIDTH = 30 };
    double share = whole ? (double)part / (double)whole : 0;
    printf("%-7s [", name);
    for (int i = 0; i < WIDTH; i++)
        putchar(i < (int)(share * WIDTH + .5) ? '#' : '.');
    printf("] %5.1f %% of ", 100 * share);
}

static const char *span(uint64_t s, char *to, size_t room) {
    if (s < 120)
        snprintf(to, room, "%llu s", (unsigned long long)s);
    else if (s < 7200)
        snprintf(to, room, "%llu min", (unsigned long long)(s / 60));
    else if (s < 48 * 3600)
        snprintf(to, room, "%llu h %llu min", (unsigned long long)(s / 3600),
                 (unsigned long long)(s / 60 % 60));
    else
        snprintf(to, room, "%llu days %llu h", (unsigned long long)(s / 86400),
                 (unsigned long long)(s / 3600 % 24));
    return to;
}

/* Small pages run out of places long before they run out of bytes. 0: there is no such limit. */
static void print_places(uint64_t used, uint64_t most) {
    printf("%s", tool_number(used));
    if (most)
        printf(" of %s", tool_number(most));
    printf(" pages\n");
}

/* One bar, or one for each GPU. */
static void print_arenas(const cJSON *root, const cJSON *counts) {
    const cJSON *arenas = cJSON_GetObjectItemCaseSensitive(root, "arenas"), *arena;
    if (cJSON_GetArraySize(arenas) < 2) {
        uint64_t room = number_of(counts, "arena_bytes");
        print_bar("arena", number_of(counts, "arena_used_bytes"), room);
        printf("%s, ", tool_size(room));
        print_places(number_of(counts, "frames_used"), number_of(counts, "frames_max"));
        return;
    }
    cJSON_ArrayForEach(arena, arenas) {
        const char *state = text_of(arena, "state");
        char name[32];
        snprintf(name, sizeof name, "arena %llu", (unsigned long long)number_of(arena, "arena"));
        print_bar(name, number_of(arena, "used_bytes"), number_of(arena, "bytes"));
        printf("%s in %s%s%s\n", tool_size(number_of(arena, "bytes")), text_of(arena, "where"),
               strcmp(state, "works") ? ": FAILED, " : "", strcmp(state, "works") ? state : "");
    }
}

static void print_head(const cJSON *root) {
    char up[48];
    const cJSON *c = cJSON_GetObjectItemCaseSensitive(root, "counts");
    if (!cJSON_IsObject(c))
        return;
    printf("kvtrunkd %s at %s, pid %llu, up %s\n\n", text_of(root, "version"),
           text_of(root, "socket"), (unsigned long long)number_of(root, "pid"),
           span(number_of(root, "uptime_s"), up, sizeof up));
    uint64_t max = number_of(c, "pages_max"), empty = number_of(c, "pages_free");
    print_bar("pages", max >= empty ? max - empty : 0, max);
    printf("%s: %s pinned, %s evictable, %s filling\n", tool_number(max),
           tool_number(number_of(c, "pages_pinned")), tool_number(number_of(c, "pages_evictable")),
           tool_number(number_of(c, "pages_filling")));
    print_arenas(root, c);
    const char *const tiers[] = {"host", "disk"};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        char of_room[32], of_used[32], of_pages[32];
        snprintf(of_room, sizeof of_room, "%s_bytes", tiers[i]);
        snprintf(of_used, sizeof of_used, "%s_used_bytes", tiers[i]);
        snprintf(of_pages, sizeof of_pages, "pages_%s", tiers[i]);
        if (number_of(c, of_room) == 0)
            continue;
        print_bar(tiers[i], number_of(c, of_used), number_of(c, of_room));
        printf("%s, ", tool_size(number_of(c, of_room)));
        print_places(number_of(c, of_pages), i == 0 ? number_of(c, "host_frames_max") : 0);
    }
    uint64_t asked = number_of(c, "tokens_asked"), served = number_of(c, "tokens_served");
    print_bar("served", served, asked);
    printf("%s tokens asked for\n\n", tool_number(asked));
}

/* --- the whole of it ----------------------------------------------------------------------------
 */

void tool_rows(const cJSON *rows) {
    char cell[CELL_BYTES];
    int width[MAX_COLUMNS] = {0}, n_columns = 0;
    const cJSON *row, *item, *first = rows->child;
    for (item = cJSON_IsObject(first) ? first->child : NULL; item && n_columns < MAX_COLUMNS;
         item = item->next)
        width[n_columns++] = (int)strlen(item->string);
    cJSON_ArrayForEach(row, rows) {
        int i = 0;
        for (item = row->child; item && i < n_columns; item = item->next, i++) {
            int n = (int)strlen(value_text(item, 1, cell));
            width[i] = n > width[i] ? n : width[i];
        }
    }
    int i = 0;
    for (item = n_columns ? first->child : NULL; item && i < n_columns; item = item->next, i++)
        printf("  %-*s", i + 1 < n_columns ? width[i] : 0, item->string);
    printf("%s", n_columns ? "\n" : "");
    cJSON_ArrayForEach(row, rows) {
        i = 0;
        for (item = row->child; item && i < n_columns; item = item->next, i++)
            printf("  %-*s", i + 1 < n_columns ? width[i] : 0, value_text(item, 1, cell));
        printf("%s\n", n_columns ? "" : value_text(row, 1, cell));
    }
}

static void print_members(const cJSON *object, int plain) {
    char cell[CELL_BYTES];
    const cJSON *item;
    cJSON_ArrayForEach(item, object) {
        value_text(item, plain, cell);
        if (cJSON_IsNumber(item) && !plain) {
            /* Numbers end below each other; a unit stands behind. */
            int n = (int)strcspn(cell, " ");
            printf("  %-22s %16.*s%s\n", item->string, n, cell, cell + n);
        } else {
            printf("  %-22s %s\n", item->string, cell);
        }
    }
}

static int is_rows(const cJSON *item) {
    return cJSON_IsArray(item) && (cJSON_GetArraySize(item) == 0 || cJSON_IsObject(item->child));
}

static int print_status(const char *json) {
    char cell[CELL_BYTES];
    cJSON *root = cJSON_Parse(json);
    const cJSON *item;
    if (!cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return tool_fail(TOOL_FAILED, "the daemon's report is no JSON object: %.60s", json);
    }
    print_head(root);
    cJSON_ArrayForEach(item, root) {
        if (!cJSON_IsObject(item) && !is_rows(item))
            printf("%-24s %s\n", item->string, value_text(item, 1, cell));
    }
    cJSON_ArrayForEach(item, root) {
        if (cJSON_IsObject(item)) {
            printf("\n%s\n", item->string);
            print_members(item, strcmp(item->string, "config") == 0);
        }
    }
    cJSON_ArrayForEach(item, root) {
        if (is_rows(item)) {
            printf("\n%s (%d)\n", item->string, cJSON_GetArraySize(item));
            tool_rows(item);
        }
    }
    cJSON_Delete(root);
    return TOOL_OK;
}

static int run(const tool_command *self, int argc, char **argv) {
    const char *socket = NULL;
    int json = 0, n;
    const tool_option options[] = {
        {.name = "json", .flag = &json, .help = "the daemon's report as it is, one JSON object"},
        {.name = "socket",
         .value = "PATH",
         .text = &socket,
         .help = "of the daemon; otherwise $KVTRUNK_SOCKET, else kvtrunk.sock in "
                 "$XDG_RUNTIME_DIR, else " KVT_DEFAULT_SOCKET},
        {0}};
    int code = tool_options(self, argc, argv, options, NULL, 0, &n);
    if (code != TOOL_OK)
        return code;
    kvt_client *client;
    kvt_status status =
        kvt_open_reports(&(kvt_options){.socket = socket, .name = "kvtrunk status"}, &client);
    if (status != KVT_OK)
        return tool_fail(tool_code(status), "%s", kvt_last_error());
    char *text;
    status = kvt_status_json(client, &text);
    if (status != KVT_OK) {
        code = tool_fail(tool_code(status), "%s", kvt_last_error());
    } else {
        code = json ? (puts(text), TOOL_OK) : print_status(text);
        kvt_free(text);
    }
    kvt_close(client);
    return code;
}

const tool_command tool_status = {
    .name = "status",
    .operands = "",
    .summary = "counters, memory and sessions of the daemon",
    .about = "Counters rise from 0 at each start of the daemon and are exact; at any moment\n"
             "pages_free + pages_filling + pages_evictable + pages_pinned is pages_max. What each\n"
             "means stands in kvtrunk(1).\n",
    .examples = "  kvtrunk status --socket /run/kvtrunk/kvtrunk.sock\n"
                "  kvtrunk status --json | jq .counts.tokens_served\n",
    .run = run,
};
