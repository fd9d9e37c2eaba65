/* config.c - from JSON to parameters, and what contradicts what. One of the few users of cJSON. */
#include "daemon/config.h"
#include "client/assert.h"

#include <cjson/cJSON.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void config_init(config *ret_config) {
    KVT_ASSERT(params_n <= CONFIG_MAX_PARAMS);
    memset(ret_config, 0, sizeof *ret_config);
    params_init(&ret_config->values);
}

/* --- one JSON text -----------------------------------------------------------------------------
 */

typedef struct reader {
    config *config;
    const char *text;
    size_t n_bytes;
    const json_scan *scan;
    char *why;
    size_t why_bytes;
} reader;

/* text[0 .. n_bytes) for a message: cut after 40 bytes (between characters), and without control
 * characters. */
static const char *quoted(const char *text, size_t n_bytes, char to[64]) {
    size_t n = 0, i = 0;
    while (i < n_bytes) {
        size_t length = utf8_length(text + i, n_bytes - i);
        if (i + length > 40 || length == 0)
            break;
        for (size_t end = i + length; i < end; i++)
            to[n++] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    }
    snprintf(to + n, 64 - n, "%s", i < n_bytes ? "..." : "");
    return to;
}

static kvt_status fail(const reader *r, size_t at, kvt_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static kvt_status fail(const reader *r, size_t at, kvt_status status, const char *format, ...) {
    char what[CONFIG_WHY_BYTES];
    json_place place = json_place_of(r->text, r->n_bytes, at);
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(r->why, r->why_bytes, "%s:%u:%u: %s", r->config->file, place.line, place.column, what);
    return status;
}

static kvt_status unknown_key(const reader *r, const json_value *value) {
    char key[64], shown[64];
    size_t n = json_unescape(r->text, value->key_at, key, sizeof key);
    const param *nearest = n <= sizeof key ? param_nearest(key, n) : NULL;
    quoted(key, n < sizeof key ? n : sizeof key, shown);
    if (nearest)
        return fail(r, value->key_at, KVT_EINVAL,
                    "\"%s\": this key is not known; did you mean \"%s\"?", shown, nearest->name);
    return fail(r, value->key_at, KVT_EINVAL,
                "\"%s\": this key is not known; kvtrunkd --help names all", shown);
}

/* The value has the wrong type, or is of the right one and refused. */
static kvt_status bad_value(const reader *r, const param *p, const json_value *value,
                            const char *what) {
    char shown[64];
    quoted(r->text + value->at, value->n_bytes, shown);
    return fail(r, value->at, KVT_EINVAL, "\"%s\" = %s: %s", p->name, shown, what);
}

static kvt_status wrong_type(const reader *r, const param *p, const json_value *value) {
    static const char *const needed[] = {
        [PARAM_SIZE] = "a string such as \"64GiB\"",
        [PARAM_COUNT] = "a number",
        [PARAM_MS] = "a number",
        [PARAM_TEXT] = "a string",
        [PARAM_MODE] = "a string such as \"0640\"",
        [PARAM_BOOL] = "true or false",
        [PARAM_UIDS] = "a list",
        [PARAM_ENUM] = "a string",
    };
    char what[400], range[160];
    snprintf(what, sizeof what, "it needs %s: %s", needed[p->type],
             param_range(p, range, sizeof range));
    return bad_value(r, p, value, what);
}

/* Does a JSON value of this kind fit the parameter? */
static int type_fits(const param *p, const cJSON *item) {
    switch (p->type) {
    case PARAM_SIZE:
        return cJSON_IsString(item) || cJSON_IsNumber(item);
    case PARAM_COUNT:
    case PARAM_MS:
        return cJSON_IsNumber(item);
    case PARAM_BOOL:
        return cJSON_IsBool(item);
    case PARAM_UIDS:
        return cJSON_IsArray(item);
    case PARAM_TEXT:
    case PARAM_MODE:
    case PARAM_ENUM:
        return cJSON_IsString(item);
    }
    return 0;
}

/* A string's value comes from the parser; a number's from the text, since a double is not exact. */
static const char *text_of(const reader *r, const cJSON *item, const json_value *value,
                           size_t *ret_n) {
    if (cJSON_IsString(item)) {
        *ret_n = strlen(item->valuestring);
        return item->valuestring;
    }
    *ret_n = value->n_bytes;
    return r->text + value->at;
}

static kvt_status read_uids(const reader *r, const param *p, const cJSON *list,
                            const json_value *value) {
    char what[400];
    size_t n;
    r->config->values.n_uids = 0;
    for (const cJSON *item = list->child; item; item = item->next) {
        value++; /* elements are scalars, so the scan's values are theirs one by one */
        if (!cJSON_IsString(item) && !cJSON_IsNumber(item))
            return wrong_type(r, p, value);
        const char *text = text_of(r, item, value, &n);
        if (param_add_uid(text, n, &r->config->values, what, sizeof what) != KVT_OK)
            return bad_value(r, p, value, what);
    }
    return KVT_OK;
}

static kvt_status read_member(const reader *r, const cJSON *item, const json_value *value) {
    char what[400];
    size_t n;
    const param *p = param_find(item->string, strlen(item->string));
    if (!p)
        return unknown_key(r, value);
    if (!type_fits(p, item))
        return wrong_type(r, p, value);
    kvt_status status;
    if (p->type == PARAM_UIDS) {
        status = read_uids(r, p, item, value);
    } else {
        const char *text = text_of(r, item, value, &n);
        status = param_set(p, text, n, &r->config->values, what, sizeof what);
        if (status != KVT_OK)
            status = bad_value(r, p, value, what);
    }
    r->config->from[p - params].source = CONFIG_FILE;
    r->config->from[p - params].place = json_place_of(r->text, r->n_bytes, value->key_at);
    return status;
}

/* Members in order: the parser's list and the scan's values of depth 1 go side by side. */
static kvt_status read_object(const reader *r, const cJSON *root) {
    const json_scan *scan = r->scan;
    if (!cJSON_IsObject(root))
        return fail(r, scan->values[0].at, KVT_ESYNTAX,
                    "a configuration is one object: {\"key\": value, ...}");
    uint32_t i = 1;
    for (const cJSON *item = root->child; item; item = item->next, i++) {
        while (i < scan->n_values && scan->values[i].depth != 1)
            i++;
        KVT_ASSERT(i < scan->n_values);
        kvt_status status = read_member(r, item, &scan->values[i]);
        if (status != KVT_OK)
            return status;
    }
    return KVT_OK;
}

kvt_status config_parse(config *c, const char *file, const char *text, size_t n_bytes, char *why,
                        size_t why_bytes) {
    kvt_status status;
    cJSON *root = NULL;
    json_scan *scan = malloc(sizeof *scan);
    char *blanked = malloc(n_bytes <= JSON_MAX_BYTES ? n_bytes + 1 : 1);
    reader r = {c, text, n_bytes, scan, why, why_bytes};
    snprintf(c->file, sizeof c->file, "%s", file);
    if (!scan || !blanked) {
        snprintf(why, why_bytes, "%s: no memory to read it", file);
        status = KVT_ENOMEM;
        goto out;
    }
    status = json_scan_text(text, n_bytes, blanked, scan);
    if (status != KVT_OK) {
        snprintf(why, why_bytes, "%s:%u:%u: %s", c->file, scan->place.line, scan->place.column,
                 scan->why);
        goto out;
    }
    root = cJSON_ParseWithLength(blanked, n_bytes);
    if (!root) {
        /* The scan is stricter than the parser, so only memory can be missing. */
        snprintf(why, why_bytes, "%s: no memory to read it", file);
        status = KVT_ENOMEM;
        goto out;
    }
    status = read_object(&r, root);
out:
    cJSON_Delete(root);
    free(blanked);
    free(scan);
    return status;
}

/* --- a file ------------------------------------------------------------------------------------
 */

/* Reads at most JSON_MAX_BYTES + 1 bytes, so that a longer file is seen and a device does no harm.
 */
static kvt_status read_all(int fd, char *to, size_t *ret_n_bytes) {
    size_t n_bytes = 0;
    while (n_bytes <= JSON_MAX_BYTES) {
        ssize_t n = read(fd, to + n_bytes, JSON_MAX_BYTES + 1 - n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return KVT_EIO;
        if (n == 0)
            break;
        n_bytes += (size_t)n;
    }
    *ret_n_bytes = n_bytes;
    return KVT_OK;
}

kvt_status config_read(config *c, const char *file, char *why, size_t why_bytes) {
    struct stat info;
    size_t n_bytes;
    kvt_status status = KVT_EIO;
    char *text = malloc(JSON_MAX_BYTES + 1);
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (!text) {
        snprintf(why, why_bytes, "%s: no memory to read it", file);
        status = KVT_ENOMEM;
    } else if (fd < 0) {
        status = errno == ENOENT ? KVT_ENOENT : KVT_EIO;
        snprintf(why, why_bytes, "%s: it cannot be opened: %s", file, strerror(errno));
    } else if (fstat(fd, &info) != 0 || S_ISDIR(info.st_mode)) {
        snprintf(why, why_bytes, "%s: this is a directory, not a configuration", file);
    } else if (S_ISFIFO(info.st_mode) && fcntl(fd, F_SETFL, 0) != 0) {
        /* opening must not wait for a writer, reading must */
        snprintf(why, why_bytes, "%s: it cannot be read: %s", file, strerror(errno));
    } else if (S_ISREG(info.st_mode) && info.st_size > JSON_MAX_BYTES) {
        status = KVT_ELIMIT;
        snprintf(why, why_bytes, "%s:1:1: it has %lld bytes; at most %d are read", file,
                 (long long)info.st_size, JSON_MAX_BYTES);
    } else if (read_all(fd, text, &n_bytes) != KVT_OK) {
        snprintf(why, why_bytes, "%s: it cannot be read: %s", file, strerror(errno));
    } else {
        status = config_parse(c, file, text, n_bytes, why, why_bytes);
    }
    if (fd >= 0)
        close(fd);
    free(text);
    return status;
}

/* --- the command line --------------------------------------------------------------------------
 */

kvt_status config_set(config *c, const char *option, const char *text, char *why,
                      size_t why_bytes) {
    char what[400], shown[64];
    const char *equals = strchr(text, '=');
    size_t n_key = equals ? (size_t)(equals - text) : strlen(text);
    const param *p = param_find(text, n_key);
    quoted(text, n_key, shown);
    if (!equals) {
        snprintf(why, why_bytes, "%s %s: it needs KEY=VALUE", option, shown);
        return KVT_ESYNTAX;
    }
    if (!p) {
        const param *nearest = param_nearest(text, n_key);
        snprintf(why, why_bytes, "%s: \"%s\": this key is not known; %s%s%s", option, shown,
                 nearest ? "did you mean \"" : "kvtrunkd --help names all",
                 nearest ? nearest->name : "", nearest ? "\"?" : "");
        return KVT_EINVAL;
    }
    const char *value = equals + 1;
    kvt_status status = param_set(p, value, strlen(value), &c->values, what, sizeof what);
    if (status != KVT_OK) {
        snprintf(why, why_bytes, "%s: \"%s\" = %s: %s", option, p->name,
                 quoted(value, strlen(value), shown), what);
        return status;
    }
    c->from[p - params].source = CONFIG_SET;
    return KVT_OK;
}

/* --- contradictions ----------------------------------------------------------------------------
 */

static size_t row_of(const char *name) {
    const param *p = param_find(name, strlen(name));
    KVT_ASSERT(p != NULL);
    return (size_t)(p - params);
}

/* "FILE:12:5: " where the parameter was set in a file, "command line: ", or "default: ". */
static const char *where(const config *c, const char *name, char *to, size_t room) {
    size_t row = row_of(name);
    if (c->from[row].source == CONFIG_FILE)
        snprintf(to, room, "%s:%u:%u", c->file, c->from[row].place.line, c->from[row].place.column);
    else
        snprintf(to, room, "%s", c->from[row].source == CONFIG_SET ? "command line" : "default");
    return to;
}

/* a contradicts b: the message stands where the one that was set stands, a if both were. */
static kvt_status contradiction(const config *c, const char *a, const char *b, const char *what,
                                char *why, size_t why_bytes) {
    char value_a[1024], value_b[1024], where_a[320], where_b[320];
    if (c->from[row_of(a)].source == CONFIG_STANDARD) {
        const char *swap = a;
        a = b;
        b = swap;
    }
    param_print(&params[row_of(a)], &c->values, value_a, sizeof value_a);
    param_print(&params[row_of(b)], &c->values, value_b, sizeof value_b);
    snprintf(why, why_bytes, "%s: \"%s\" = %.300s contradicts \"%s\" = %.300s (%s): %s",
             where(c, a, where_a, sizeof where_a), a, value_a, b, value_b,
             where(c, b, where_b, sizeof where_b), what);
    return KVT_EINVAL;
}

static int is_set(const config *c, const char *name) {
    return c->from[row_of(name)].source != CONFIG_STANDARD;
}

/* Can somebody of the list not read the arena? Root can, and so can the daemon's own user. */
static int shuts_out_a_uid(const param_values *v, uint32_t own_uid) {
    if (v->arena_mode & 0044)
        return 0;
    for (uint64_t i = 0; i < v->n_uids; i++)
        if (v->uids[i] != own_uid && v->uids[i] != 0)
            return 1;
    return 0;
}

kvt_status config_check(const config *c, uint32_t own_uid, char *why, size_t why_bytes) {
    const param_values *v = &c->values;
    if (v->max_leases > v->max_leases_total)
        return contradiction(c, "max_leases", "max_leases_total",
                             "one worker cannot have more leases than all together", why,
                             why_bytes);
    if (v->max_pages > 0 && v->max_claimed_pages > v->max_pages && is_set(c, "max_claimed_pages"))
        return contradiction(c, "max_claimed_pages", "max_pages",
                             "one worker cannot claim more pages than there can be", why,
                             why_bytes);
    if (v->arena > 0 && v->max_pages > v->arena / 256)
        return contradiction(c, "max_pages", "arena",
                             "a page takes 256 bytes at the least, and so many do not fit", why,
                             why_bytes);
    if (v->max_sessions > v->max_leases_total)
        return contradiction(c, "max_sessions", "max_leases_total",
                             "not every worker could have a lease", why, why_bytes);
    if (shuts_out_a_uid(v, own_uid))
        return contradiction(c, "arena_mode", "uids",
                             "these users could not read the arena; use \"0640\" with arena_group, "
                             "or \"0644\"",
                             why, why_bytes);
    return KVT_OK;
}
